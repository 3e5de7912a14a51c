"""A segment is deleted, and there is another of its name: what the owners of the first do late harms nothing (L1)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from engine.aio.workers import Done, InlineWorkers, Work
from engine.errors import NotFoundError, NotOwnerError
from engine.storage.segment import Segment
from engine.storage.store import SegmentStore
from tests.kit.entry_images import entry
from tests.kit.stores import make_store, name
from tests.storage.test_succession import TestLease, append, files, messages

BORN = 7_000_000_000  # terms are versions of the metadata store: no small numbers


class HeldBack(InlineWorkers):
    """Work that is done when the test says so: a process that was stopped right before."""

    def __init__(self) -> None:
        self.stopped = False
        self._held: list[tuple[Work, Done]] = []

    def post(self, work: Work, done: Done) -> None:
        if self.stopped:
            self._held.append((work, done))
        else:
            super().post(work, done)

    def go_on(self) -> None:
        self.stopped = False
        held, self._held = self._held, []
        for work, done in held:
            super().post(work, done)


async def own(store: SegmentStore, term: int, born: int) -> tuple[Segment, TestLease]:
    lease = TestLease(term, born)
    return await store.create(name(), term=1, lease=lease), lease


async def old_owner(tmp_path: Path, **options: object) -> tuple[SegmentStore, Segment, HeldBack]:
    """Of the first segment, which is about to be deleted."""
    workers = HeldBack()
    store = make_store(tmp_path, workers=workers, **options)
    segment, _ = await own(store, 5, 5)
    return store, segment, workers


async def namesake(tmp_path: Path) -> tuple[SegmentStore, Segment]:
    """The first segment was deleted by another owner; this is another of its name."""
    deleting = make_store(tmp_path)
    await deleting.delete(name(), 6)
    store = make_store(tmp_path)
    return store, (await own(store, BORN, BORN))[0]


def _touch(segment: Segment, file: str) -> None:
    Path(segment.directory, file).touch()


def _names(segment: Segment) -> set[str]:
    return set(os.listdir(segment.directory))


async def read_again(tmp_path: Path) -> list[str]:
    """What the next owner of the second finds."""
    store = make_store(tmp_path)
    segment, _ = await own(store, BORN + 5, BORN)
    found = await messages(segment)
    await append(segment, 100)
    await store.close()
    return found


async def test_l1_a_file_that_an_owner_rolled_to_is_none_of_the_new_segment(tmp_path: Path) -> None:
    old_store, old, workers = await old_owner(tmp_path, file_size_max=4096)
    await append(old, 1, 2, text="old" * 500)
    workers.stopped = True
    late = old.append(entry(3, (b"late" * 1000,)))  # too large for the file: stopped before the next is made
    store, new = await namesake(tmp_path)
    assert await append(new, 1) == [0]
    workers.go_on()
    await late
    assert "2-5.log" in files(store)
    assert await append(new, 2) == [1]
    await store.close()
    await old_store.close()
    assert await read_again(tmp_path) == ["message 1", "message 2"]
    assert "2-5.log" not in files(store), "what is of an earlier segment is removed"


async def test_l1_a_file_of_the_old_segment_does_not_begin_the_new_one(tmp_path: Path) -> None:
    """It comes when the old one is deleted and before the new one has a file."""
    _, old, workers = await old_owner(tmp_path, file_size_max=4096)
    await append(old, 1, 2, text="old" * 500)
    workers.stopped = True
    late = old.append(entry(3, (b"late" * 1000,)))
    await make_store(tmp_path).delete(name(), 6)
    os.makedirs(old.directory, exist_ok=True)  # the owner of the new one has got so far
    workers.go_on()
    await late
    store = make_store(tmp_path)
    with pytest.raises(NotFoundError):
        await store.open(name(), term=1, lease=TestLease(BORN, BORN))
    new, _ = await own(store, BORN, BORN)
    assert (new.first_offset, new.next_offset) == (0, 0)
    assert await append(new, 1) == [0]
    await store.close()
    assert await read_again(tmp_path) == ["message 1"]


async def test_l1_a_deletion_that_comes_late_deletes_nothing_of_the_new_segment(tmp_path: Path) -> None:
    old_store, _, workers = await old_owner(tmp_path)
    await old_store.release(name())
    workers.stopped = True
    deleting = asyncio.ensure_future(old_store.delete(name(), 5))
    for _ in range(3):
        await asyncio.sleep(0)
    store, new = await namesake(tmp_path)
    await append(new, 1, 2)
    await new.inherit([])
    workers.go_on()
    await deleting
    assert await append(new, 3) == [2]
    await store.close()
    assert await read_again(tmp_path) == [f"message {i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("left", ["0-5.log", "0-5.log.new", "inherited-5", "deleted-5"])
async def test_l1_the_mark_of_a_late_deletion_is_not_for_the_new_segment(tmp_path: Path, left: str) -> None:
    """The deleter was killed after writing its mark; opening the new segment completes that deletion, and no more."""
    store, new = await namesake(tmp_path)
    await append(new, 1)
    await new.inherit([])
    await store.close()
    kept = _names(new)
    _touch(new, "deleted-6")
    _touch(new, left)
    assert await store_names(tmp_path) == [name()]
    assert await read_again(tmp_path) == ["message 1"]
    assert _names(new) >= kept
    assert not {left, "deleted-6"} & _names(new)


async def store_names(tmp_path: Path) -> list[object]:
    return list(await make_store(tmp_path).list(name().topic))


async def test_l1_what_the_old_one_inherited_is_unknown_to_the_new_one(tmp_path: Path) -> None:
    """Else the first messages of a producer would be taken for ones that it sent before."""
    parents = make_store(tmp_path / "parents")
    parent = await parents.create(name())
    await append(parent, 1, 2, 3)
    _, old, workers = await old_owner(tmp_path)
    workers.stopped = True
    inheriting = asyncio.ensure_future(old.inherit([parent.dedup_snapshot()]))
    for _ in range(3):
        await asyncio.sleep(0)
    store, new = await namesake(tmp_path)
    workers.go_on()
    await inheriting
    await store.close()
    store = make_store(tmp_path)
    new, _ = await own(store, BORN + 1, BORN)
    assert await append(new, 1, 2) == [0, 1]
    await store.close()


async def test_d3_what_was_inherited_under_a_lease_is_known_to_the_next_owner(tmp_path: Path) -> None:
    parents = make_store(tmp_path / "parents")
    parent = await parents.create(name())
    await append(parent, 1, 2, 3)
    store = make_store(tmp_path)
    first, _ = await own(store, BORN, BORN)
    await first.inherit([parent.dedup_snapshot()])
    await store.close()
    again, _ = await own(make_store(tmp_path), BORN + 3, BORN)
    (place,) = await again.append(entry(3, (b"message 3",)))
    assert place.duplicate


async def test_g3_no_file_is_begun_when_the_lease_ended_while_that_waited(tmp_path: Path) -> None:
    workers = HeldBack()
    workers.stopped = True
    store, lease = make_store(tmp_path, workers=workers), TestLease(5, 5)
    making = asyncio.ensure_future(store.create(name(), term=1, lease=lease))
    for _ in range(3):
        await asyncio.sleep(0)
    lease.held = False
    workers.go_on()
    with pytest.raises(NotOwnerError):
        await making
    assert files(store) == []


async def test_terms_of_any_size_link_the_files(tmp_path: Path) -> None:
    for i, term in enumerate((1, 1 << 31, 1 << 33, (1 << 48) - 2, (1 << 48) - 1)):
        store = make_store(tmp_path)
        segment, _ = await own(store, term, 1)
        assert await append(segment, i) == [i]
        await store.close()
    store = make_store(tmp_path)
    segment = await store.open(name())
    assert await messages(segment) == [f"message {i}" for i in range(5)]
    await store.close()


async def test_a_directory_whose_deletion_an_older_build_began_is_finished(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    segment, _ = await own(store, 3, 0)
    await append(segment, 1)
    await store.close()
    _touch(segment, "deleted")
    again, _ = await own(make_store(tmp_path), 4, 0)
    assert again.next_offset == 0
