"""What a broker does to a topic's shape before it is killed, and what must hold when the next one has started.

Semantics 42: a crash at any point leaves either the old layout, with stores to collect, or the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from engine.broker.segment.hosted import HostedSegment
from engine.broker.server import Broker
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.orphans import Orphans
from engine.errors import EngineError, SegmentSealedError, StorageError
from engine.metadata import keys
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from tests.crash.crash_scenarios import History, Report, read_all
from tests.kit.entry_images import KEYED, entry

Arm = Callable[[], None]

TOPIC = TopicName.parse("t")
HASHES = {"a": 0x1000, "b": 0x9000}  # the two producers use a half of the ring each
SETTINGS = {"retention_time": 0.0, "retention_interval": 3600.0, "segment_idle_time": None}
RESUMED_S_MAX = 30.0


@contextlib.asynccontextmanager
async def running(root: str) -> AsyncIterator[Broker]:
    """A broker on the directory; at the end of the child there is nothing to close in order."""
    broker = Broker(root, config=BrokerConfig(**SETTINGS))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def value(producer: str, sequence: int) -> bytes:
    """The only message of an entry."""
    return f"{producer}-{sequence}".encode()


def image(producer: str, sequence: int) -> bytearray:
    """The entry that this producer sends under this sequence."""
    where = HASHES[producer]
    values = (value(producer, sequence),)
    bucket = (where, where)
    return bytearray(entry(sequence, values, producer=producer, bucket=bucket, segment_hash=bucket, flags=KEYED))


async def layout_of(broker: Broker) -> SegmentLayout:
    """As the store has it."""
    return (await broker.service.ensure_topic(TOPIC, create=False)).layout


async def hosted_of(broker: Broker, segment_id: int) -> HostedSegment:
    """One of the topic's segments, open."""
    layout = await layout_of(broker)
    spec = await broker.service.segment_spec(TOPIC, segment_id)
    return await broker.segments.open(spec, create=layout.segment(segment_id).active)


async def publish(broker: Broker, report: Report, producer: str, sequences: Iterable[int]) -> int:
    """Append until the segment is sealed; the first sequence that it refused, or the next."""
    last = -1
    for last in sequences:
        info = (await layout_of(broker)).find_active_segment(HASHES[producer])
        hosted = await hosted_of(broker, info.segment_id)
        report("sent", producer, last)
        try:
            (place,) = await hosted.segment.append(image(producer, last), producer, term=hosted.term)
        except SegmentSealedError:
            return last
        report("acked", producer, last, [info.segment_id, place.first_offset])
    return last + 1


async def prepared(broker: Broker, report: Report, segments: int = 1) -> None:
    """A topic with messages, and a subscription that has acknowledged some."""
    await broker.service.create_topic(TOPIC, segments=segments, entry_buckets=2 * segments)
    await broker.service.create_subscription(TOPIC, "s", initial_position="earliest")
    for producer in HASHES:
        await publish(broker, report, producer, range(4))
    hosted = await hosted_of(broker, 0)
    await (await broker.subscriptions.open(hosted, "s")).ack_cumulative(3)
    report("confirmed", "s", 3)


async def reshape_beside_producers(broker: Broker, report: Report, arm: Arm, act: Callable[[], Awaitable[Any]]) -> None:
    """Producers go on until they meet the seal, and then in the new layout."""
    arm()
    producers = [asyncio.ensure_future(publish(broker, report, p, range(4, 9))) for p in HASHES]
    await act()
    report("done", (await layout_of(broker)).epoch)
    for producer, refused in zip(HASHES, await asyncio.gather(*producers), strict=True):
        await publish(broker, report, producer, range(refused, 11))


async def split(root: str, report: Report, arm: Arm) -> None:
    """One segment becomes two, while producers write."""
    async with running(root) as broker:
        await prepared(broker, report)
        await reshape_beside_producers(broker, report, arm, lambda: broker.service.split_segment(TOPIC, 0))


async def merge(root: str, report: Report, arm: Arm) -> None:
    """Two segments become one, while producers write."""
    async with running(root) as broker:
        await prepared(broker, report, segments=2)
        await reshape_beside_producers(broker, report, arm, lambda: broker.service.merge_segments(TOPIC, 0, 1))


async def undo(root: str, report: Report, arm: Arm) -> None:
    """A child cannot be made: everything is taken back."""
    async with running(root) as broker:
        await prepared(broker, report)
        arm()
        create = broker.hosting.create_segment

        async def fail_at_the_second(spec: Any, *args: Any, **kwargs: Any) -> None:
            await create(spec, *args, **kwargs)
            if spec.name.segment_id == 2:
                raise StorageError("no more")

        broker.hosting.create_segment = fail_at_the_second  # type: ignore[method-assign]
        with contextlib.suppress(StorageError):
            await broker.service.split_segment(TOPIC, 0)
        report("undone")


async def resume(root: str, report: Report, arm: Arm) -> None:
    """The next broker finishes what one has left in the middle, and is killed in its turn."""
    async with running(root) as broker:
        await prepared(broker, report)
        inherit = broker.hosting.inherit

        async def fail(*args: Any, **kwargs: Any) -> None:
            raise StorageError("not now")

        broker.hosting.inherit = fail  # type: ignore[method-assign]
        with contextlib.suppress(EngineError):
            await broker.service.split_segment(TOPIC, 0)
        assert (await layout_of(broker)).change is not None
        broker.hosting.inherit = inherit  # type: ignore[method-assign]
        await broker.service.close()  # the change is not resumed in this process
    arm()
    async with running(root) as broker:
        await settled(broker)
        report("done", 1)


