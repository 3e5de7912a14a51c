"""Callers of work that ends in one turn of the loop go on a few in each turn."""

from __future__ import annotations

import asyncio

import pytest

from engine.aio.staggered import Staggered


def futures(count: int) -> list[asyncio.Future[int]]:
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


async def test_a_few_go_on_in_each_turn_in_the_order_of_their_ends():
    callers, work, went = Staggered(3), futures(8), list[tuple[int, int]]()
    turn = 0

    async def caller(number: int) -> None:
        went.append((await callers.shielded(work[number]), turn))

    tasks = [asyncio.ensure_future(caller(number)) for number in range(8)]
    await asyncio.sleep(0)
    for number in (7, *range(7)):
        work[number].set_result(number)
    while not all(task.done() for task in tasks):
        turn += 1
        assert turn < 20
        await asyncio.sleep(0)
    assert [number for number, _ in went] == [7, *range(7)]
    sizes = [[at for _, at in went].count(one) for one in range(turn + 1)]
    assert [size for size in sizes if size] == [3, 3, 2]


async def test_a_few_wait_no_longer_than_with_a_plain_shield():
    callers = Staggered(2)
    for _ in range(3):
        work = futures(2)
        waiting = [callers.shielded(one) for one in work]
        for one in work:
            one.set_result(1)
        await asyncio.sleep(0)
        assert [one.done() for one in waiting] == [True, True]
        await asyncio.sleep(0)


async def test_errors_and_cancellations_are_passed_on():
    callers = Staggered(1)
    failed, cancelled, ended = futures(3)
    waiting = [callers.shielded(one) for one in (failed, cancelled)]
    failed.set_exception(ValueError("it"))
    cancelled.cancel()
    with pytest.raises(ValueError, match="it"):
        await waiting[0]
    with pytest.raises(asyncio.CancelledError):
        await waiting[1]
    ended.set_result(3)
    assert callers.shielded(ended) is ended


async def test_a_cancelled_caller_leaves_the_work_and_takes_no_turn_of_others():
    callers, work = Staggered(1), futures(2)
    waiting = [callers.shielded(one) for one in work]
    waiting[0].cancel()
    await asyncio.sleep(0)
    for one in work:
        one.set_result(1)
    assert await waiting[1] == 1
    assert not work[0].cancelled()
