"""Steps of many come one after the other, with room for others between."""

from __future__ import annotations

import asyncio

from engine.aio.pace import Pace
from engine.testing.loop import run_virtual


def test_in_the_order_in_which_they_came_and_with_others_between():
    async def play() -> list[str]:
        pace, done = Pace(), []

        async def step(name: str) -> None:
            await pace.turn()
            done.append(name)

        async def other() -> None:
            while "c" not in done:
                done.append("-")
                await asyncio.sleep(0)

        await asyncio.gather(step("a"), step("b"), step("c"), other())
        return done

    done = run_virtual(play())
    assert [name for name in done if name != "-"] == ["a", "b", "c"]
    assert all("-" in done[done.index(one) : done.index(two)] for one, two in ("ab", "bc"))


def test_who_gave_up_is_passed_over():
    async def play() -> None:
        pace = Pace()
        first, second = (asyncio.ensure_future(pace.turn()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second
        await pace.turn()
        assert first.cancelled()

    run_virtual(play())
