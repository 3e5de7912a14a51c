"""Owners that follow each other on one directory, the earlier of them not always knowing that its time is over."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from engine.aio.workers import Done, InlineWorkers, Work, call
from engine.errors import FencedError, NotOwnerError, SegmentSealedError, StorageError
from engine.storage.disk.disk import OsDisk
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from engine.testing.disk import Fault, SimDisk
from engine.testing.loop import run_virtual
from tests.kit.entry_images import entry, values_of
from tests.kit.stores import make_store, name, read_blocks


class TestLease:
    """A lease that ends when the test says so."""

    __test__ = False

    def __init__(self, term: int, born: int = 0) -> None:
        self.term = term
        self.born = born
        self.held = True

    def check(self) -> None:
        if not self.held:
            raise NotOwnerError(f"term {self.term} is over")


async def own(store: SegmentStore, term: int) -> tuple[Segment, TestLease]:
    lease = TestLease(term)
    return await store.create(name(), term=term, lease=lease), lease


async def append(segment: Segment, *sequences: int, text: str = "message") -> list[int]:
    places = [segment.append(entry(s, (f"{text} {s}".encode(),))) for s in sequences]
    return [(await place)[0].first_offset for place in places]


async def messages(segment: Segment) -> list[str]:
    return [value.decode() for block in await read_blocks(segment) for _, value in values_of(block.data)]


def files(store: SegmentStore) -> list[str]:
    return sorted(p.name for p in Path(store.directory(name())).glob("*.log"))


async def test_d1_a_new_owner_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    for term in range(1, 5):
        store = make_store(tmp_path)
        segment, _ = await own(store, term)
        assert await append(segment, 2 * term, 2 * term + 1) == [2 * term - 2, 2 * term - 1]
        assert await messages(segment) == [f"message {i}" for i in range(2, 2 * term + 2)]
        await store.close()
    assert files(store) == ["0-1.log", "2-2.log", "4-3.log", "6-4.log"]


async def test_g3_what_a_zombie_writes_is_never_read(tmp_path: Path) -> None:
    """The old owner still writes, into the file it has open and into a new one, after the new one has begun."""
    old_store, new_store = make_store(tmp_path), make_store(tmp_path)
    old, _ = await own(old_store, 1)
    await append(old, 1, 2)
    new, _ = await own(new_store, 2)
    await append(old, 3, 4, text="late")
    assert await append(new, 3) == [2]
    await append(old, 5, text="late")
    await old_store.close()  # with a closing block that says something else
    assert await messages(new) == ["message 1", "message 2", "message 3"]
    await new_store.close()
    again, _ = await own(make_store(tmp_path), 3)
    assert await messages(again) == ["message 1", "message 2", "message 3"]
    assert await append(again, 4) == [3]


async def test_g3_a_file_that_a_zombie_rolls_to_is_no_part_of_the_log(tmp_path: Path) -> None:
    old_store, new_store = make_store(tmp_path, file_size_max=4096), make_store(tmp_path)
    old, _ = await own(old_store, 1)
    await append(old, 1, text="early" * 1000)
    new, _ = await own(new_store, 2)
    await append(new, 2)
    await append(old, 2, text="late" * 1000)  # rolls to a file of the same first offset
    await append(old, 3, text="late")
    assert files(new_store) == ["0-1.log", "1-1.log", "1-2.log", "2-1.log"]
    await old_store.close()
    await new_store.close()
    third = make_store(tmp_path)
    again, _ = await own(third, 3)
    assert await messages(again) == ["early" * 1000 + " 1", "message 2"]
    assert "2-1.log" not in files(third), "what is no part of the log is removed"


async def test_g3_a_zombie_that_takes_over_late_is_passed_over(tmp_path: Path) -> None:
    """Term 2 found less than term 3, and begins its file when term 3 has long been writing."""
    first, second, third = make_store(tmp_path), make_store(tmp_path), make_store(tmp_path)
    one, _ = await own(first, 1)
    await append(one, 1, 2)
    await first.close()
    two, _ = await own(second, 2)  # begins no file yet: what it found was closed in order
    three, _ = await own(third, 3)
    await append(three, 3, 4)
    await append(two, 3, text="late")
    await second.close()
    await third.close()
    again, _ = await own(make_store(tmp_path), 4)
    assert await messages(again) == [f"message {i}" for i in (1, 2, 3, 4)]


async def test_g3_a_seal_that_comes_too_late_seals_nothing(tmp_path: Path) -> None:
    old_store, new_store = make_store(tmp_path), make_store(tmp_path)
    old, _ = await own(old_store, 1)
    await append(old, 1)
    new, _ = await own(new_store, 2)
    await append(new, 2)
    await old.seal(1)
    await new_store.close()
    again, _ = await own(make_store(tmp_path), 3)
    assert not again.sealed
    assert await append(again, 3) == [2]


async def test_d4_a_sealed_segment_stays_as_it_was_sealed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment, _ = await own(store, 1)
    await append(segment, 1)
    assert await segment.seal(1) == 1
    await store.close()
    again, _ = await own(make_store(tmp_path), 2)
    assert again.sealed
    assert await again.seal(2) == 1
    with pytest.raises(SegmentSealedError):
        await append(again, 2)


async def test_an_owner_that_wrote_nothing_can_seal(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await append((await own(store, 1))[0], 1)
    await store.close()
    again, _ = await own(make_store(tmp_path), 2)
    assert await again.seal(2) == 1
    last, _ = await own(make_store(tmp_path), 3)
    assert last.sealed
    assert await messages(last) == ["message 1"]


async def test_g3_nothing_is_confirmed_once_the_lease_may_be_over(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment, lease = await own(store, 1)
    await append(segment, 1)
    late = segment.append(entry(2, (b"late",)))
    lease.held = False
    with pytest.raises(NotOwnerError):
        await late
    with pytest.raises(NotOwnerError):
        await append(segment, 3)
    with pytest.raises(NotOwnerError):
        await segment.seal(1)
    assert segment.durable_offset == 1
    await store.close()


async def test_d3_producers_are_known_to_the_next_owner(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    await append((await own(store, 1))[0], 1, 2)
    again_store = make_store(tmp_path)
    again, _ = await own(again_store, 2)
    (place,) = await again.append(entry(2, (b"message 2",)))
    assert place.duplicate
    assert place.first_offset == 1


async def test_a_failed_write_under_a_lease_cuts_nothing_off() -> None:
    """Another owner may have found whole entries in what was left of it."""

    async def body() -> None:
        disk = SimDisk(random.Random(3))
        store = make_store("/data", disk=disk.mount())
        segment, _ = await own(store, 1)
        await append(segment, 1)
        truncated = disk.statistics.calls.get("truncate", 0)
        disk.faults.append(Fault("write", path=".log"))
        with pytest.raises(StorageError):
            await append(segment, 2)
        assert disk.statistics.calls.get("truncate", 0) == truncated
        assert await append(segment, 2) == [1]
        await store.close()
        again, _ = await own(make_store("/data", disk=disk.mount()), 2)
        assert await messages(again) == ["message 1", "message 2"]

    await asyncio.to_thread(run_virtual, body())


class HeldUp(InlineWorkers):
    """Work whose end is told when the test says so."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.go_on.set()

    def post(self, work: Work, done: Done) -> None:
        async def tell() -> None:
            await self.go_on.wait()
            done(*result)

        result = call(work)
        self._telling = asyncio.get_running_loop().create_task(tell())


