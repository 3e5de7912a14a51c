"""Of many things that mostly end in time, those that do not are called, with one timer for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engine.client.net.deadlines import LATE_S_MAX, Deadlines
from engine.testing.loop import run_virtual

Called = list[tuple[str, float]]


def called(use: Callable[[Deadlines[str]], object], for_s: float = 100.0) -> Called:
    """Who is called, and when, after `use` at 0."""
    found: Called = []

    async def body() -> None:
        loop = asyncio.get_running_loop()
        use(Deadlines[str](lambda item: found.append((item, loop.time()))))
        await asyncio.sleep(for_s)

    run_virtual(body())
    return found


def test_each_is_called_once_and_not_before_its_time() -> None:
    def use(deadlines: Deadlines[str]) -> None:
        for item, at in (("c", 30.0), ("a", 10.0), ("b", 20.0)):
            deadlines.add(item, at)

    assert called(use) == [("a", pytest.approx(10.0)), ("b", pytest.approx(20.0)), ("c", pytest.approx(30.0))]


def test_what_has_ended_is_not_called() -> None:
    def use(deadlines: Deadlines[str]) -> None:
        for item, at in (("a", 10.0), ("b", 20.0), ("c", 30.0)):
            deadlines.add(item, at)
        deadlines.discard("a")
        deadlines.discard("a")
        deadlines.discard("c")
        assert len(deadlines) == 1

    assert called(use) == [("b", pytest.approx(20.0))]


def test_those_close_together_come_in_few_turns() -> None:
    def use(deadlines: Deadlines[str]) -> None:
        for number in range(100):
            deadlines.add(str(number), 10.0 + number * LATE_S_MAX / 50)

    found = called(use)
    assert [item for item, _ in found] == [str(number) for number in range(100)]
    times = sorted({at for _, at in found})
    assert len(times) == 3
    assert all(10.0 + int(item) * LATE_S_MAX / 50 <= at + 0.01 for item, at in found)


def test_what_is_called_may_come_again() -> None:
    found: Called = []

    async def body() -> None:
        loop = asyncio.get_running_loop()

        def over(item: str) -> None:
            found.append((item, loop.time()))
            if len(found) < 3:
                deadlines.add(item, loop.time() + 10.0)

        deadlines = Deadlines[str](over)
        deadlines.add("a", 10.0)
        await asyncio.sleep(100.0)

    run_virtual(body())
    assert found == [("a", pytest.approx(10.0)), ("a", pytest.approx(20.0)), ("a", pytest.approx(30.0))]


def test_nobody_is_called_once_all_is_cleared() -> None:
    def use(deadlines: Deadlines[str]) -> None:
        deadlines.add("a", 10.0)
        deadlines.clear()
        deadlines.clear()
        deadlines.add("b", 20.0)

    assert called(use) == [("b", pytest.approx(20.0))]
