"""Permits in bytes: in order, within a time, from a bounded queue; and none is ever lost (PIP-442)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.aio.memory_limiter import AsyncDualMemoryLimiter, LimitType, MemoryLimit
from engine.aio.semaphore import AsyncSemaphore, Permit
from engine.errors import InvalidArgumentError, MemoryLimitError, PermitQueueFullError, PermitTimeoutError
from engine.testing.loop import run_virtual

LIMIT = 100
TIMEOUT_S = 25.0


def pool(**options: Any) -> AsyncSemaphore:
    return AsyncSemaphore(LIMIT, **{"timeout": TIMEOUT_S, "queue_max": 10, **options})


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run it on virtual time: waiting costs nothing, and is exact."""

    def run() -> None:
        run_virtual(test())

    run.__name__ = test.__name__
    return run


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def start(work: Coroutine[Any, Any, Permit]) -> asyncio.Task[Permit]:
    return asyncio.ensure_future(work)


@virtual
async def test_first_come_first_served_also_past_one_that_is_too_large():
    semaphore = pool()
    held = await semaphore.acquire(80)
    large, small = start(semaphore.acquire(50)), start(semaphore.acquire(10))
    await settle()
    assert not large.done()
    assert not small.done()  # it would fit, but is not first
    assert semaphore.acquire_nowait(10) is None
    semaphore.release(held)
    assert ((await large).size, (await small).size, semaphore.used) == (50, 10, 60)


@virtual
async def test_waiting_ends_with_a_typed_error_after_its_time():
    semaphore = pool()
    held = await semaphore.acquire(LIMIT)
    began = asyncio.get_running_loop().time()
    with pytest.raises(PermitTimeoutError, match="100 of 100 are in use"):
        await semaphore.acquire(1)
    assert asyncio.get_running_loop().time() - began == TIMEOUT_S
    assert semaphore.statistics().timeouts == 1
    semaphore.release(held)
    assert semaphore.used == semaphore.queue == 0


@virtual
async def test_who_finds_the_queue_full_is_told_at_once():
    semaphore = pool(queue_max=1)
    held, _ = await semaphore.acquire(90), await semaphore.acquire(10)
    waiting = start(semaphore.acquire(1))
    await settle()
    with pytest.raises(PermitQueueFullError, match="1 wait already"):
        await semaphore.acquire(1)
    with pytest.raises(PermitQueueFullError):
        await semaphore.update(held, 91)
    assert (held.size, semaphore.statistics().refusals) == (90, 2)
    semaphore.release(held)
    await waiting


@virtual
async def test_one_that_gives_up_lets_those_behind_it_through():
    semaphore = pool()
    await semaphore.acquire(50)
    large, small = start(semaphore.acquire(60)), start(semaphore.acquire(50))
    await settle()
    large.cancel()
    assert (await small).size == 50
    assert large.cancelled()


@virtual
async def test_cancelled_in_the_very_moment_of_the_grant_it_goes_back():
    semaphore = pool()
    held = await semaphore.acquire(LIMIT)
    waiting = start(semaphore.acquire(70))
    await settle()
    semaphore.release(held)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert semaphore.used == 0


@virtual
async def test_a_permit_shrinks_at_once_and_somebody_else_gets_the_rest():
    semaphore = pool()
    held = await semaphore.acquire(LIMIT)
    waiting = start(semaphore.acquire(60))
    await settle()
    assert await semaphore.update(held, 40) is held
    assert ((await waiting).size, semaphore.used) == (60, 100)


@virtual
async def test_who_holds_and_grows_goes_before_who_holds_nothing():
    """Otherwise the two would wait for each other: the first for what the second holds, that one for its turn."""
    semaphore = pool()
    held = await semaphore.acquire(40)
    waiting = start(semaphore.acquire(70))
    await settle()
    await semaphore.update(held, 90)
    semaphore.release(held)
    assert (await waiting).size == 70


@virtual
async def test_those_who_all_hold_and_grow_do_not_wait_for_each_other():
    semaphore = pool()
    permits = [await semaphore.acquire(50) for _ in range(2)]
    began = asyncio.get_running_loop().time()
    growing = [start(semaphore.update(permit, 80)) for permit in permits]
    await settle()
    assert [one.done() for one in growing] == [True, False]
    assert semaphore.used == 130  # by one growth
    semaphore.release(permits[0])
    await growing[1]
    assert (semaphore.used, asyncio.get_running_loop().time()) == (80, began)


@virtual
async def test_a_growth_that_fails_leaves_the_permit_as_it_was():
    semaphore = pool()
    held, other = await semaphore.acquire(10), await semaphore.acquire(80)
    with pytest.raises(PermitTimeoutError):
        await semaphore.update(held, 30)
    assert (held.size, semaphore.used) == (10, 90)
    semaphore.release(held)
    semaphore.release(other)
    assert semaphore.used == 0


@virtual
async def test_more_than_there_is_waits_until_nothing_else_is_out():
    semaphore = pool()
    held = await semaphore.acquire(1)
    waiting = start(semaphore.acquire(5 * LIMIT))
    await settle()
    assert not waiting.done()
    semaphore.release(held)
    assert ((await waiting).size, semaphore.used) == (5 * LIMIT, 5 * LIMIT)
    assert semaphore.acquire_nowait(1) is None


@virtual
async def test_limits_change_while_permits_are_out():
    semaphore = pool()
    held = await semaphore.acquire(LIMIT)
    semaphore.resize(10)
    waiting = start(semaphore.acquire(5))
    await settle()
    assert not waiting.done()
    semaphore.resize(LIMIT + 5)
    assert (await waiting).size == 5
    semaphore.release(held)
    assert semaphore.used == 5


