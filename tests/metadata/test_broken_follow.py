"""Following a store: whatever happens while no watch runs is heard of when one runs again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from engine.errors import StorageError
from engine.metadata.following import follow
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Event, EventKind, MetadataStore
from engine.testing.clock import FakeClock
from engine.testing.loop import run_virtual
from engine.testing.metadata import FaultyMetadataStore


class Follower:
    """Keeps the keys below a prefix, as it hears of them."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.known: dict[str, int] = {}
        self.events: list[tuple[EventKind, str]] = []
        watch = partial(metadata.watch, "/n/")
        self.task = asyncio.ensure_future(follow(metadata, watch, self.heard, self.known.keys, what="the keys"))

    def heard(self, event: Event) -> None:
        self.events.append((event.kind, event.key))
        if event.record is not None:
            assert event.version >= self.known.get(event.key, 0)
            self.known[event.key] = event.version
        elif event.kind is EventKind.DELETE:
            assert event.version >= self.known.pop(event.key, 0)


def following(test: Callable[[FaultyMetadataStore, Follower], object]) -> Callable[[], None]:
    """Run it with a store that has two keys, and what was heard of them."""

    async def body() -> None:
        store = FaultyMetadataStore(MemoryMetadataStore(FakeClock()), random.Random(1))
        for key in ("/n/a", "/n/b"):
            await store.put(key, b"")
        follower = Follower(store)
        await asyncio.sleep(1)
        assert list(follower.known) == ["/n/a", "/n/b"]
        await test(store, follower)  # type: ignore[misc]
        await store.close()
        await asyncio.wait_for(follower.task, 1)

    def run() -> None:
        run_virtual(body())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@following
async def test_what_is_gone_when_a_watch_runs_again_is_said_to_be(store: FaultyMetadataStore, f: Follower) -> None:
    store.break_watches()
    await store.delete("/n/a")
    await store.put("/n/c", b"")
    await asyncio.sleep(1)
    assert sorted(f.known) == ["/n/b", "/n/c"]
    assert f.events.count((EventKind.DELETE, "/n/a")) == 1
    assert f.events[-1] == (EventKind.SNAPSHOT_END, "")


@following
async def test_what_was_deleted_and_made_anew_is_there(store: FaultyMetadataStore, f: Follower) -> None:
    store.break_watches()
    await store.delete("/n/a")
    await store.put("/n/a", b"new")
    await asyncio.sleep(1)
    assert f.known["/n/a"] == store.version
    assert (EventKind.DELETE, "/n/a") not in f.events


@following
async def test_what_is_younger_than_the_snapshot_is_not_said_to_be_gone(
    store: FaultyMetadataStore, f: Follower
) -> None:
    """Its holder has read it, and the watch has it still to say."""
    store.break_watches()
    store.delay_s_max = 0.5
    await asyncio.sleep(0.6)
    stat = await store.put("/n/c", b"")
    f.known["/n/c"] = stat.version
    await asyncio.sleep(5)
    assert (EventKind.DELETE, "/n/c") not in f.events
    assert f.known["/n/c"] == stat.version


@following
async def test_a_read_that_fails_begins_once_more(store: FaultyMetadataStore, f: Follower) -> None:
    store.break_watches()
    await store.delete("/n/b")
    await asyncio.sleep(0.4)
    get, failures = store.get, [1, 1]

    async def failing(key: str) -> object:
        if failures:
            failures.pop()
            store.break_watches()
            raise StorageError("not now")
        return await get(key)

    store.get = failing  # type: ignore[method-assign,assignment]
    await asyncio.sleep(5)
    assert sorted(f.known) == ["/n/a"]


@following
async def test_every_broken_watch_is_followed_by_another(store: FaultyMetadataStore, f: Follower) -> None:
    for i in range(5):
        store.break_watches()
        await store.put(f"/n/{i}", b"")
        await store.delete(f"/n/{i - 1}")
        await asyncio.sleep(1)
        assert sorted(f.known) == [f"/n/{i}", "/n/a", "/n/b"]
