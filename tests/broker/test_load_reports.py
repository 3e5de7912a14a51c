"""Load reports: written by the owner of an active segment, when its load has changed, and by nobody else."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

import engine
from engine.broker.hosting.ownership import Owner
from engine.broker.upkeep.load_reporter import LoadReports
from engine.clock import SystemClock
from engine.control.base.loads import read_loads
from engine.errors import StorageError
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import OutcomeUnknownError, Stat
from engine.model.autoscale import AutoScalePolicy
from engine.model.hashrange import HashRange
from engine.model.load import ReportedLoad, SegmentLoadStats
from engine.model.names import TopicName
from engine.testing.cluster import DEFAULT_CONFIG, SimBroker, SimCluster, simulate
from engine.testing.loop import VirtualLoop

TOPIC = TopicName.parse("t")
RING = HashRange(0, 0xFFFF)
ALONE = dataclasses.replace(DEFAULT_CONFIG, segments=1, scalable_topic_auto_scale_enabled=False)


class OpenSegment:
    """What a reporter sees of an open segment."""

    def __init__(self, number: int = 0) -> None:
        self.name = TOPIC.segment(RING, number)
        self.incoming = SimpleNamespace(messages=0, bytes=0)
        self.sent_messages = self.sent_bytes = 0
        self.closed = False
        self.term = 1
        self.segment = SimpleNamespace(sealed=False, lease=None)

    def come(self, messages: int) -> None:
        """So many messages of ten bytes are published, and sent twice."""
        self.incoming.messages += messages
        self.incoming.bytes += 10 * messages
        self.sent_messages += 2 * messages
        self.sent_bytes += 20 * messages


class Store(MemoryMetadataStore):
    """Counts the load reports that are written, and fails as the test says."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.written = 0
        self.failure: Exception | None = None

    async def put(self, key: str, value: bytes, *more: Any, **options: Any) -> Stat:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self.written += key.endswith("/load")
        return await super().put(key, value, *more, **options)


