"""Snapshots that are put in order some records at a time: what changes meanwhile is in them as it would be at once."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.metadata import snapshots, watches
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import EventKind, Watch
from engine.metadata.table import Table
from engine.testing.clock import FakeClock

KEYS = [f"/n/{i:02}" for i in range(40)]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SORTED_AT_ONCE", 3)
    monkeypatch.setattr(watches, "_READ_AT_ONCE", 2)


class Reader:
    """The knowledge of a reader that follows a watch from its snapshot on."""

    def __init__(self, watch: Watch) -> None:
        self.copy: dict[str, bytes] = {}
        self.snapshot: list[str] = []
        self.begun = asyncio.Event()
        self.complete = asyncio.Event()
        self.awaited = ""
        self.known = asyncio.Event()
        self.last = 0
        self.task = asyncio.ensure_future(self.read(watch))
        self.task.add_done_callback(lambda _: self.ended())

    def ended(self) -> None:
        """Nothing waits for a reader that has failed."""
        for event in (self.begun, self.complete, self.known):
            event.set()

    async def knows(self, key: str) -> None:
        self.awaited = key
        if key not in self.copy:
            await self.known.wait()

    async def read(self, watch: Watch) -> None:
        async for event in watch:
            self.begun.set()
            assert event.version >= self.last
            self.last = event.version
            if event.kind is EventKind.SNAPSHOT_END:
                self.complete.set()
            elif event.record is not None:
                self.copy[event.key] = event.record.value
                if event.key == self.awaited:
                    self.known.set()
                if not self.complete.is_set():
                    assert event.key not in self.snapshot
                    self.snapshot.append(event.key)
            else:
                assert self.complete.is_set()
                del self.copy[event.key]


def indexed(rng: random.Random) -> dict[str, str | tuple[str, ...]]:
    return rng.choice(({}, {"i": "b"}, {"i": "x"}, {"i": ("a", "b", "c")}, {"i": ("c", "x")}))


def is_in(store: MemoryMetadataStore, key: str) -> bool:
    row = store._table.rows.get(key)
    own = () if row is None else row.indexes.get("i", ())
    return any("a" <= one < "d" for one in own)


async def filled() -> MemoryMetadataStore:
    store = MemoryMetadataStore(FakeClock())
    for key in KEYS:
        await store.put(key, b"")
    return store


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("by_index", [False, True])
@pytest.mark.parametrize("seed", range(30))
async def test_whatever_changes_while_a_snapshot_is_read(by_index: bool, seed: int) -> None:
    rng, store = random.Random(seed), MemoryMetadataStore(FakeClock())
    for key in rng.sample(KEYS, len(KEYS)):
        await store.put(key, b"0", indexes=indexed(rng))
    there = {key for key in KEYS if is_in(store, key)} if by_index else set(KEYS)
    watch = store.watch_index("i", "a", "d") if by_index else store.watch("/n/")
    version = store.version
    reader, stayed = Reader(watch), set(there)
    for i in range(150):
        key = rng.choice((*KEYS, "/n/new", "/n/newer"))
        if rng.random() < 0.4:
            await store.delete(key)
        else:
            await store.put(key, str(i).encode(), indexes=indexed(rng))
        if not is_in(store, key) if by_index else store._table.rows.get(key) is None:
            stayed.discard(key)
        if rng.random() < 0.3:
            await asyncio.sleep(0)
        if rng.random() < 0.1:
            assert watch.owed >= 0
    await reader.complete.wait()
    assert stayed <= set(reader.snapshot) <= there
    assert reader.last >= version
    await store.put("/n/last", b"", indexes={"i": "a"})
    await reader.knows("/n/last")
    present = {key: row.record.value for key, row in store._table.rows.items() if not by_index or is_in(store, key)}
    assert reader.copy == present
    assert watch.owed == 0
    await store.close()
    await reader.task


@pytest.mark.usefixtures("small_steps")
async def test_others_have_their_turn_while_a_snapshot_is_put_in_order_and_read() -> None:
    store = await filled()
    reader, turns = Reader(store.watch("/n/")), 0
    while not reader.begun.is_set():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= len(KEYS) // 3
    while not reader.complete.is_set():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= len(KEYS) // 3 + len(KEYS) // 2
    assert reader.snapshot == KEYS
    await store.close()
    await reader.task


@pytest.mark.usefixtures("small_steps")
async def test_a_reader_that_gives_up_in_the_middle_misses_nothing_when_it_goes_on() -> None:
    store = await filled()
    watch = store.watch("/n/")
    assert watch.owed == len(KEYS) + 1
    shown: list[str] = []
    while len(shown) < len(KEYS):
        asking = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        if asking.done():
            shown.append(asking.result().key)
        else:
            asking.cancel()
            await asyncio.wait([asking])
        assert watch.owed == len(KEYS) + 1 - len(shown)
    assert shown == KEYS
    await store.close()


@pytest.mark.usefixtures("small_steps")
async def test_a_watch_that_is_closed_in_the_middle_ends() -> None:
    store = await filled()
    watch = store.watch("/n/")
    asking = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    watch.close()
    with pytest.raises(StopAsyncIteration):
        await asking
    assert watch.owed == 0
    await store.close()


def test_an_empty_snapshot_is_in_order() -> None:
    snapshot = snapshots.Snapshot(Table(version=7), [])
    assert snapshot.in_order
    assert (snapshot.take(), snapshot.version, len(snapshot)) == (None, 7, 0)