async def prune(root: str, report: Report, arm: Arm) -> None:
    """A sealed segment that is drained goes."""
    async with running(root) as broker:
        await prepared(broker, report)
        await broker.service.split_segment(TOPIC, 0)
        hosted = await hosted_of(broker, 0)
        await (await broker.subscriptions.open(hosted, "s")).ack_cumulative(8)
        report("gone", "0")
        arm()
        assert broker.parts.retention is not None
        await broker.parts.retention.sweep()
        report("pruned")


SCENARIOS = {"split": split, "merge": merge, "undo": undo, "resume": resume, "prune": prune}
BEFORE = {"merge": [0, 1]}  # the active segments of the old layout, where there are several


async def settled(broker: Broker) -> SegmentLayout:
    """The layout when nothing is pending any more."""
    async with asyncio.timeout(RESUMED_S_MAX):
        while (layout := await layout_of(broker)).change is not None:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)
    return layout


async def check(root: str, scenario: str, history: History) -> str:
    """Start the next broker and hold the invariants against the history; which layout it found, "old" or "new".

    Raises AssertionError.
    """
    async with running(root) as broker:
        layout = await settled(broker)
        await check_layout(broker, scenario, history, layout)
        await check_messages(broker, history, layout)
        await check_cursors(broker, scenario, layout)
        await check_rest(broker, scenario)
        return "new" if layout.epoch else "old"


async def check_layout(broker: Broker, scenario: str, history: History, layout: SegmentLayout) -> None:
    """Either the old one or the new one, and the stores agree (G2, G3)."""
    old = BEFORE.get(scenario, [0])
    ids = [s.segment_id for s in layout.active]
    new = [2] if scenario == "merge" else [1, 2]
    assert ids in (old, new), f"the active segments are {ids}"
    if "done" in history.kinds or scenario in ("resume", "prune"):
        assert ids == new, "a change that was confirmed, or stood behind its point of no return, is lost"
    if scenario == "undo":
        assert ids == old
    for info in layout.segments.values():
        assert await exists(broker, info.segment_id), f"{info.segment_id} has no store"
        hosted = await hosted_of(broker, info.segment_id)
        assert hosted.segment.sealed == (not info.active), f"{info.segment_id}: layout and store differ"


async def exists(broker: Broker, segment_id: int) -> bool:
    """Whether the segment has a store."""
    return await broker.store.exists((await broker.service.segment_spec(TOPIC, segment_id)).name)


async def check_messages(broker: Broker, history: History, layout: SegmentLayout) -> None:
    """D1 to D4; then producers that know of nothing send everything again, to today's owners (D3, semantics 24)."""
    for _ in range(2):
        found: dict[tuple[int, int], bytes] = {}
        for segment_id in layout.segments:
            hosted = await hosted_of(broker, segment_id)
            found |= {(segment_id, o): v for o, v in (await read_all(hosted.segment)).items()}
        values = list(found.values())
        assert len(set(values)) == len(values), "D3: twice in the log"
        assert set(values) <= {value(*sent) for sent in history.sent}, "D2: never sent"
        for acked, place in history.acked.items():
            if place[0] in layout.segments:
                assert found.get(tuple(place), None) == value(*acked), f"D1: {acked} at {place}"
        for producer in HASHES:
            sequences = range(1 + max((s for p, s in history.sent if p == producer), default=-1))
            assert await publish(broker, lambda *_: None, producer, sequences) == len(sequences)


async def check_cursors(broker: Broker, scenario: str, layout: SegmentLayout) -> None:
    """Every segment has the subscription: parents where it stood, children at the earliest (C1)."""
    for info in layout.segments.values():
        hosted = await hosted_of(broker, info.segment_id)
        found = await broker.subscriptions.find(hosted, "s")
        assert found is not None, f"{info.segment_id} has no cursor"
        position = {"prune": 8}.get(scenario, 3) if info.segment_id == 0 else 0
        assert found.cursor.position == position


async def swept(broker: Broker, wanted: set[int]) -> set[int]:
    """What is on disk when it is what is wanted, or stays otherwise: the broker's own sweep may be at it right now."""
    on_disk: set[int] = set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while (on_disk := {n.segment_id for n in (await broker.segments.on_disk())[TOPIC]}) != wanted:
                await Orphans(broker.service, broker.segments).sweep(await broker.segments.on_disk())
                await asyncio.sleep(0.01)
    return on_disk


async def check_rest(broker: Broker, scenario: str) -> None:
    """Nothing is left over once it was swept; and what did not take place can be done now."""
    assert broker.parts.retention is not None
    await Orphans(broker.service, broker.segments).sweep(await broker.segments.on_disk())
    if scenario == "prune":
        await broker.parts.retention.sweep()
    layout = await layout_of(broker)
    assert scenario != "prune" or list(layout.segments) == [1, 2]
    on_disk = await swept(broker, set(layout.segments))
    assert on_disk == set(layout.segments), f"on disk are {on_disk}, in the layout {set(layout.segments)}"
    prefix = keys.subscription(TOPIC, "s") + "/cursors/"
    cursors = await broker.metadata.list_keys(prefix, keys.prefix_end(prefix))
    assert {int(k.removeprefix(prefix)) for k in cursors} <= set(layout.segments), "a cursor of a segment that is gone"
    await broker.service.split_segment(TOPIC, layout.active[0].segment_id)
    assert (await layout_of(broker)).epoch == layout.epoch + 1
