"""The metadata store that misbehaves; when it does not, it passes as a store."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import TimeoutError as EngineTimeoutError
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import Delete, EventKind, OutcomeUnknownError, Put
from engine.testing.clock import FakeClock, LoopClock
from engine.testing.loop import run_virtual
from engine.testing.metadata import FaultyMetadataStore


def wrapped(seed=0):
    inner = MemoryMetadataStore(FakeClock())
    return FaultyMetadataStore(inner, random.Random(seed)), inner


def test_without_faults_everything_passes_through():
    async def body():
        store, _ = wrapped()
        session = await store.session()
        await store.put("/a", b"1", session=session, indexes={"i": "k"})
        record = await store.put_sequence("/s", b"2")
        assert (await store.get("/a")).value == b"1"
        assert await store.list_keys("", "z") == ["/a", record.key]
        assert [r.value for r in await store.list("", "z")] == [b"1", b"2"]
        assert [k for k, _ in await store.list_index("i", "", "z")] == ["k"]
        assert await store.delete(record.key)
        assert await store.delete_range("", "z") == 1
        assert await store.write_all([Delete("/a"), Put("/b", b"")]) == [False, (await store.get("/b")).stat]
        assert store.version == 5
        await store.close()

    run_virtual(body())


def test_unknown_outcomes_are_half_done():
    async def body():
        store, inner = wrapped(5)
        store.unknown_rate = 0.5
        unknown, done = 0, 0
        for i in range(400):
            try:
                await store.put(f"/{i}", b"")
            except OutcomeUnknownError:
                unknown += 1
                done += await inner.get(f"/{i}") is not None
            else:
                assert await inner.get(f"/{i}") is not None
        assert 150 < unknown < 250
        assert 0.3 < done / unknown < 0.7

    run_virtual(body())


def test_of_several_writes_with_an_unknown_outcome_all_are_done_or_none():
    async def body():
        store, inner = wrapped(5)
        store.unknown_rate = 1.0
        done = set()
        for i in range(20):
            with pytest.raises(OutcomeUnknownError):
                await store.write_all([Put(f"/{i}/{at}", b"") for at in range(3)])
            done.add(len(await inner.list_keys(f"/{i}/", f"/{i}0")))
        assert done == {0, 3}

    run_virtual(body())


def test_a_partition_times_out():
    async def body():
        store, inner = wrapped()
        store.partition()
        with pytest.raises(EngineTimeoutError):
            await store.get("/a")
        with pytest.raises(OutcomeUnknownError):
            await store.put("/a", b"")
        assert await inner.get("/a") is None
        asyncio.get_running_loop().call_later(3, store.heal)
        await store.put("/a", b"")
        assert await inner.get("/a") is not None

    run_virtual(body())


def test_watches_are_late_and_complete():
    async def body():
        store, inner = wrapped()
        store.delay_s_max = 1.0
        await inner.put("/w/1", b"")
        watch = store.watch("/w/")
        events = aiter(watch)
        assert [(await anext(events)).kind for _ in range(2)] == [EventKind.PUT, EventKind.SNAPSHOT_END]
        store.partition()
        waiting = asyncio.ensure_future(anext(events))
        await inner.put("/w/2", b"")
        await asyncio.sleep(100)
        assert not waiting.done()
        store.heal()
        assert (await waiting).key == "/w/2"
        rest = asyncio.ensure_future(anext(events, None))
        await asyncio.sleep(2)
        watch.close()
        assert await rest is None

    run_virtual(body())


def test_m3_the_sessions_of_a_killed_broker_expire():
    async def body():
        root = MemoryMetadataStore(LoopClock(asyncio.get_running_loop()))
        left, right = root.client(), root.client()
        session = await left.session(timeout=5)
        await left.put("/e", b"left", session=session)
        await left.put("/kept", b"left")
        watch = aiter(right.watch("/e"))
        assert [(await anext(watch)).kind for _ in range(2)] == [EventKind.PUT, EventKind.SNAPSHOT_END]
        before = asyncio.get_running_loop().time()
        left.abandon()
        left.abandon()
        assert await right.get("/e") is not None
        assert (await anext(watch)).kind is EventKind.DELETE
        assert asyncio.get_running_loop().time() - before == pytest.approx(5)
        assert await right.list_keys("", "z") == ["/kept"]
        await left.close()
        await right.close()
        assert await root.get("/kept") is not None

    run_virtual(body())
