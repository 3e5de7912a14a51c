"""What a process does to a data directory before it is killed, and what must hold in the directory afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
from collections.abc import Callable
from typing import Any

from engine.aio.workers import InlineWorkers, ThreadWorkers, Workers
from engine.clock import SystemClock
from engine.errors import EngineError, NotFoundError, StorageError, UnknownOutcomeError
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.model.hashrange import HashRange
from engine.model.names import TopicName
from engine.storage.cursor.store import CursorStore
from engine.storage.disk.config import StorageConfig
from engine.storage.disk.disk import OsDisk
from engine.storage.segment import Block, Segment
from engine.storage.store import SegmentStore
from tests.kit.entry_images import KEYED, entry, values_of

NAME = TopicName.parse("crash").segment(HashRange.whole(), 0)
PRODUCERS = ("a", "b")
BUCKETS = (0x7FFF, 0xFFFF)
Report = Callable[..., None]


def open_store(root: str, workers: Workers, **config: Any) -> SegmentStore:
    """A store with small files, so that it rolls often, and drops their pages at once."""
    settings = StorageConfig(**{"file_size_max": 4096, "retention_ms": 0, "log_cache_bytes": 1, **config})
    clock = SystemClock()
    metadata = MemoryMetadataStore(clock)
    return SegmentStore(OsDisk(), root, clock=clock, metadata=metadata, executor=workers, config=settings)


def image(producer: str, sequence: int) -> bytes:
    """The entry that this producer sends under this sequence; the two producers use a bucket each."""
    bucket = PRODUCERS.index(producer) * 0x8000
    value = f"{producer}-{sequence}-".encode() * 12
    return entry(sequence, (value,), producer=producer, bucket=(bucket, bucket), flags=KEYED)


def value(producer: str, sequence: int) -> bytes:
    """Its only message."""
    return f"{producer}-{sequence}-".encode() * 12


async def produce(segment: Segment, report: Report, start: int, stop: int) -> None:
    """Both producers at once, one entry in flight each; every acknowledgement and delivery is reported."""

    async def one(producer: str) -> None:
        for sequence in range(start, stop):
            report("sent", producer, sequence)
            try:
                (place,) = await segment.append(image(producer, sequence), producer)
            except EngineError as e:
                report("failed", producer, sequence, type(e).__name__)
                return
            report("acked", producer, sequence, place.first_offset)
            block = segment.read(place.first_offset, 1)
            assert isinstance(block, Block)
            report("delivered", place.first_offset, values_of(block.data)[0][1].decode())

    await asyncio.gather(*(one(p) for p in PRODUCERS))


async def append(root: str, report: Report, workers: Workers) -> None:
    """Create, append, close in order, open again, append."""
    store = open_store(root, workers, file_size_max=1 << 20)
    segment = await store.create(NAME, bucket_ends=BUCKETS)
    await produce(segment, report, 0, 4)
    await store.close()
    store = open_store(root, workers, file_size_max=1 << 20)
    segment = await store.open(NAME, bucket_ends=BUCKETS)
    await produce(segment, report, 4, 7)


async def roll(root: str, report: Report, workers: Workers) -> None:
    """Append over several files."""
    segment = await open_store(root, workers).create(NAME, bucket_ends=BUCKETS)
    await produce(segment, report, 0, 18)


async def seal(root: str, report: Report, workers: Workers) -> None:
    """Append and seal."""
    segment = await open_store(root, workers).create(NAME, bucket_ends=BUCKETS)
    await produce(segment, report, 0, 9)
    report("sealed", await segment.seal())


async def recover(root: str, report: Report, workers: Workers) -> None:
    """Open what a crash left, with a torn tail, and go on."""
    store = open_store(root, workers)
    segment = await store.create(NAME, bucket_ends=BUCKETS)
    if segment.next_offset == 0:
        await produce(segment, report, 0, 8)
        segment.release()
        tear(store.directory(NAME))
    store = open_store(root, workers)
    segment = await store.open(NAME, bucket_ends=BUCKETS)
    await produce(segment, report, 8, 11)


def tear(directory: str) -> None:
    """Leave half an append at the end of the last file."""
    last = max(os.listdir(directory), key=lambda n: int(n.split(".")[0]))
    with open(f"{directory}/{last}", "r+b") as file:
        file.seek(0, 2)
        file.write(image("a", 8)[:-8])


async def stubborn(root: str, report: Report, workers: Workers) -> None:
    """Append over several files while the disk fails now and then; whatever fails is sent again."""
    store = open_store(root, workers)
    segment = await insist(lambda: store.create(NAME, bucket_ends=BUCKETS))

    async def one(producer: str) -> None:
        for sequence in range(10):
            report("sent", producer, sequence)
            (place,) = await insist(lambda s=sequence: segment.append(image(producer, s), producer))
            if place.first_offset >= 0:
                report("acked", producer, sequence, place.first_offset)
            block = segment.read(max(place.first_offset, 0), 1)
            block = block if isinstance(block, Block) else await block
            report("delivered", block.first_offset, values_of(block.data)[0][1].decode())

    await asyncio.gather(*(one(p) for p in PRODUCERS))
    report("sealed", await insist(segment.seal))
    assert segment.next_offset == 20


async def insist(attempt: Callable[[], Any]) -> Any:
    """Do it again while the disk refuses."""
    for _ in range(10):
        try:
            return await attempt()
        except (StorageError, UnknownOutcomeError):
            await asyncio.sleep(0)
    return await attempt()


async def delete(root: str, report: Report, workers: Workers) -> None:
    """Let retention take files, then delete the whole segment."""
    store = open_store(root, workers)
    segment = await store.create(NAME, bucket_ends=BUCKETS)
    await produce(segment, report, 0, 18)
    report("retained", 18)
    await segment.retain(18, SystemClock().time_ms() + 1000)
    report("deleting")
    await store.delete(NAME)
    report("deleted")


async def expire(root: str, report: Report, workers: Workers) -> None:
    """Let retention take the last file of an idle segment, go on, and let a file end by age that stays."""
    segment = await open_store(root, workers, file_size_max=1 << 20).create(NAME, bucket_ends=BUCKETS)
    await produce(segment, report, 0, 2)
    report("retained", 4)
    await segment.retain(4, SystemClock().time_ms() + 120_000)
    assert segment.first_offset == segment.next_offset == 4
    await produce(segment, report, 2, 3)
    await segment.retain(5, SystemClock().time_ms() + 120_000)
    await produce(segment, report, 3, 4)


async def relaxed(root: str, report: Report, workers: Workers) -> None:
    """Durability "os": a killed process loses nothing of what was acknowledged."""
    segment = await open_store(root, workers).create(NAME, bucket_ends=BUCKETS, durability="os")
    await produce(segment, report, 0, 12)


async def cursor(root: str, report: Report, workers: Workers) -> None:
    """Acknowledge, cumulatively and one by one; every confirmed acknowledgement is reported."""
    metadata = await SqliteMetadataStore.open(f"{root}/metadata", clock=SystemClock())
    cursors = CursorStore(metadata)
    one, two = await cursors.create(NAME, "one", 0), await cursors.create(NAME, "two", 0)
    report("confirmed", "one", 0)
    report("confirmed", "two", 0)
    for i in range(1, 9):
        await one.ack_cumulative(i)
        report("confirmed", "one", i)
        await asyncio.gather(two.ack_individual([(2 * i, 2 * i + 1)]), two.ack_cumulative(i))
        report("confirmed", "two", i)
    await cursors.delete(NAME, "one")
    report("gone", "one")


async def check_cursors(root: str, history: History) -> None:
    """C1: a confirmed acknowledgement survives, and no other message is acknowledged."""
    metadata = await SqliteMetadataStore.open(f"{root}/metadata", clock=SystemClock())
    found = dict(await CursorStore(metadata).list(NAME))
    for subscription, position in history.confirmed.items():
        if subscription == "one" and subscription not in found and position == 8:
            continue  # the deletion took effect
        assert position <= found[subscription] <= 2 * 8 + 1, f"C1: {subscription} was at {position}"
    assert "gone" not in history.kinds or "one" not in found, "a deleted cursor came back"
    await metadata.close()


SCENARIOS = {
    "cursor": cursor,
    "append": append,
    "roll": roll,
    "seal": seal,
    "recover": recover,
    "delete": delete,
    "expire": expire,
    "relaxed": relaxed,
    "stubborn": stubborn,
}


class History:
    """What the process reported before it died."""

    def __init__(self, lines: list[list[Any]]) -> None:
        self.sent = {(p, s) for kind, *rest in lines if kind == "sent" for p, s in [rest]}
        self.acked = {(p, s): o for kind, *rest in lines if kind == "acked" for p, s, o in [rest]}
        self.failed = {(p, s): e for kind, *rest in lines if kind == "failed" for p, s, e in [rest]}
        self.delivered = {o: v for kind, *rest in lines if kind == "delivered" for o, v in [rest]}
        self.sealed = next((rest[0] for kind, *rest in lines if kind == "sealed"), None)
        self.retained = next((rest[0] for kind, *rest in lines if kind == "retained"), 0)
        self.confirmed = {s: p for kind, *rest in lines if kind == "confirmed" for s, p in [rest]}
        self.kinds = {line[0] for line in lines}


async def read_all(segment: Segment) -> dict[int, bytes]:
    """Every message from the first to the last, from memory and from files."""
    found: dict[int, bytes] = {}
    offset = segment.first_offset
    while (block := segment.read(offset, 2000)) is not None:
        if not isinstance(block, Block):
            block = await block
        assert block.first_offset == segment.gaps.skip(offset), "messages are missing, and no file says so"
        for at, text in values_of(block.data):
            assert at not in found
            found[at] = text
        offset = block.next_offset
    assert segment.gaps.skip(offset) == segment.durable_offset
    return found


async def check(root: str, history: History) -> None:
    """Reopen and hold the invariants against the history; raises AssertionError."""
    store = open_store(root, InlineWorkers())
    try:
        segment = await store.open(NAME, bucket_ends=BUCKETS)
    except NotFoundError:
        assert not history.acked or "deleting" in history.kinds, "D1: the segment is gone"
        return
    assert "deleted" not in history.kinds, "a deleted segment came back"
    found = await read_all(segment)
    check_contents(found, history, segment.first_offset)
    if history.sealed is not None:
        assert segment.sealed, "D4: no longer sealed"
        assert segment.next_offset == history.sealed, "D4: a sealed end moved"
    segment.release()
    store = open_store(root, InlineWorkers())
    segment = await store.open(NAME, bucket_ends=BUCKETS)
    assert await read_all(segment) == found, "D4: two openings differ"
    await check_resend(segment, history, found)
    await store.close()


def check_contents(found: dict[int, bytes], history: History, first_offset: int) -> None:
    """D1 to D5."""
    legal = {value(*sent) for sent in history.sent}
    for (producer, sequence), offset in history.acked.items():
        if offset >= max(first_offset, history.retained if first_offset else 0):
            assert found.get(offset) == value(producer, sequence), f"D1: {producer} {sequence} at {offset}"
    assert set(found.values()) <= legal, "D2: never sent"
    assert len(set(found.values())) == len(found), "D3: twice in the log"
    for offset, text in history.delivered.items():
        assert offset < first_offset or found.get(offset) == text.encode(), f"D5: {offset} was delivered"
    for message, error in history.failed.items():
        assert error == "UnknownOutcomeError" or value(*message) not in found.values(), f"{message}: stored, {error}"


async def check_resend(segment: Segment, history: History, found: dict[int, bytes]) -> None:
    """D3: a producer that sends everything again adds only what is missing; then the log goes on."""
    if segment.sealed:
        return
    for producer in PRODUCERS:
        present = [s for p, s in history.sent if p == producer and value(p, s) in found.values()]
        for sequence in range(max([s for p, s in history.sent if p == producer], default=-1) + 2):
            (place,) = await segment.append(image(producer, sequence), producer)
            lost = segment.first_offset == 0 and place.duplicate and sequence not in present
            assert not lost, f"{producer} {sequence} was taken for a duplicate"
    everything = await read_all(segment)
    assert len(set(everything.values())) == len(everything), "D3: a resend was stored twice"
    assert found.items() <= everything.items(), "D4: appends changed what was there"


def reporter(pipe: int) -> Report:
    """Reports through a pipe."""

    def report(*line: Any) -> None:
        text = json.dumps(line).encode()
        os.write(pipe, struct.pack("<I", len(text)) + text)

    return report


def run_child(scenario: str, root: str, pipe: int, seed: int) -> None:
    """Run a scenario in this process, reporting through a pipe."""
    random.seed(seed)
    report = reporter(pipe)
    try:
        asyncio.run(SCENARIOS[scenario](root, report, ThreadWorkers(2)))
    except (StorageError, UnknownOutcomeError) as e:
        report("gave up", str(e))
