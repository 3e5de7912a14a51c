"""The simulator can fail where brokers have an object store: each of these bugs, planted, is flagged by a schedule that
is made for it, and without the bug the same schedule shows nothing.

Bugs of the log and of takeovers alone are in `storage/test_wal_faults.py` and `storage/test_object_takeover.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import CorruptionError, EngineError
from engine.testing.checker import check
from engine.testing.cluster import DEFAULT_CONFIG, SimBroker, SimCluster, simulate
from engine.testing.members import ResumingSender
from engine.testing.workload import Sender, read_all
from tests.kit import object_bugs
from tests.simulation.broker_faults import TOPIC, Spy

CONFIG = replace(DEFAULT_CONFIG, balance_enabled=False, segments=1, keep_alive=60.0, retention_interval=3.0)
SEEDS = range(3)
Schedule = Callable[[SimCluster], Awaitable[set[str]]]


async def begin(cluster: SimCluster) -> tuple[SimBroker, SimBroker]:
    """Two brokers and a topic of one segment, with a message: the segment's owner, and the other one."""
    for name in ("b1", "b2"):
        await cluster.start(name)
    broker = cluster.brokers["b1"]
    await broker.process.do(lambda: broker.broker.admin.create_topic(TOPIC, segments=1))
    await sender(cluster, "p0").run(5)
    owner = await Spy(cluster).owner()
    return owner, next(each for each in cluster.brokers.values() if each is not owner)


def sender(cluster: SimCluster, name: str, broker: SimBroker | None = None) -> Sender:
    made = Sender(cluster.history, cluster.client(f"c-{name}", broker), name, TOPIC, cluster.rng(name))
    made.pause_s_max = 0.02
    return made


async def broken(cluster: SimCluster) -> set[str]:
    """The rules that are broken, when all has been read twice, the second time by machines that are new."""
    await read(cluster, 1)
    for broker in cluster.brokers.values():
        await broker.lose_machine()
    await asyncio.gather(*(broker.start() for broker in cluster.brokers.values()))
    await read(cluster, 2)
    return {violation.rule for violation in check(cluster.history.events)}


async def read(cluster: SimCluster, reading: int) -> None:
    """What cannot be read is missed by the checker."""
    try:
        await read_all(cluster.history, cluster.client(f"c-reading-{reading}"), TOPIC, reading)
    except EngineError as e:
        cluster.history.record("final", "fault", text=repr(e))


async def replaced_owner(cluster: SimCluster) -> set[str]:
    """The owner reaches the object store, and not the metadata store, until another owns the segment; its last PUTs
    arrive later than that. L1: it takes nothing for durable that its successor has not found.
    """
    owner, other = await begin(cluster)
    old = sender(cluster, "p1", owner)
    sending = asyncio.create_task(old.run(4_000))
    await asyncio.sleep(1)
    segment = next(iter(owner.broker.segments)).segment
    owner.isolate()
    cluster.network.partition("c-p1", other.name)
    await asyncio.sleep(CONFIG.session_timeout - 0.5)
    cluster.objects.delay_s_max = 3.0
    await asyncio.sleep(0.4)
    cluster.objects.delay_s_max = 0.0
    await asyncio.sleep(1)
    await sender(cluster, "p2", other).run(20)
    found = min(e["offset"] for e in cluster.history.events if e["client"] == "p2" and e["phase"] == "ok")
    old.stop()
    await asyncio.sleep(5)
    late = segment.durable_offset > found
    owner.rejoin()
    await sending
    return await broken(cluster) | ({"L1"} if late else set())


async def sent_again(cluster: SimCluster) -> set[str]:
    """A producer sends again what it had sent before a split, to children whose machines have been lost since."""
    owner, _ = await begin(cluster)
    numbers = range(40)
    for life in range(2):
        client = cluster.client(f"c-again-{life}")
        again = ResumingSender(cluster.history, client, "again", TOPIC, cluster.rng("again"))
        producer = await client.producer(TOPIC, name="again")
        await asyncio.gather(*(again._send_as(producer, number) for number in numbers))
        if not life:
            await owner.process.do(lambda: owner.broker.admin.split_segment(TOPIC, 0))
            await sender(cluster, "p3").run(10)  # it opens the children
            for broker in cluster.brokers.values():
                await broker.lose_machine()
            await asyncio.gather(*(broker.start() for broker in cluster.brokers.values()))
    return await broken(cluster)