async def test_g3_a_zombie_whose_sync_fails_begins_no_file() -> None:
    """The next owner goes by what the zombie has written; a file from where that was durable would hide it."""

    async def body() -> None:
        disk, held_up = SimDisk(random.Random(3)), HeldUp()
        segment, lease = await own(make_store("/data", disk=disk.mount("a"), workers=held_up), 1)
        await append(segment, 1)
        disk.faults.append(Fault("sync", path=".log"))
        held_up.go_on.clear()
        late = segment.append(entry(2, (b"message 2",)))
        await asyncio.sleep(1)  # its write is there, and its sync fails
        disk.faults.clear()
        store = make_store("/data", disk=disk.mount("b"))
        again, _ = await own(store, 2)
        found = await messages(again)
        assert await append(again, 3) == [len(found)]
        lease.held = False
        held_up.go_on.set()
        with pytest.raises(NotOwnerError):
            await late
        await store.close()
        third, _ = await own(make_store("/data", disk=disk.mount("b")), 3)
        assert await messages(third) == [*found, "message 3"]

    await asyncio.to_thread(run_virtual, body())


async def test_24_what_parents_knew_is_confirmed_under_a_lease_only(tmp_path: Path) -> None:
    """A newer owner may have opened the segment before the file was there."""
    held_up = HeldUp()
    segment, lease = await own(make_store(tmp_path, workers=held_up), 1)
    held_up.go_on.clear()
    inheriting = asyncio.ensure_future(segment.inherit([b""]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    lease.held = False
    held_up.go_on.set()
    with pytest.raises(NotOwnerError):
        await inheriting


async def test_one_process_goes_on_with_a_directory_that_was_shared(tmp_path: Path) -> None:
    for term in (1, 2):
        store = make_store(tmp_path)
        await append((await own(store, term))[0], term)
        await store.close()
    for sequence in (3, 4):
        store = make_store(tmp_path, disk=OsDisk())
        segment = await store.open(name(), term=9)
        assert await append(segment, sequence) == [sequence - 1]
        await store.close()
    again, _ = await own(make_store(tmp_path), 10)
    assert await messages(again) == [f"message {i}" for i in (1, 2, 3, 4)]
    assert files(make_store(tmp_path)) == ["0-1.log", "1-2.log"]


async def test_l1_a_cursor_belongs_to_the_last_owner() -> None:
    store = make_store("/data", disk=SimDisk(random.Random(1)).mount())
    old = await store.cursors.create(name(), "s", 0, TestLease(1))
    await old.ack_cumulative(3)
    new = await store.cursors.open(name(), "s", TestLease(2))
    assert new.position == 3
    with pytest.raises(FencedError):
        await old.ack_cumulative(4)
    with pytest.raises(FencedError):
        await store.cursors.open(name(), "s", TestLease(1))
    await new.ack_cumulative(5)
    assert (await store.cursors.open(name(), "s")).position == 5


async def test_c4_no_acknowledgement_begins_under_a_lease_that_may_be_over() -> None:
    store = make_store("/data", disk=SimDisk(random.Random(1)).mount())
    lease = TestLease(1)
    cursor = await store.cursors.create(name(), "s", 0, lease)
    lease.held = False
    with pytest.raises(NotOwnerError):
        await cursor.ack_cumulative(1)
