"""The event loop on virtual time."""

from __future__ import annotations

import asyncio
import time

import pytest

from engine.testing.clock import FakeClock, LoopClock
from engine.testing.loop import DeadlockError, LivelockError, VirtualLoop, run_virtual


def test_time_jumps_instead_of_passing():
    async def body():
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.sleep(86_400)
        return loop.time() - before

    start = time.monotonic()
    assert run_virtual(body(), 1e6) == pytest.approx(86_400)
    assert time.monotonic() - start < 60


def test_timers_fire_in_their_order():
    async def body():
        seen = []

        async def at(delay):
            await asyncio.sleep(delay)
            seen.append(delay)

        await asyncio.gather(*(at(d) for d in (3, 1, 2, 1.5, 0)))
        return seen

    assert run_virtual(body()) == [0, 1, 1.5, 2, 3]


def test_a_deadlock_names_who_waits():
    async def forever():
        await asyncio.get_running_loop().create_future()

    async def body():
        task = asyncio.get_running_loop().create_task(forever(), name="stuck one")
        await task

    with pytest.raises(DeadlockError, match="stuck one: forever"):
        run_virtual(body())


def test_a_livelock_is_noticed():
    async def body():
        for _ in range(10**9):
            await asyncio.sleep(0)

    with pytest.raises(LivelockError, match="without time passing"):
        run_virtual(body())


def test_a_time_limit_is_kept():
    async def body():
        for _ in range(10**9):
            await asyncio.sleep(1)

    with pytest.raises(LivelockError, match="virtual seconds"):
        run_virtual(body(), time_limit=100)


def test_timeouts_work():
    async def body():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        return asyncio.get_running_loop().time()

    assert run_virtual(body()) == pytest.approx(5)


def test_executors_run_inline():
    async def body():
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)

    run_virtual(body())


def test_problems_are_kept_for_the_caller():
    loop = VirtualLoop()

    async def body():
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    loop.run(body())
    assert isinstance(loop.problems[0]["exception"], ZeroDivisionError)


def test_leftover_tasks_are_cancelled():
    ended = []

    async def background():
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append(True)

    async def body():
        global keep
        keep = asyncio.get_running_loop().create_task(background())
        await asyncio.sleep(1)

    run_virtual(body())
    assert ended == [True]


def test_the_loop_clock_follows_and_skews():
    loop = VirtualLoop()
    clock = LoopClock(loop, epoch_ms=1_000)

    async def body():
        await asyncio.sleep(2)
        assert clock.monotonic() == pytest.approx(2)
        assert clock.time_ms() == 3_000
        clock.skew_ms = -500
        assert clock.time_ms() == 2_500

    loop.run(body())


def test_the_fake_clock_is_moved_by_hand():
    clock = FakeClock(time_ms=1_000)
    clock.advance(1.5)
    assert (clock.time_ms(), clock.monotonic()) == (2_500, 1.5)
    clock.jump(-2_000)
    assert (clock.time_ms(), clock.monotonic()) == (500, 1.5)
    with pytest.raises(ValueError, match="jump"):
        clock.advance(-1)