@virtual
async def test_releasing_twice_is_releasing_once_and_the_permit_is_of_no_use_any_more():
    semaphore = pool()
    held = await semaphore.acquire(10)
    semaphore.release(held)
    semaphore.release(held)
    assert semaphore.used == 0
    with pytest.raises(InvalidArgumentError, match="released"):
        await semaphore.update(held, 5)
    with pytest.raises(InvalidArgumentError, match="0 or more"):
        await semaphore.acquire(-1)


@virtual
async def test_a_permit_that_is_released_while_it_waits_to_grow():
    semaphore = pool()
    held, other = await semaphore.acquire(10), await semaphore.acquire(80)
    growing = start(semaphore.update(held, 50))
    await settle()
    semaphore.release(held)
    semaphore.release(other)
    with pytest.raises(InvalidArgumentError, match="released"):
        await growing
    assert semaphore.used == semaphore.queue == 0


@virtual
async def test_waiting_times_are_counted_by_class():
    semaphore = pool()
    held = await semaphore.acquire(LIMIT)
    waiting = start(semaphore.acquire(1))
    await asyncio.sleep(0.2)
    semaphore.release(held)
    await waiting
    waits = semaphore.statistics().waits
    at_most = dict(zip(waits.bounds, waits.counts, strict=True))
    assert (at_most[1.0], at_most[100.0], at_most[250.0], waits.count) == (1, 1, 2, 2)
    assert waits.total == pytest.approx(200)


@virtual
async def test_the_two_pools_are_independent():
    limiter = AsyncDualMemoryLimiter(MemoryLimit(LIMIT, TIMEOUT_S, 1), MemoryLimit(10, 1.0, 0), "lists")
    heap = await limiter.acquire(LIMIT, LimitType.HEAP_MEMORY)
    direct = await limiter.acquire(10, LimitType.DIRECT_MEMORY)
    with pytest.raises(MemoryLimitError, match="lists_direct"):
        await limiter.acquire(1, LimitType.DIRECT_MEMORY)
    assert {kind.value: s.used for kind, s in limiter.statistics().items()} == {"heap": LIMIT, "direct": 10}
    assert (await limiter.update(heap, 20)).size == 20
    limiter.release(heap)
    limiter.release(direct)
    assert [s.used for s in limiter.statistics().values()] == [0, 0]


# -- whatever happens, in whatever order -------------------------------------------------------------------------------

STEP = st.one_of(
    st.tuples(st.just("acquire"), st.integers(0, 130)),
    st.tuples(st.just("try"), st.integers(0, 130)),
    st.tuples(st.just("update"), st.integers(0, 30), st.integers(0, 130)),
    st.tuples(st.just("release"), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 3.0])),
    st.tuples(st.just("resize"), st.integers(1, 200)),
    st.tuples(st.just("disconnect"), st.integers(0, 2)),
)


class Users:
    """Requests of three connections, each a task that holds what it got until it is told otherwise."""

    def __init__(self, semaphore: AsyncSemaphore) -> None:
        self.semaphore = semaphore
        self.tasks: list[asyncio.Task[None]] = []
        self.permits: list[Permit] = []

    async def _ask(self, size: int) -> None:
        self.permits.append(await self.semaphore.acquire(size))

    async def _update(self, permit: Permit, size: int) -> None:
        try:
            await self.semaphore.update(permit, size)
        except InvalidArgumentError:
            assert permit.released

    def do(self, what: str, *numbers: Any) -> None:
        number = numbers[0]
        if what == "acquire":
            self.tasks.append(asyncio.ensure_future(self._ask(number)))
        elif what == "try" and (permit := self.semaphore.acquire_nowait(number)) is not None:
            self.permits.append(permit)
        elif what == "update" and self.permits:
            permit = self.permits[number % len(self.permits)]
            self.tasks.append(asyncio.ensure_future(self._update(permit, numbers[1])))
        elif what == "release" and self.permits:
            self.semaphore.release(self.permits[number % len(self.permits)])
        elif what == "cancel" and self.tasks:
            self.tasks[number % len(self.tasks)].cancel()
        elif what == "resize":
            self.semaphore.resize(number)
        elif what == "disconnect":  # all that one connection waits for and holds
            for task in self.tasks[number::3]:
                task.cancel()
            for permit in self.permits[number::3]:
                self.semaphore.release(permit)

    def check(self) -> None:
        held = sum(permit.size for permit in self.permits if not permit.released)
        assert self.semaphore.used >= held  # what was granted and not yet noticed is out too
        assert self.semaphore.queue <= self.semaphore.queue_max


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_after_any_interleaving_all_permits_return(steps: list[tuple[Any, ...]]):
    async def play() -> None:
        semaphore = AsyncSemaphore(LIMIT, timeout=2.0, queue_max=4)
        users = Users(semaphore)
        for what, *numbers in steps:
            users.do(what, *numbers)
            if what == "wait":
                await asyncio.sleep(numbers[0])
            users.check()
        await settle()
        held = [permit.size for permit in users.permits if not permit.released]
        assert semaphore.used == sum(held)
        resized = any(step[0] == "resize" for step in steps)
        assert semaphore.used <= semaphore.limit + max(held, default=0) or resized
        for permit in users.permits:
            semaphore.release(permit)
        await asyncio.sleep(3.0)  # every waiting request is served, or has timed out
        results = await asyncio.gather(*users.tasks, return_exceptions=True)
        for result in results:
            assert result is None or isinstance(result, MemoryLimitError | asyncio.CancelledError), result
        for permit in users.permits:
            semaphore.release(permit)
        assert semaphore.used == semaphore.queue == 0
        assert semaphore.acquire_nowait(semaphore.limit) is not None  # full again

    run_virtual(play())
