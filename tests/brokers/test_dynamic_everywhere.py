"""A limit that is set at one broker counts for all that share the metadata store, also for those that come later."""

from __future__ import annotations

import asyncio

from engine.testing.cluster import SimCluster, simulate

NAMES = ("b1", "b2", "b3")


def limits(cluster: SimCluster) -> list[int]:
    running = (cluster.brokers[name].broker for name in NAMES if name in cluster.brokers)
    return [broker.config.connections_max for broker in running if broker is not None]


def test_all_follow_and_who_comes_back_too():
    seen: dict[str, list[int]] = {}

    async def body(cluster: SimCluster) -> None:
        for name in NAMES[:2]:
            await cluster.start(name)
        usual = limits(cluster)[0]
        await cluster.brokers["b1"].broker.admin.set_dynamic_configuration("maxConnections", 77)
        await asyncio.sleep(1)
        seen["set"] = limits(cluster)
        await cluster.start("b3")
        seen["late"] = limits(cluster)
        await cluster.brokers["b2"].kill()
        await cluster.brokers["b3"].broker.admin.remove_dynamic_configuration("connections_max")
        await asyncio.sleep(1)
        seen["unset"] = [limit - usual for limit in limits(cluster)]
        await cluster.brokers["b2"].start()
        seen["back"] = [limit - usual for limit in limits(cluster)]

    simulate(5, body, shared=True)
    assert seen == {"set": [77, 77], "late": [77, 77, 77], "unset": [0, 0], "back": [0, 0, 0]}
