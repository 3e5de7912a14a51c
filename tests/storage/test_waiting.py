"""Waiters for an offset are called when it is durable, a bounded number of them in each turn of the loop."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import pytest

from engine._native.serve.waiters import WOKEN_PER_TURN, Waiters
from engine.testing.loop import run_virtual
from tests.reference.tails_reference import PlainWaiters


def test_a_crowd_is_woken_some_in_each_turn_and_in_order():
    async def play() -> None:
        waiters, woken = Waiters(), []
        for i in range(10 * WOKEN_PER_TURN):
            waiters.add(0, partial(woken.append, i))
        waiters.wake(1)
        for turn in range(11):
            assert woken == [*range(turn * WOKEN_PER_TURN)]
            await asyncio.sleep(0)

    run_virtual(play())


def test_who_waits_for_more_goes_on_waiting_and_who_comes_meanwhile_is_woken_after_the_others():
    async def play() -> None:
        waiters, woken = Waiters(), []
        for i in range(2 * WOKEN_PER_TURN):
            waiters.add(0, partial(woken.append, i))
        waiters.add(1, partial(woken.append, "later"))
        waiters.wake(1)
        waiters.add(1, partial(woken.append, "late"))
        for _ in range(3):
            await asyncio.sleep(0)
        assert woken == [*range(2 * WOKEN_PER_TURN)]
        waiters.wake()
        await asyncio.sleep(0)
        assert woken == [*range(2 * WOKEN_PER_TURN), "later", "late"]

    run_virtual(play())


def test_who_has_given_up_takes_nobody_elses_place():
    async def play() -> None:
        waiters, woken = Waiters(), []
        gone = [waiters.add(0, partial(woken.append, "gone")) for _ in range(3 * WOKEN_PER_TURN)]
        waiters.add(0, partial(woken.append, "there"))
        waiters.wake()
        for one in gone:
            one.cancel()
        await asyncio.sleep(0)
        assert woken == ["there"]

    run_virtual(play())


def test_an_error_of_one_keeps_no_other_from_being_called():
    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
        waiters, woken = Waiters(), []
        waiters.add(0, lambda: 1 // 0)
        waiters.add(0, partial(woken.append, 1))
        waiters.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert woken == [1]

    errors: list[Any] = []
    run_virtual(play())
    assert [type(error) for error in errors] == [ZeroDivisionError]


@pytest.mark.parametrize("seed", range(10))
def test_the_model_calls_the_same_in_each_turn(seed: int):
    async def play() -> None:
        rng, woken, expected = random.Random(seed), [], []
        waiters, model = Waiters(), PlainWaiters(WOKEN_PER_TURN)
        there: list[tuple[Any, int]] = []
        for i in range(2_000):
            step = rng.random()
            if step < 0.5:
                offset, done = rng.randrange(20), rng.random() < 0.1
                there.append((waiters.add(offset, partial(woken.append, i), done=done), i))
                model.add(offset, i, done=done)
            elif step < 0.6 and there:
                one, number = there.pop(rng.randrange(len(there)))
                one.cancel()
                model.cancel(number)
            elif step < 0.75:
                below = rng.choice((None, rng.randrange(20)))
                waiters.wake(below)
                model.wake(below)
            else:
                await asyncio.sleep(0)
                expected += model.turn()
                assert woken == expected

    run_virtual(play())


async def test_one_that_joins_again_while_it_is_called_is_called_in_the_next_turn():
    waiters, calls = Waiters(), [0]

    def again() -> None:
        calls[0] += 1
        waiters.add(0, again, done=True)

    waiters.add(0, again, done=True)
    for turn in range(1, 5):
        await asyncio.sleep(0)
        assert calls[0] == turn
