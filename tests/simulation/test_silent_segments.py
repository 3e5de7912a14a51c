"""A segment without messages for long keeps nothing of a busy broker's log (R19), open or closed. On virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from engine.broker.upkeep import objects as upkeep
from engine.metadata import keys
from engine.storage.objects import records
from engine.storage.objects.format import FENCE
from engine.storage.objects.sweep import Sweep
from engine.testing.cluster import DEFAULT_CONFIG, SimBroker, SimCluster, simulate
from tests.simulation.test_object_files import named, settled
from tests.simulation.test_shared_objects import read_all, send

MESSAGES, BUSY, SILENT = 30, 300, 3
LAG, CLOSED_LAG = 20, 60


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "BEHIND_MAX", LAG)
    monkeypatch.setattr(upkeep, "CLOSED_BEHIND_MAX", CLOSED_LAG)


async def trimmed(cluster: SimCluster, broker: SimBroker) -> tuple[int, int]:
    """Up to which object the broker's log is trimmed, and which is its next."""
    wal = broker.broker.members.objects.wal
    return (await records.read(cluster.metadata, wal.session)).record.trimmed, wal.next_n


async def until_trimmed(cluster: SimCluster, broker: SimBroker, upto: int) -> None:
    async with asyncio.timeout(600):  # virtual
        while (await trimmed(cluster, broker))[0] < upto:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(5)


@pytest.mark.parametrize("idle_s", [20.0, None], ids=["closed", "attached"])
def test_r19_a_silent_segment_does_not_keep_the_log(idle_s: float | None) -> None:
    """`closed`: it is closed before its messages are in a file."""

    async def scenario(cluster: SimCluster) -> None:
        broker = await cluster.start("b1")
        for topic in ("orders", "busy", "never-used"):
            await broker.broker.admin.create_topic(topic, segments=1)
        attached = [await cluster.client("a").producer(topic) for topic in ("orders", "never-used")]
        await send(cluster, 0, MESSAGES)
        if idle_s is not None:
            for producer in attached:
                await producer.close()
        for round_ in range(4):
            await send(cluster, BUSY * round_, BUSY, "busy")  # an object each
            await asyncio.sleep(30)
        _, end = await trimmed(cluster, broker)
        assert end > 4 * BUSY
        await until_trimmed(cluster, broker, end - CLOSED_LAG - 30)
        assert len(named(cluster, "log")) >= 2
        await broker.lose_machine()
        await cluster.start("b2")
        await send(cluster, MESSAGES, MESSAGES)
        assert await read_all(cluster, 2 * MESSAGES, "orders") == list(range(2 * MESSAGES))
        assert await read_all(cluster, 4 * BUSY, "busy", "busy") == list(range(4 * BUSY))
        assert not cluster.loop.problems

    config = replace(DEFAULT_CONFIG, segments=1, segment_idle_time=idle_s, scalable_topic_auto_scale_enabled=False)
    simulate(1, scenario, config=config, objects=True, time_limit=50_000)


@pytest.mark.parametrize("again", ["same", "other"])
@pytest.mark.parametrize("uploaded", [False, True], ids=["in-the-log", "in-files"])
def test_the_log_of_an_ended_session_goes_although_its_segments_are_closed(
    again: str, uploaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client asks for them: the broker that sweeps has their owners open them. `again`: the broker that comes next
    has the same URL, or another one. `uploaded`: only the header of an empty file is in the log.
    """
    monkeypatch.setattr(upkeep, "SWEEP_S", 1e6)
    monkeypatch.setattr(upkeep, "Sweep", partial(Sweep, age_s=1.0))

    async def scenario(cluster: SimCluster) -> None:
        broker = await cluster.start("b1")
        await broker.broker.admin.create_topic("orders", segments=SILENT)
        attached = await cluster.client("a").producer("orders")
        await send(cluster, 0, MESSAGES)
        if uploaded:
            await settled(cluster)
        await attached.close()
        while list(broker.broker.segments):  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(1)
        session = broker.broker.members.objects.wal.session
        await broker.lose_machine()
        brokers = [await cluster.start(name) for name in (("b1", "b2") if again == "same" else ("b2", "b3"))]
        admin = brokers[0].broker.admin
        for _ in range(4):  # the first two fence, where its broker is gone; the last finds nothing but FENCEs
            await admin.sweep_objects(dry_run=True)
            assert not any(list(each.broker.segments) for each in brokers), "a dry run has opened something"
            await admin.sweep_objects()
            await asyncio.sleep(60)  # opened, uploaded, closed
        left = [name for name in named(cluster, "wal") if session in name]
        assert all(len(cluster.objects.objects[name]) == len(FENCE) for name in left), left
        assert await cluster.metadata.newest.get(keys.wal(session)) is None
        assert not any(list(each.broker.segments) for each in brokers), "closed again"
        await send(cluster, MESSAGES, MESSAGES)
        assert await read_all(cluster, 2 * MESSAGES, "orders") == list(range(2 * MESSAGES))
        assert not cluster.loop.problems

    config = replace(DEFAULT_CONFIG, segments=1, segment_idle_time=20.0, scalable_topic_auto_scale_enabled=False)
    simulate(1, scenario, config=config, objects=True, time_limit=50_000)


def test_an_idle_broker_makes_no_requests_for_silent_segments() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.start("b1")
        await send(cluster, 0, MESSAGES)
        await settled(cluster)
        attached = await cluster.client("a").producer("orders")
        await asyncio.sleep(60)
        before = dict(cluster.objects.statistics().requests)
        await asyncio.sleep(120)
        after = cluster.objects.statistics().requests
        assert after["put"] == before["put"]
        assert after["get"] == before["get"]
        await attached.close()

    config = replace(DEFAULT_CONFIG, segments=4, segment_idle_time=None, scalable_topic_auto_scale_enabled=False)
    simulate(1, scenario, config=config, objects=True, time_limit=50_000)
