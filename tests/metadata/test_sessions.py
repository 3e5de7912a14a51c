"""Sessions whose holder must be heard of: M3, and that the holder knows first."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import AlreadyClosedError, EngineError
from engine.metadata.memory import MemoryMetadataStore
from engine.metadata.store import OutcomeUnknownError
from engine.testing.clock import LoopClock
from engine.testing.loop import run_virtual
from engine.testing.metadata import FaultyMetadataStore


def store(*, leases: bool = True) -> MemoryMetadataStore:
    return MemoryMetadataStore(LoopClock(asyncio.get_running_loop()), leases=leases)


def test_m3_a_session_that_is_not_refreshed_ends_with_its_records() -> None:
    async def body() -> None:
        root = store()
        session = await root.client().session(5.0)
        await root.put("/a", b"", session=session)
        await asyncio.sleep(4.9)
        assert await root.get("/a") is not None
        await asyncio.sleep(0.2)
        assert await root.get("/a") is None
        with pytest.raises(AlreadyClosedError):
            await session.refresh()
        with pytest.raises(AlreadyClosedError):
            await root.put("/a", b"", session=session)

    run_virtual(body())


def test_a_session_lives_as_long_as_it_is_refreshed() -> None:
    async def body() -> None:
        root, loop = store(), asyncio.get_running_loop()
        handle = root.client()
        session = await handle.session(5.0)
        await root.put("/a", b"", session=session)
        for _ in range(10):
            await asyncio.sleep(4)
            await session.refresh()
            assert session.deadline == loop.time() + 5
        assert await root.get("/a") is not None
        await session.close()
        assert await root.get("/a") is None
        await asyncio.sleep(10)

    run_virtual(body())


def test_without_leases_a_session_lives_as_long_as_its_handle() -> None:
    async def body() -> None:
        root = store(leases=False)
        handle = root.client()
        session = await handle.session(5.0)
        assert session.deadline == float("inf")
        await root.put("/a", b"", session=session)
        await asyncio.sleep(100)
        await session.refresh()
        assert await root.get("/a") is not None
        await handle.close()
        assert await root.get("/a") is None

    run_virtual(body())


def test_the_holder_knows_before_the_store_lets_anybody_else_in() -> None:
    """Also when the line between them is slow, and then cut."""

    async def body() -> None:
        root, loop = store(), asyncio.get_running_loop()
        far = FaultyMetadataStore(root.client(), random.Random(1))
        far.delay_s_max = 1.0
        session = await far.session(5.0)
        await far.put("/a", b"", session=session)
        for _ in range(20):
            await session.refresh()
            assert session.deadline <= loop.time() + 5
        far.partition()
        with pytest.raises((EngineError, OutcomeUnknownError)):
            await session.refresh()
        deadline = session.deadline
        while await root.get("/a") is not None:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.01)
        assert loop.time() >= deadline
        far.heal()
        with pytest.raises(AlreadyClosedError):
            await session.refresh()

    run_virtual(body())


def test_an_abandoned_session_ends_when_it_was_not_heard_of_for_its_timeout() -> None:
    async def body() -> None:
        root, loop = store(), asyncio.get_running_loop()
        handle = root.client()
        session = await handle.session(5.0)
        await root.put("/a", b"", session=session)
        await asyncio.sleep(3)
        handle.abandon()
        while await root.get("/a") is not None:  # noqa: ASYNC110 - time is virtual
            await asyncio.sleep(0.1)
        assert 5 <= loop.time() < 5.2

    run_virtual(body())
