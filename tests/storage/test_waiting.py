"""Waiters for an offset are woken when it is durable, a bounded number of them in each turn of the loop."""

from __future__ import annotations

import asyncio

from engine.storage.waiting import WOKEN_PER_TURN, Waiters
from engine.testing.loop import run_virtual


def test_a_crowd_is_woken_some_in_each_turn_and_in_order():
    async def play() -> None:
        waiters = Waiters()
        crowd = [waiters.add(0, done=False) for _ in range(10 * WOKEN_PER_TURN)]
        waiters.wake(1)
        for turn in range(1, 11):
            assert [f.done() for f in crowd] == [i < turn * WOKEN_PER_TURN for i in range(len(crowd))]
            await asyncio.sleep(0)

    run_virtual(play())


def test_who_waits_for_more_goes_on_waiting_and_who_comes_meanwhile_is_woken_after_the_others():
    async def play() -> None:
        waiters, woken = Waiters(), []
        for i in range(2 * WOKEN_PER_TURN):
            waiters.add(0, done=False).add_done_callback(lambda _, i=i: woken.append(i))
        later = waiters.add(1, done=False)
        waiters.wake(1)
        waiters.add(1, done=False).add_done_callback(lambda _: woken.append("late"))
        waiters.wake()
        async with asyncio.timeout(1):
            await later
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert woken == [*range(2 * WOKEN_PER_TURN), "late"]

    run_virtual(play())


def test_who_has_given_up_takes_nobody_elses_place():
    async def play() -> None:
        waiters = Waiters()
        gone = [waiters.add(0, done=False) for _ in range(3 * WOKEN_PER_TURN)]
        there = waiters.add(0, done=False)
        for future in gone:
            future.cancel()
        waiters.wake()
        assert there.done()

    run_virtual(play())
