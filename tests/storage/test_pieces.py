"""Images that are larger than a record: stored in pieces, all of them or none, whatever is interrupted."""

from __future__ import annotations

from typing import Any

import pytest
from pyroaring import BitMap64

from engine.errors import CorruptionError, FencedError, NotFoundError
from engine.limits import METADATA_VALUE_SIZE_MAX
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import OutcomeUnknownError, Record, Stat
from engine.storage.cursor.cursor import Cursor
from engine.storage.cursor.pieces import PIECE_SIZE, write
from engine.storage.cursor.store import CursorStore
from engine.storage.cursor.visibility import Visibility
from engine.testing.clock import FakeClock
from tests.kit.stores import name
from tests.storage.test_visibility import SEGMENT, Lease

KEY = keys.cursor(name(), "s")


def holes() -> BitMap64:
    """Offsets that take three pieces as a record."""
    offsets = BitMap64(range(0, 13 << 20, 2))
    assert 2 * PIECE_SIZE < METADATA_VALUE_SIZE_MAX + 1 < len(offsets.serialize()) <= 4 * PIECE_SIZE
    return offsets - BitMap64([0])


HOLES = holes()


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore(FakeClock())


async def large_cursor(store: MemoryMetadataStore, lease: Lease | None = None) -> Cursor:
    cursor = await CursorStore(store).create(name(), "s", 0, lease)
    await cursor.ack_set(HOLES)
    return cursor


async def pieces_in(store: MemoryMetadataStore) -> list[Record]:
    return await store.list(f"{KEY}/", keys.prefix_end(f"{KEY}/"))


async def test_a_cursor_with_many_holes_is_saved_in_pieces_and_read_back(store: MemoryMetadataStore) -> None:
    cursor = await large_cursor(store)
    found = await pieces_in(store)
    assert len(found) == 4
    assert all(len(record.value) <= PIECE_SIZE for record in found)
    again = await CursorStore(store).open(name(), "s")
    assert (again.position, again.acked_count) == (cursor.position, len(HOLES))
    assert await CursorStore(store).reach(name()) == (cursor.acked_end, "s")


async def test_each_image_replaces_the_pieces_of_the_one_before(store: MemoryMetadataStore) -> None:
    cursor = await large_cursor(store)
    before = {record.key for record in await pieces_in(store)}
    await cursor.ack_individual([(15 << 20, (15 << 20) + 1)])
    after = {record.key for record in await pieces_in(store)}
    assert after
    assert not after & before
    await cursor.ack_cumulative(16 << 20)
    assert await pieces_in(store) == [], "a small image needs none"
    assert (await CursorStore(store).open(name(), "s")).position == 16 << 20


async def test_pieces_go_with_their_cursor_and_with_its_reopening(store: MemoryMetadataStore) -> None:
    await large_cursor(store)
    opened = await CursorStore(store).open(name(), "s")
    await opened.ack_cumulative(16 << 20)
    assert await pieces_in(store) == [], "also where another object wrote them"
    await large_cursor(store)
    assert await CursorStore(store).delete(name(), "s")
    assert await pieces_in(store) == []
    with pytest.raises(NotFoundError):
        await CursorStore(store).open(name(), "s")


async def test_pieces_without_a_head_change_nothing(store: MemoryMetadataStore) -> None:
    """A crash between the pieces and the head: the image in force is the one before."""
    cursor = await CursorStore(store).create(name(), "s", 7)
    record = await store.get(KEY)
    assert record is not None
    await write(store, KEY, bytes(3 * PIECE_SIZE), record.stat.version)
    assert len(await pieces_in(store)) == 3
    assert (await CursorStore(store).open(name(), "s")).position == cursor.position == 7


async def test_a_missing_piece_is_damage(store: MemoryMetadataStore) -> None:
    await large_cursor(store)
    await store.delete((await pieces_in(store))[1].key)
    with pytest.raises(CorruptionError, match="pieces"):
        await CursorStore(store).open(name(), "s")


class Interrupted(MemoryMetadataStore):
    """`lost`: how many of the next puts happen, and are not confirmed."""

    lost = 0

    async def put(self, *args: Any, **kwargs: Any) -> Stat:
        stat = await super().put(*args, **kwargs)
        if self.lost:
            self.lost -= 1
            raise OutcomeUnknownError("lost")
        return stat


async def test_unknown_outcomes_of_pieces_and_head_are_resolved() -> None:
    store = Interrupted(FakeClock())
    cursor = await CursorStore(store).create(name(), "s", 0)
    store.lost = 4
    await cursor.ack_set(HOLES)
    names = {record.key.split("/")[-2] for record in await pieces_in(store)}
    assert len(names) == 1
    await cursor.ack_cumulative(1)
    assert (await CursorStore(store).open(name(), "s")).acked_count == cursor.acked_count
    assert {record.key.split("/")[-2] for record in await pieces_in(store)}.isdisjoint(names)


async def test_a_new_owner_claims_an_image_in_pieces_and_fences_the_one_before(store: MemoryMetadataStore) -> None:
    before = await large_cursor(store, Lease(3))
    after = await CursorStore(store).open(name(), "s", Lease(4))
    assert after.acked_count == len(HOLES)
    with pytest.raises(FencedError):
        await before.ack_individual([(15 << 20, (15 << 20) + 2)])
    await after.ack_individual([(15 << 20, (15 << 20) + 1)])
    assert (await CursorStore(store).open(name(), "s", Lease(5))).acked_count == len(HOLES) + 1
    assert len({record.key.split("/")[-2] for record in await pieces_in(store)}) == 2, "those of a fenced owner stay"


async def test_visibility_with_many_aborted_ranges_is_saved_in_pieces(store: MemoryMetadataStore) -> None:
    visibility = await Visibility.open(store, SEGMENT, lambda: 20 << 20)
    await visibility.mark()
    visibility.hidden |= HOLES
    await visibility.save()
    record = await store.get(keys.visibility(SEGMENT))
    assert record is not None
    assert len(record.value) < 100
    again = await Visibility.open(store, SEGMENT, lambda: 20 << 20)
    assert again.hidden == HOLES
    assert await Visibility.reach(store, SEGMENT) == 20 << 20
