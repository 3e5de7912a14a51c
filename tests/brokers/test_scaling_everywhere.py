"""Auto-scale where the owners of a topic's segments, and its leader, are different brokers."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from engine.errors import NotFoundError
from engine.testing.cluster import DEFAULT_CONFIG, SimCluster, simulate

NAMES = ("b1", "b2", "b3")
CONFIG = dataclasses.replace(DEFAULT_CONFIG, session_timeout=5.0)


async def asked(cluster: SimCluster, topic: str = "hot") -> dict[str, dict[str, Any]]:
    """The stats that each broker gives."""
    return {name: await cluster.brokers[name].broker.admin.get_stats(topic) for name in NAMES}


async def send(producer: Any) -> None:
    for number in range(100_000):
        producer.send_nowait(b"x", key=str(number))
        await asyncio.sleep(0.02)


def test_any_broker_says_what_the_leader_decided_and_every_owner_reports():
    seen: dict[str, Any] = {}

    async def body(cluster: SimCluster) -> None:
        for name in NAMES:
            await cluster.start(name)
        admin = cluster.brokers["b1"].broker.admin
        await admin.create_topic("hot", segments=6)
        await admin.set_auto_scale_policy(
            "hot", {"split_msg_rate_in_threshold": 6, "merge_msg_rate_in_threshold": 2, "max_segments": 8}
        )
        sending = asyncio.create_task(send(await cluster.client("c").producer("hot")))
        await asyncio.sleep(200)
        seen["stats"] = await asked(cluster)
        seen["owners"] = [n for n in NAMES if len(cluster.brokers[n].broker.segments)]
        sending.cancel()

    simulate(3, body, config=CONFIG, shared=True)
    assert len(seen["owners"]) > 1
    for stats in seen["stats"].values():
        scaling = stats["autoScale"]
        assert scaling["leading"] is True
        assert scaling["counts"]["splits"] == 2
        assert scaling["lastChange"]["action"] == "split"
        assert scaling["decision"]["reason"] == "max_segments"
        loads = [s["load"] for s in stats["segments"].values() if s["state"] == "ACTIVE"]
        assert len(loads) == 8
        assert all(load["msgRateIn"] > 0 for load in loads)


def test_a_policy_is_set_and_read_at_any_broker():
    async def body(cluster: SimCluster) -> None:
        for name in NAMES:
            await cluster.start(name)
        admins = [cluster.brokers[name].broker.admin for name in NAMES]
        await admins[0].create_topic("t")
        for number, admin in enumerate(admins, start=2):
            await admin.set_auto_scale_policy("t", {"max_segments": number})
            assert [await other.get_auto_scale_policy("t") for other in admins] == [{"max_segments": number}] * 3
            policies = [s["autoScale"]["policy"] for s in (await asked(cluster, "t")).values()]
            assert [policy["maxSegments"] for policy in policies] == [number] * 3
        await admins[0].delete_topic("t")
        for admin in admins:
            try:
                await admin.get_stats("t")
            except NotFoundError:
                continue
            raise AssertionError("it was deleted")

    simulate(4, body, config=CONFIG, shared=True)
