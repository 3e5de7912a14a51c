"""Cursors: durable when confirmed, never back (C1), saved in groups, fenced."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine._native.format.crc32c import crc32c
from engine.clock import SystemClock
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    FencedError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    UnsupportedError,
)
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import OutcomeUnknownError
from engine.storage.cursor.record import Deferrable, SavePace
from engine.storage.cursor.store import CursorStore
from engine.testing.clock import FakeClock
from engine.testing.metadata import FaultyMetadataStore
from tests.kit.stores import name


async def test_c1_a_confirmed_ack_survives_and_never_moves_back(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore(SystemClock())
    store = CursorStore(metadata)
    cursor = await store.create(name(), "s", 5)
    await cursor.ack_cumulative(9)
    await cursor.ack_cumulative(3)
    assert cursor.position == 9
    await cursor.ack_individual([(12, 14), (20, 21)])
    again = await store.open(name(), "s")
    assert (again.position, again.unacked(0, 22)) == (9, [(9, 12), (14, 20), (21, 22)])
    assert again.backlog(22) == 10
    assert again.backlog(5) == 0
    assert (await store.create(name(), "s", 0)).position == 9, "there already"


async def test_c1_sqlite_after_reopening(tmp_path: Path) -> None:
    metadata = await SqliteMetadataStore.open(str(tmp_path / "m"), clock=SystemClock())
    cursor = await CursorStore(metadata).create(name(), "s", 0)
    await cursor.ack_cumulative(7)
    await metadata.close()
    metadata = await SqliteMetadataStore.open(str(tmp_path / "m"), clock=SystemClock())
    assert (await CursorStore(metadata).open(name(), "s")).position == 7
    await metadata.close()


async def test_acks_during_a_save_are_saved_together() -> None:
    metadata = CountingStore(SystemClock())
    cursor = await CursorStore(metadata).create(name(), "s", 0)
    metadata.puts = 0
    await asyncio.gather(*(cursor.ack_cumulative(i) for i in range(1, 100)))
    assert metadata.puts <= 2
    await cursor.ack_cumulative(50)
    assert metadata.puts <= 2, "nothing new, nothing saved"


async def test_lazy_acks_of_all_cursors_are_saved_together_once_an_interval() -> None:
    metadata = CountingStore(SystemClock())
    pace = HeldPace(0.05)
    store = CursorStore(metadata, pace)
    cursors = [await store.create(name(i), "s", 0) for i in range(3)]
    metadata.puts = 0
    acked = [cursor.ack_cumulative(i, lazy=True) for i in range(1, 50) for cursor in cursors]
    await asyncio.sleep(0)
    assert metadata.puts == 0, "nothing waits"
    assert all(cursor.unsaved for cursor in cursors)
    pace.begin_all()
    await asyncio.gather(*acked)
    assert metadata.puts == len(cursors)
    lazy = cursors[0].ack_individual([(60, 62)], lazy=True)
    await asyncio.gather(cursors[0].settled(), lazy)
    assert (metadata.puts, lazy.done()) == (4, True), "what is waited for takes the deferred one along, at once"
    lazy = cursors[1].ack_cumulative(70, lazy=True)
    await cursors[1].close()
    assert (metadata.puts, lazy.done()) == (5, True), "closing saves what was deferred"
    pace.begin_all()
    await asyncio.sleep(0)
    assert metadata.puts == 5, "saved since"


class HeldPace(SavePace):
    """Begins what was deferred when the test says so."""

    def defer(self, save: Deferrable) -> None:
        self._deferred[save] = None

    def begin_all(self) -> None:
        self._begin()


class CountingStore(MemoryMetadataStore):
    """Counts writes; may lose the answer to one, or refuse it."""

    puts = 0
    lose_answer = lose_write = False

    async def put(self, *args, **kwargs):
        self.puts += 1
        await asyncio.sleep(0)
        if self.lose_write:
            self.lose_write = False
            raise OutcomeUnknownError("lost")
        stat = await super().put(*args, **kwargs)
        if self.lose_answer:
            self.lose_answer = False
            raise OutcomeUnknownError("lost")
        return stat


async def test_an_unknown_outcome_is_resolved_by_reading_back() -> None:
    metadata = CountingStore(SystemClock())
    store = CursorStore(metadata)
    cursor = await store.create(name(), "s", 0)
    metadata.lose_answer = True
    await cursor.ack_cumulative(1)
    metadata.lose_write = True
    await cursor.ack_cumulative(2)
    assert (await store.open(name(), "s")).position == 2
    metadata.lose_answer = True
    assert (await store.create(name(), "other", 4)).position == 4


async def test_c4_a_cursor_saved_by_another_owner_is_fenced() -> None:
    store = CursorStore(MemoryMetadataStore(SystemClock()))
    old = await store.create(name(), "s", 0)
    new = await store.open(name(), "s")
    await new.ack_cumulative(5)
    with pytest.raises(FencedError):
        await old.ack_cumulative(9)
    with pytest.raises(FencedError):
        await old.ack_cumulative(10)
    assert (await store.open(name(), "s")).position == 5


async def test_seek_moves_back_and_forgets() -> None:
    store = CursorStore(MemoryMetadataStore(SystemClock()))
    cursor = await store.create(name(), "s", 0)
    await cursor.ack_individual([(3, 9)])
    await cursor.seek(2)
    assert (cursor.position, cursor.acked_count) == (2, 0)
    assert (await store.open(name(), "s")).position == 2


async def test_store_lists_and_deletes() -> None:
    metadata = MemoryMetadataStore(SystemClock())
    store = CursorStore(metadata)
    for subscription, position in (("a", 4), ("b/ü", 2)):
        await store.create(name(7), subscription, position)
    await store.create(name(8), "a", 1)
    assert await store.list(name(7)) == [("a", 4), ("b/ü", 2)]
    assert await store.min_position(name(7), 99) == 2
    assert await store.min_position(name(9), 99) == 99
    assert await store.delete(name(7), "a")
    assert not await store.delete(name(7), "a")
    with pytest.raises(NotFoundError):
        await store.open(name(7), "a")


async def test_d6_a_damaged_cursor_is_reported() -> None:
    metadata = MemoryMetadataStore(SystemClock())
    store = CursorStore(metadata)
    await (await store.create(name(), "s", 3)).ack_individual([(5, 6)])
    key = keys.cursor(name(), "s")
    record = await metadata.get(key)
    assert record is not None
    for at in range(len(record.value)):
        damaged = bytearray(record.value)
        damaged[at] ^= 1
        await metadata.put(key, bytes(damaged))
        with pytest.raises(CorruptionError, match="cursor"):
            await store.open(name(), "s")


async def test_closed_cursors_and_bad_ranges() -> None:
    store = CursorStore(MemoryMetadataStore(SystemClock()))
    cursor = await store.create(name(), "s", 0)
    with pytest.raises(InvalidArgumentError):
        cursor.ack_individual([(5, 4)])
    saving = cursor.ack_cumulative(3)
    await cursor.close()
    assert saving.done()
    with pytest.raises(AlreadyClosedError):
        await cursor.ack_cumulative(4)
    assert (await store.open(name(), "s")).position == 3


ACKS = st.lists(
    st.one_of(
        st.integers(0, 60).map(lambda p: ("cumulative", p)),
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=3).map(lambda r: ("individual", r)),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(acks=ACKS)
def test_c1_cursor_agrees_with_a_set(acks: list) -> None:
    async def main() -> None:
        store = CursorStore(MemoryMetadataStore(SystemClock()))
        cursor, model = await store.create(name(), "s", 0), set()
        for kind, what in acks:
            if kind == "cumulative":
                model |= set(range(what))
                await cursor.ack_cumulative(what)
            else:
                for start, n in what:
                    model |= set(range(start, start + n))
                await cursor.ack_individual([(start, start + n) for start, n in what])
        for c in (cursor, await store.open(name(), "s")):
            assert [i for i in range(80) if c.is_acked(i)] == sorted(model)
            assert c.position == next(i for i in range(81) if i not in model)
            assert [i for a, b in c.unacked(0, 80) for i in range(a, b)] == [i for i in range(80) if i not in model]
            assert c.backlog(80) == 80 - len(model)

    asyncio.run(main())


async def test_a_cursor_is_made_and_deleted_by_a_store_that_is_unsure() -> None:
    for seed in range(40):
        store = FaultyMetadataStore(MemoryMetadataStore(FakeClock()), random.Random(seed))
        store.unknown_rate = 0.5
        cursors = CursorStore(store)
        cursor = await cursors.create(name(), "s", 7)
        assert cursor.position == 7
        await cursors.delete(name(), "s")
        assert await cursors.list(name()) == []


async def test_a_cursor_of_a_newer_format_is_refused_by_name() -> None:
    store = MemoryMetadataStore(FakeClock())
    cursors = CursorStore(store)
    await cursors.create(name(), "s", 7)
    key = keys.cursor(name(), "s")
    image = bytearray((await store.get(key)).value)
    image[8] = 3
    image[4:8] = crc32c(image[8:]).to_bytes(4, "little")
    await store.put(key, bytes(image))
    with pytest.raises(UnsupportedError, match="format 3"):
        await cursors.open(name(), "s")


class _Lease:
    term = 1
    held = True

    def check(self) -> None:
        assert self.held


async def test_c1_what_a_lease_refuses_is_not_acknowledged_in_memory_either() -> None:
    """Otherwise a position would be reported that is not saved."""
    lease = _Lease()
    cursor = await CursorStore(MemoryMetadataStore(SystemClock())).create(name(), "s", 5, lease)
    lease.held = False
    for refused in (cursor.ack_cumulative(9), cursor.ack_individual([(5, 7), (8, 9)])):
        with pytest.raises(NotOwnerError):
            await refused
    with pytest.raises(NotOwnerError):
        await cursor.seek(7)
    assert (cursor.position, cursor.acked_count) == (5, 0)
    with pytest.raises(NotOwnerError):
        await cursor.settled()


async def test_a_settled_position_is_a_saved_one() -> None:
    metadata = MemoryMetadataStore(SystemClock())
    cursor = await CursorStore(metadata).create(name(), "s", 5)
    acknowledged = cursor.ack_cumulative(9)
    assert not acknowledged.done()
    assert await cursor.settled() == 9
    assert [position for _, position in await CursorStore(metadata).list(name())] == [9]
    await acknowledged


async def test_the_cursors_of_a_segment_are_found_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a few looks for each subscription, however many segments it has."""
    metadata = MemoryMetadataStore(SystemClock())
    cursors = CursorStore(metadata)
    names = ["a", "a-b", "a.b", "a/b", "a0", "b", "größe", "zz"]
    for segment_id in range(40):
        for subscription in names:
            await cursors.create(name().topic.segment(name().hash_range, segment_id), subscription, segment_id)
    await metadata.put(keys.subscription(name().topic, "without"), b"{}")
    looks, list_keys = [], metadata.list_keys

    async def counted(*args: Any) -> list[str]:
        looks.append(args)
        return await list_keys(*args)

    monkeypatch.setattr(metadata, "list_keys", counted)
    found = await cursors.list(name().topic.segment(name().hash_range, 7))
    assert sorted(found) == sorted((subscription, 7) for subscription in names)
    assert len(looks) <= 2 * (len(names) + 1) + 1
