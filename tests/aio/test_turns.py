"""Work in turns: one after the other, each to its end, and whether there is any."""

from __future__ import annotations

import asyncio

import pytest

from engine.aio.turns import Turns


async def test_each_waits_for_the_one_before():
    turns, order, gate = Turns(), list[str](), asyncio.Event()

    async def work(name: str) -> str:
        order.append(f"{name} begins")
        await gate.wait()
        order.append(f"{name} ends")
        return name

    both = [asyncio.ensure_future(turns.take(lambda name=name: work(name))) for name in "ab"]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*both) == ["a", "b"]
    assert order == ["a begins", "a ends", "b begins", "b ends"]


async def test_it_is_idle_until_something_is_given_and_when_that_has_ended():
    turns, gate = Turns(), asyncio.Event()
    assert turns.idle
    taking = asyncio.ensure_future(turns.take(gate.wait))
    await asyncio.sleep(0)
    assert not turns.idle
    gate.set()
    await taking
    assert turns.idle


async def test_it_is_not_idle_when_only_the_caller_has_given_up():
    turns, gate = Turns(), asyncio.Event()
    taking = asyncio.ensure_future(turns.take(gate.wait))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert not turns.idle
    gate.set()
    await turns.take(lambda: asyncio.sleep(0))
    assert turns.idle


async def test_what_fails_has_ended():
    turns = Turns()

    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await turns.take(fail)
    assert turns.idle