async def killed_before_a_put(cluster: SimCluster) -> set[str]:
    """The owner's machine is lost while the store takes its time."""
    owner, _ = await begin(cluster)
    cluster.objects.delay_s_max = 0.5
    sending = asyncio.create_task(sender(cluster, "p1").run(200))
    await asyncio.sleep(1)
    await owner.lose_machine()
    cluster.objects.delay_s_max = 0.0
    await owner.start()
    await sending
    return await broken(cluster)


async def killed_behind_an_upload(cluster: SimCluster) -> set[str]:
    """Each machine is lost as soon as the segment's files are named."""
    await begin(cluster)
    await sender(cluster, "p1").run(100)
    await asyncio.sleep(20)
    return await broken(cluster)


async def retention_under_a_reader(cluster: SimCluster) -> set[str]:
    """D6: what readers are about to read is deleted, which is no damage."""
    owner, _ = await begin(cluster)
    await sender(cluster, "p1").run(300)
    await asyncio.sleep(20)
    await owner.lose_machine()  # another one reads from the store
    await sender(cluster, "p2").run(5)
    owner = await Spy(cluster).owner()
    admin, segment = owner.broker.admin, next(iter(owner.broker.segments)).segment
    named = segment.consolidation.named
    first, end = named.first_offset, named.end_offset
    cluster.objects.delay_s_max = 8.0  # a read takes longer than a round of retention
    await owner.process.do(lambda: admin.set_topic_policies(TOPIC, {"retention_size_bytes": 0, "retention_time_s": 0}))
    reading = [asyncio.create_task(named.read(offset, 1_000)) for offset in range(first, end, 5)]
    results = await asyncio.gather(*reading, return_exceptions=True)
    assert named.first_offset != first, "retention has deleted nothing"
    return {"D6"} if any(isinstance(result, CorruptionError) for result in results) else set()


async def another_life(cluster: SimCluster) -> set[str]:
    """The owner's machine is lost, another one takes its place, and has to be of use."""
    owner, other = await begin(cluster)
    await owner.lose_machine()
    await owner.start()
    await other.lose_machine()
    await asyncio.sleep(CONFIG.session_timeout + 5)
    cluster.history.record("nemesis", "healed")
    client = cluster.client("c-p1")
    producer = await client.producer(TOPIC, send_timeout=30.0)
    call = cluster.history.invoke("p1", "send", value='["p1", 1, null]', key=None, topic=TOPIC)
    try:
        place = await producer.send(b'["p1", 1, null]')
    except EngineError as e:
        call.info(repr(e))
    else:
        call.ok(segment=place.segment_id, offset=place.offset)
    return {violation.rule for violation in check(cluster.history.events)}


BUGS: dict[str, tuple[Schedule, str]] = {
    "no_fence": (replaced_owner, "L1"),
    "inherited_is_not_kept": (sent_again, "D3"),
    "acknowledged_before_the_put": (killed_before_a_put, "D1"),
    "named_before_the_upload": (killed_behind_an_upload, "D1"),
    "no_grace": (retention_under_a_reader, "D6"),
    "one_name_for_all_sessions": (another_life, "L2"),
}


def run(schedule: Schedule, seed: int) -> set[str]:
    return simulate(seed, schedule, config=CONFIG, objects=True, time_limit=20_000)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_flagged(bug: str, monkeypatch: pytest.MonkeyPatch, log_file_size: Any) -> None:
    log_file_size(8192)
    schedule, rule = BUGS[bug]
    getattr(object_bugs, bug)(monkeypatch.setattr)
    assert any(rule in run(schedule, seed) for seed in SEEDS)


@pytest.mark.parametrize("schedule", dict.fromkeys(schedule for schedule, _ in BUGS.values()))
def test_without_a_bug_the_schedule_shows_nothing(schedule: Schedule, log_file_size: Any) -> None:
    log_file_size(8192)
    assert run(schedule, 0) == set()


def test_an_owner_that_believes_its_lease_is_stopped_by_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """L1, R4, R7: owners need no clock."""
    object_bugs.lease_is_believed(monkeypatch.setattr)
    for seed in SEEDS:
        assert run(replaced_owner, seed) == set()
