"""The sweep of an object store in pieces: what it deletes, and that its memory does not grow with what there is."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.objects import sweep as sweeping
from engine.storage.objects.mentioned import BITS, Mentioned
from engine.storage.objects.ports import ObjectInfo
from engine.storage.objects.records import WalRecord
from engine.storage.objects.references import RolledFile, SegmentObjects
from engine.storage.objects.sweep import INDEX_OBJECTS, Sweep
from engine.testing.clock import FakeClock

CLUSTER, FILES = "c", 50
NOW_MS = 10_000_000


class Lists:
    """An object store as a sweep sees it: `count` files of segments of `FILES` each, of two sessions, in turns.

    "ended" has a record, "gone" has none. Of each segment the last file is not named. They are made as they are listed.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.deleted: list[str] = []
        self.pieces: list[int] = []

    def name(self, at: int) -> str:
        session = ("ended", "gone")[at % 2]
        return f"log/{CLUSTER}/topics/t/n/{at // FILES:06d}/segments/0/{at % FILES:020d}-1-{session}-{at}.log"

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        for at in range(self.count if prefix == f"log/{CLUSTER}" else 0):
            yield ObjectInfo(self.name(at), 1_000, 0)

    async def delete(self, names: Sequence[str]) -> None:
        self.deleted += names
        self.pieces.append(len(names))


async def stores(count: int) -> tuple[Lists, MemoryMetadataStore]:
    lists, metadata = Lists(count), MemoryMetadataStore(FakeClock())
    ended = WalRecord(broker="engine://b", id="0" * 16, trimmed=0, fenced=0, settled=0)
    await metadata.put(keys.wal("ended"), msgspec.json.encode(ended))
    for first in range(0, count, FILES):
        files = tuple(RolledFile(at, at + 1, 1_000, 0, lists.name(first + at)) for at in range(FILES - 1))
        key = f"/topics/t/n/{first // FILES:06d}/segments/0"
        value = msgspec.json.encode(SegmentObjects(files=files))
        await metadata.put(key, value, indexes={INDEX_OBJECTS: key})
    return lists, metadata


async def swept(count: int) -> tuple[Lists, sweeping.Swept, int]:
    """The store after a sweep, what that said, and the bytes that it held at most."""
    lists, metadata = await stores(count)
    sweep = Sweep(lists, metadata, CLUSTER, lambda: NOW_MS)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        found = await sweep.run()
        return lists, found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("DELETED_AT_ONCE", 20), ("UNKNOWN_AT_ONCE", 30), ("NAMES_KEPT", 10), ("_PAGE", 10)):
        monkeypatch.setattr(sweeping, name, count)


@pytest.mark.usefixtures("small_pieces")
async def test_a_sweep_deletes_in_pieces_exactly_what_no_record_names() -> None:
    lists, found, _ = await swept(100 * FILES)
    assert sorted(lists.deleted) == sorted(lists.name(at) for at in range(FILES - 1, 100 * FILES, FILES))
    assert max(lists.pieces) <= 30
    assert (found.files, found.size, len(found.names)) == (100, 100_000, 10)


@pytest.mark.usefixtures("small_pieces")
async def test_the_memory_of_a_sweep_does_not_grow_with_objects_and_segments() -> None:
    (_, _, few), (_, _, many) = [await swept(count * FILES) for count in (10, 110)]
    assert abs(many - few) < 200_000, "a name has more than 100 bytes: 4,900 of them would be more"
    assert BITS // 8 < many < BITS // 8 + 1_000_000


async def test_shared_objects_above_a_number_wait_for_a_later_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """R18: the second sweep that finds an object without a name deletes it; it remembers a few at a time."""
    monkeypatch.setattr(sweeping, "UNSHARED_MAX", 3)
    lists, metadata = await stores(0)
    lists.name = lambda at: f"log/{CLUSTER}/shared/{at:012d}-ended.logs"  # type: ignore[method-assign]
    lists.count, deleted, unshared = 8, [], frozenset[str]()

    async def left(prefix: str, after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in Lists.list(lists, prefix):
            if info.name not in lists.deleted:
                yield info

    lists.list = left  # type: ignore[method-assign]
    for _ in range(5):
        sweep = Sweep(lists, metadata, CLUSTER, lambda: NOW_MS, unshared=unshared)  # type: ignore[arg-type]
        await sweep.run()
        unshared = sweep.unshared
        deleted.append(len(lists.deleted))
    assert deleted == [0, 3, 6, 8, 8]
    assert not unshared


def test_what_was_added_is_mentioned_and_of_other_names_few_are() -> None:
    named = Mentioned(7)
    named.update(f"name {number}" for number in range(20_000))
    assert all(f"name {number}" in named for number in range(20_000))
    assert sum(f"other {number}" in named for number in range(20_000)) < 20
