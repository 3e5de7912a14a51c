"""Steps of many come one after the other, with room for others between."""

from __future__ import annotations

import asyncio
import itertools

from engine.aio.pace import REST_S, STEPS, Pace
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


def test_after_some_steps_there_is_a_rest_and_after_each_while_others_are_busy():
    async def play(busy: bool, steps: int) -> list[float]:
        pace, loop, times = Pace(lambda: busy, steps=steps), asyncio.get_running_loop(), []
        for _ in range(2 * STEPS):
            await pace.turn()
            times.append(loop.time())
        return [round((after - before) / REST_S) for before, after in itertools.pairwise(times)]

    assert run_virtual(play(False, STEPS)) == [0] * (STEPS - 1) + [1] + [0] * (STEPS - 1)
    assert run_virtual(play(True, STEPS)) == [1] * (2 * STEPS - 1)
    assert run_virtual(play(False, 0)) == [0] * (2 * STEPS - 1)
    assert run_virtual(play(True, 0)) == [1] * (2 * STEPS - 1)


def test_no_step_begins_without_room():
    async def play() -> None:
        rooms: list[str] = []
        pace = Pace(room=lambda: bool(rooms))
        waits = [pace.join() for _ in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert [len(pace), *(w.done() for w in waits)] == [2, False, False]
        rooms.append("one")
        waits[0].add_done_callback(lambda _: rooms.clear())
        pace.go_on()
        for _ in range(10):
            await asyncio.sleep(0)
        assert [len(pace), *(w.done() for w in waits)] == [1, True, False]
        rooms.append("another")
        pace.go_on()
        await waits[1]

    run_virtual(play())
