"""Retention of slow segments: files end by age, an idle segment's last file goes, and its next offset does not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from engine.errors import EngineError, StorageError
from engine.storage.file.retention import Limits
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from engine.testing.clock import FakeClock
from engine.testing.disk import Fault, SimDisk
from tests.kit.entry_images import entry, values_of
from tests.kit.stores import log_files, make_store, name, read_blocks
from tests.storage.test_retention_faults import TestLease

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Slow:
    """A segment with a producer, and a clock that the test moves."""

    def __init__(self, root: Path | str, **options: object) -> None:
        self.clock = FakeClock()
        self.options = options
        self.root = root
        self.sequence = 0
        self.store: SegmentStore = make_store(root, clock=self.clock)
        self.segment: Segment

    async def open(self) -> Segment:
        """Close it in order, and open it in a new process."""
        await self.store.close()
        self.store = make_store(self.root, clock=self.clock)
        self.segment = await self.store.create(name(), **self.options)  # type: ignore[arg-type]
        return self.segment

    async def send(self, count: int = 1) -> None:
        for _ in range(count):
            await self.segment.append(entry(self.sequence, (b"%d" % self.sequence,)))
            self.sequence += 1

    async def retain(self, retention_ms: int | None, acknowledged: int | None = None, **options: int | None) -> int:
        below = self.segment.durable_offset if acknowledged is None else acknowledged
        return await self.segment.retain(below, retention_ms=retention_ms, **options)  # type: ignore[arg-type]

    @property
    def files(self) -> list[int]:
        """Their first offsets."""
        return [int(path.stem) for path in log_files(self.store, name())]


@pytest.fixture
async def slow(tmp_path: Path) -> Slow:
    slow = Slow(tmp_path)
    await slow.open()
    return slow


async def test_an_idle_segments_last_file_goes_and_its_next_offset_stays(slow: Slow) -> None:
    await slow.send(5)
    assert await slow.retain(1000) == 0, "it is not a minute old"
    slow.clock.advance(61)
    assert await slow.retain(1000) == 1
    assert slow.files == [5]
    assert slow.segment.first_offset == slow.segment.durable_offset == 5
    assert slow.segment.size_bytes < 1000
    assert await slow.retain(1000) == 0
    assert slow.files == [5], "an empty file does not end"
    segment = await slow.open()
    assert segment.first_offset == segment.next_offset == 5
    (place,) = await segment.append(entry(4, (b"4",)))
    assert place.duplicate, "what producers sent is known still"
    await slow.send()
    assert [values_of(block.data) for block in await read_blocks(segment)] == [[(5, b"5")]]
    await slow.store.close()


async def test_files_end_by_age_within_a_32nd_of_the_retention(slow: Slow) -> None:
    for _ in range(96):  # a message every hour, of four days
        await slow.send()
        slow.clock.advance(3600)
        await slow.retain(2 * DAY_MS)
        oldest_ms = slow.clock.time_ms() - 3600_000 * (slow.segment.next_offset - slow.segment.first_offset)
        assert slow.clock.time_ms() - oldest_ms <= 2 * DAY_MS + 2 * DAY_MS / 32 + HOUR_MS
    assert 24 <= len(slow.files) <= 34
    await slow.open()
    assert len(await read_blocks(slow.segment)) >= len(slow.files) - 1
    await slow.store.close()


async def test_what_is_kept_for_ever_stays_in_one_file(slow: Slow) -> None:
    await slow.send(5)
    slow.clock.advance(10_000 * 3600)
    assert await slow.retain(None) == 0
    assert slow.files == [0]
    await slow.store.close()


async def test_files_of_which_nothing_is_acknowledged_end_once_an_hour_at_most(slow: Slow) -> None:
    for _ in range(120):  # a message a minute, for two hours
        await slow.send()
        slow.clock.advance(60)
        await slow.retain(1000, acknowledged=0)
    assert len(slow.files) == 3
    slow.clock.advance(60)
    await slow.retain(1000)
    assert slow.files == [120]
    await slow.store.close()


async def test_a_file_that_alone_holds_the_retention_size_ends(slow: Slow) -> None:
    await slow.send(5)
    slow.clock.advance(61)
    assert await slow.retain(None, retention_bytes=10**6) == 0
    assert slow.files == [0]
    assert await slow.retain(None, acknowledged=0, retention_bytes=0) == 0
    assert slow.files == [0], "nothing of it is acknowledged"
    assert await slow.retain(None, retention_bytes=500) == 0
    assert slow.files == [0, 5]
    assert await slow.retain(None, retention_bytes=0) == 1
    assert slow.files == [5]
    await slow.store.close()


async def test_a_busy_segment_ends_its_file_with_the_next_append(slow: Slow) -> None:
    await slow.send(3)
    slow.clock.advance(61)
    under_way = slow.segment.append(entry(3, (b"3",)))
    assert await slow.retain(DAY_MS, acknowledged=0) == 0
    await slow.segment.retain(3, retention_ms=1000)
    following = slow.segment.append(entry(4, (b"4",)))
    await asyncio.gather(under_way, following)
    assert slow.files == [0, 4]
    assert [value for block in await read_blocks(slow.segment) for _, value in values_of(block.data)] == [
        b"%d" % i for i in range(5)
    ]
    await slow.store.close()


@pytest.mark.parametrize("durability", ["interval", "os"])
async def test_the_file_before_is_synced_also_where_nothing_waits_for_it(tmp_path: Path, durability: str) -> None:
    slow = Slow(tmp_path, durability=durability)
    await slow.open()
    await slow.send(3)
    slow.clock.advance(61)
    assert await slow.retain(1000) == 1
    assert slow.files == [3]
    slow.segment.release()  # the process dies: the log goes on above offsets that may have been assigned
    slow.store = make_store(tmp_path, clock=slow.clock)
    await slow.open()
    assert slow.segment.next_offset == 3 + (1 << 24)
    await slow.send(1)
    slow.clock.advance(61)
    assert await slow.retain(1000) >= 1
    assert await (await slow.open()).append(entry(4)) != []
    assert slow.segment.next_offset == (1 << 24) + 5
    await slow.store.close()


async def test_the_next_owner_of_a_shared_disk_deletes_the_last_file_of_the_one_before(tmp_path: Path) -> None:
    clock = FakeClock()
    for term in (1, 2):
        lease = TestLease()
        lease.term = term
        store = make_store(tmp_path, clock=clock)
        segment = await store.create(name(), term=term, lease=lease)
        if term == 1:
            for i in range(3):
                await segment.append(entry(i))
            clock.advance(61)
        else:
            assert await segment.retain(3, retention_ms=1000) == 1
            assert segment.first_offset == segment.next_offset == 3
        await store.close()
    assert [file for file in os.listdir(store.directory(name())) if file.endswith(".log")] == ["3-2.log"]


async def test_a_file_that_cannot_be_created_leaves_the_old_one(tmp_path: Path) -> None:
    disk = SimDisk(random.Random(3))
    clock = FakeClock()
    store = make_store("/data", disk=disk.mount(), clock=clock)
    segment = await store.create(name())
    await segment.append(entry(0))
    clock.advance(61)
    disk.faults.append(Fault("create"))
    with pytest.raises(StorageError):
        await segment.retain(1, retention_ms=1000)
    assert segment.first_offset == 0
    await segment.append(entry(1))
    clock.advance(61)
    assert await segment.retain(2, retention_ms=1000) == 2
    assert segment.first_offset == segment.next_offset == 2
    await store.close()


@pytest.mark.parametrize(
    ("retention_s", "round_s", "span_s"),
    [(1, 0, 60), (1, 30, 0), (3600, 30, 3600 / 32 - 60), (7 * 86400, 60, 18900 - 120), (100, 60, 0)],
)
def test_a_span_and_two_rounds_are_within_the_precision(retention_s: int, round_s: float, span_s: float) -> None:
    assert Limits(retention_s * 1000, None, round_s).span_s() == span_s


# -- power cuts ------------------------------------------------------------------------------------------------------


class CuttingDisk(SimDisk):
    """Cuts the power, or kills the process, before its n-th operation that changes anything."""

    n = 1 << 30
    kills = False

    def _enter(self, operation: str, path: str, grows: bool = True) -> Fault | None:
        if operation != "open":
            self.n -= 1
            if self.n == 0:
                (self.kill if self.kills else self.crash)()
                return Fault(operation)
        return super()._enter(operation, path, grows)


class Life:
    """What was acknowledged by the log, and by subscriptions, before the end."""

    def __init__(self, disk: CuttingDisk, durability: str) -> None:
        self.disk, self.durability = disk, durability
        self.clock = FakeClock()
        self.stored = 0  # messages 0, 1, … in this order
        self.acknowledged = 0

    async def opened(self) -> Segment:
        store = make_store("/data", disk=self.disk.mount(), clock=self.clock)
        return await store.create(name(), durability=self.durability)

    async def send(self, segment: Segment, count: int) -> None:
        for _ in range(count):
            await segment.append(entry(self.stored, (b"%d" % self.stored,)))
            self.stored += 1

    async def run(self) -> None:
        """Messages; the last file goes; more of them; a file ends by age and stays; an orderly close."""
        segment = await self.opened()
        await self.send(segment, 4)
        self.clock.advance(3600)
        self.acknowledged = 4
        await segment.retain(4, retention_ms=1000)
        assert self.disk.n <= 0 or segment.first_offset == segment.next_offset == 4
        await self.send(segment, 2)
        self.clock.advance(3600)
        await segment.retain(5, retention_ms=1000)
        await self.send(segment, 2)
        await segment.close()

    async def check(self) -> None:
        segment = await self.opened()
        found = [pair for block in await read_blocks(segment) for pair in values_of(block.data)]
        relaxed = self.durability != "fsync"
        values = [value for _, value in found]
        assert len(set(values)) == len(values), "D3: twice in the log"
        if not relaxed or self.disk.kills:
            assert set(values) >= {b"%d" % i for i in range(self.acknowledged, self.stored)}, "D1: lost"
        assert segment.next_offset >= self.stored, "an offset would be assigned again"
        for sequence in range(self.stored + 1):
            (place,) = await segment.append(entry(sequence, (b"%d" % sequence,)))
            if not relaxed or self.disk.kills:
                assert place.duplicate or sequence >= self.stored, f"D3: {sequence} was taken for a new one"
        await segment.close()


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_d1_d3_hold_when_the_power_is_cut_at_any_step_of_ending_and_deleting_the_last_file(
    durability: str, kills: bool
) -> None:
    async def life(n: int, seed: int) -> bool:
        disk = CuttingDisk(random.Random(seed))
        disk.n, disk.kills = n, kills
        one = Life(disk, durability)
        with contextlib.suppress(EngineError, OSError):
            await one.run()
        struck, disk.n = disk.n <= 0, 1 << 30
        await one.check()
        return struck

    for seed in range(1 if kills else 4):
        n = 1
        while asyncio.run(life(n, seed)):
            n += 1
        assert n > 30