class Bench:
    """Reporters of made-up segments, on virtual time."""

    def __init__(self, *segments: OpenSegment) -> None:
        self.segments = list(segments)
        self.store = Store()
        self.topics: list[TopicName] = []
        self.reports = self.broker()

    def broker(self) -> LoadReports:
        """One more that reports these segments."""
        hosting: Any = self.segments
        return LoadReports(hosting, self.store, interval=10.0, threshold=0.25, loaded=self.topics.append)

    async def pass_time(self, per_look: int = 0, looks: int = 1, reports: LoadReports | None = None) -> None:
        """Ten seconds and a look, again and again; `per_look` messages come to each segment meanwhile."""
        for _ in range(looks):
            await asyncio.sleep(10.0)
            for segment in self.segments:
                segment.come(per_look)
            await (reports or self.reports).report()

    async def load(self, number: int = 0) -> ReportedLoad | None:
        """What is reported."""
        return (await read_loads(self.store, TOPIC)).get(number)

    async def rates(self, number: int = 0) -> SegmentLoadStats:
        """The same, without its time."""
        found = await self.load(number)
        assert found is not None
        return found.stats


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on virtual time."""

    def run() -> None:
        VirtualLoop().run(test(), 100_000.0)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
async def test_semantics_32_a_steady_segment_writes_once():
    bench = Bench(OpenSegment())
    await bench.pass_time(per_look=100, looks=100)
    assert bench.store.written == 1
    assert await bench.rates() == SegmentLoadStats(10.0, 100.0, 20.0, 200.0)


@virtual
async def test_a_topics_policy_says_how_often_and_from_which_change_on_its_segments_report():
    usual, own = OpenSegment(), OpenSegment(1)
    own.name = TopicName.parse("own").segment(RING, 1)
    bench = Bench(usual, own)
    policies = {own.name.topic: AutoScalePolicy(load_report_interval=2.0, load_report_rate_change_threshold=9.0)}

    async def policy(topic: TopicName) -> AutoScalePolicy:
        return policies.get(topic, AutoScalePolicy())

    hosting: Any = bench.segments
    reports = LoadReports(hosting, bench.store, interval=10.0, threshold=0.25, policy=policy)
    looks: dict[int, list[float]] = {0: [], 1: []}
    time = asyncio.get_running_loop().time
    running = asyncio.create_task(reports.run())
    for _ in range(60):
        await asyncio.sleep(1.0)
        for segment in bench.segments:
            segment.come(10)
        for reporter in reports._reporters.values():
            looks[reporter.hosted.name.segment_id].append(reporter.sampled)
    running.cancel()
    often = {i: len(set(sampled)) for i, sampled in looks.items()}
    assert 4 <= often[0] <= 7
    assert often[1] >= 20
    assert reports._reporters[own].threshold == 9.0  # type: ignore[index]
    assert time() >= 60


@virtual
async def test_semantics_32_a_change_is_written_in_either_direction():
    bench = Bench(OpenSegment())
    await bench.pass_time(per_look=100, looks=20)
    await bench.pass_time(per_look=124, looks=20)
    assert bench.store.written == 1
    await bench.pass_time(per_look=400, looks=20)
    assert (await bench.rates()).msg_rate_in == pytest.approx(40.0, rel=0.25)
    risen = bench.store.written
    await bench.pass_time(per_look=100, looks=20)
    assert (await bench.rates()).msg_rate_in == pytest.approx(10.0, rel=0.25)
    assert 1 < risen < bench.store.written < 12


@virtual
async def test_semantics_32_zero_is_crossed_in_both_directions():
    bench = Bench(OpenSegment())
    await bench.pass_time(looks=20)
    assert bench.store.written == 1  # what is new has its record, so that it can be known to be cold
    assert (await bench.rates()).silent
    await bench.pass_time(per_look=1)
    assert (await bench.rates()).msg_rate_in > 0
    await bench.pass_time(looks=10)
    assert (await bench.rates()).silent


@virtual
async def test_what_an_idle_segment_gets_is_averaged_over_the_whole_window():
    bench = Bench(OpenSegment())
    await bench.pass_time(looks=500)
    await bench.pass_time(per_look=7000)
    assert (await bench.rates()).msg_rate_in == 100.0  # over sixty seconds of rest, and the ten since


@virtual
async def test_idle_segments_cost_no_writes_and_topics_in_use_are_told():
    bench = Bench(*(OpenSegment(number) for number in range(10_000)))
    await bench.pass_time(looks=2)
    assert bench.store.written == 10_000
    version, bench.topics[:] = bench.store.version, []
    await bench.pass_time(looks=3)
    assert bench.store.version == version
    assert bench.topics == []
    bench.segments[77].come(5)
    await bench.pass_time()
    assert bench.store.written == 10_001
    assert bench.topics == [TOPIC]


@virtual
async def test_what_an_earlier_owner_wrote_is_not_written_anew_while_it_holds():
    """A restart makes no cold segment young."""
    bench = Bench(OpenSegment())
    await bench.pass_time(per_look=100, looks=10)
    before = await bench.load()
    bench.segments[:] = [OpenSegment()]
    await bench.pass_time(per_look=100, looks=10, reports=bench.broker())
    assert await bench.load() == before
    assert bench.store.written == 1


@virtual
async def test_a_sealed_segment_is_not_reported_any_more_and_keeps_its_record():
    bench = Bench(OpenSegment())
    await bench.pass_time(per_look=100, looks=3)
    bench.segments[0].segment.sealed = True
    await bench.pass_time(looks=20)
    assert bench.store.written == 1
    assert (await bench.rates()).msg_rate_in == 10.0
    bench.segments.append(sealed := OpenSegment(1))
    sealed.segment.sealed = True
    await bench.pass_time(looks=3)
    assert await bench.load(1) is None


@pytest.mark.parametrize("failure", [StorageError("full"), OutcomeUnknownError("perhaps")])
def test_a_write_that_fails_is_made_at_the_next_sample(failure):
    @virtual
    async def run() -> None:
        bench = Bench(OpenSegment())
        await bench.pass_time()
        bench.store.failure = failure
        await bench.pass_time(per_look=100)
        assert bench.store.failure is None
        assert await bench.load() is None
        await bench.pass_time(per_look=100)
        assert (await bench.rates()).msg_rate_in == 10.0

    run()


@virtual
async def test_who_owns_a_segment_no_more_writes_no_more():
    bench = Bench(OpenSegment())
    segment = bench.segments[0]
    segment.segment.lease = SimpleNamespace(held=True)
    await bench.pass_time(per_look=100, looks=3)
    segment.segment.lease.held = False
    await bench.pass_time(per_look=900, looks=3)
    segment.closed = True
    bench.segments.clear()
    await bench.pass_time(looks=3)
    assert bench.store.written == 1


@virtual
async def test_of_two_that_take_themselves_for_the_owner_none_writes_over_what_it_has_not_seen():
    bench = Bench(OpenSegment())
    other = bench.broker()
    for reports in (bench.reports, other):
        await reports.report()
    await bench.pass_time(per_look=100)
    await bench.pass_time(per_look=1000, reports=other)
    newest = await bench.load()
    await bench.pass_time(per_look=5000)  # it has read an older one: refused, and read once more
    assert await bench.load() == newest


@pytest.mark.parametrize(("owner", "term", "zero"), [("b", 1, True), (None, 1, True), ("b2", 2, False)])
def test_a_segment_that_is_closed_leaves_no_load_behind(owner, term, zero):
    @virtual
    async def run() -> None:
        bench = Bench(OpenSegment())
        await bench.store.put(keys.segment(bench.segments[0].name), Owner(owner, 7, term).to_json())
        await bench.pass_time(per_look=100, looks=3)
        bench.segments.pop().closed = True
        await bench.pass_time()
        assert (await bench.rates()).silent is zero
        await bench.pass_time(looks=5)
        assert bench.store.written == 1 + zero

    run()


@virtual
async def test_a_deleted_segment_gets_no_record_again():
    bench = Bench(OpenSegment())
    name = bench.segments[0].name
    await bench.store.put(keys.segment(name), Owner("b", 7, 1).to_json())
    await bench.pass_time(per_look=100, looks=3)
    bench.segments.pop().closed = True
    await bench.store.delete(keys.load(name))
    await bench.pass_time(looks=3)
    assert await bench.load() is None


@virtual
async def test_a_damaged_record_is_written_anew():
    bench = Bench(OpenSegment())
    await bench.store.put(keys.load(bench.segments[0].name), b"{")
    await bench.pass_time(per_look=100, looks=3)
    assert (await bench.rates()).msg_rate_in == 10.0


# -- of real brokers ---------------------------------------------------------------------------------------------------


async def reported(cluster: SimCluster, number: int = 0) -> ReportedLoad | None:
    return (await read_loads(cluster.metadata, TOPIC)).get(number)


async def send(client: engine.AsyncClient, seconds: float) -> None:
    """Ten messages a second."""
    async with await client.producer("t") as producer:
        for _ in range(int(10 * seconds)):
            await producer.send(b"x" * 100)
            await asyncio.sleep(0.1)


def test_a_broker_reports_what_comes_in_and_goes_out():
    async def body(cluster: SimCluster) -> None:
        await cluster.start()
        client = cluster.client("c")
        consumer = await client.stream_consumer("t", "s")
        await send(client, 100)
        load = await reported(cluster)
        assert load is not None
        assert 7.5 < load.stats.msg_rate_in < 12.5
        assert 7.5 < load.stats.msg_rate_out < 12.5
        assert load.stats.bytes_rate_in > 100 * load.stats.msg_rate_in
        await asyncio.sleep(100)
        load = await reported(cluster)
        assert load is not None
        assert load.stats.silent
        await consumer.close()

    simulate(3, body, config=ALONE)


def test_the_record_goes_with_the_segment():
    async def body(cluster: SimCluster) -> None:
        broker = (await cluster.start()).broker
        await send(cluster.client("c"), 30)
        assert await reported(cluster) is not None
        await broker.admin.split_segment("t", 0)
        assert await broker.admin.prune_segment("t", 0)
        assert await reported(cluster) is None
        await broker.admin.delete_topic("t")
        await asyncio.sleep(60)
        assert await read_loads(cluster.metadata, TOPIC) == {}

    simulate(4, body, config=ALONE)


def test_a_zombie_writes_nothing_over_its_successor():
    """The owner is cut off from the store, its segment goes to another broker; when it is back, it has lost it."""

    async def owner_of(cluster: SimCluster) -> SimBroker:
        (name,) = [name for name, b in cluster.brokers.items() if b.broker is not None and len(b.broker.segments)]
        return cluster.brokers[name]

    async def body(cluster: SimCluster) -> None:
        for name in ("b1", "b2"):
            await cluster.start(name)
        await send(cluster.client("c"), 30)
        owner = await owner_of(cluster)
        owner.isolate()
        (successor,) = [b for b in cluster.brokers.values() if b is not owner]
        sending = asyncio.create_task(send(cluster.client("d", successor), 120))
        await asyncio.sleep(60)
        owner.rejoin()
        await sending
        assert await owner_of(cluster) is successor
        load = await reported(cluster)
        assert load is not None
        assert 7.5 < load.stats.msg_rate_in < 12.5

    simulate(5, body, config=ALONE, shared=True)
