"""Work in turns: one after the other, each to its end, and whether there is any."""

from __future__ import annotations

import asyncio
import gc

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


async def test_what_is_begun_needs_nobody_who_waits():
    turns, done = Turns(), list[str]()

    async def work(name: str) -> None:
        await asyncio.sleep(0)
        done.append(name)

    turns.begin(lambda: work("a"))
    turns.begin(lambda: work("b"))
    await turns.take(lambda: work("c"))
    assert done == ["a", "b", "c"]


async def test_nobody_has_to_look_at_the_error_of_what_is_begun():
    turns, unseen = Turns(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))

    async def fail() -> None:
        raise ValueError("no")

    failing = turns.begin(fail)
    await asyncio.wait([failing])
    del failing
    turns.wait_for(asyncio.get_running_loop().create_future())
    gc.collect()
    assert unseen == []


@pytest.mark.parametrize("end", ["result", "error", "cancelled"])
async def test_what_was_not_given_here_has_its_turn_too(end: str):
    turns, order = Turns(), list[str]()
    under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    turns.wait_for(under_way)
    assert not turns.idle

    async def work() -> None:
        order.append("work")

    taking = asyncio.ensure_future(turns.take(work))
    for _ in range(3):
        await asyncio.sleep(0)
    assert order == []
    if end == "cancelled":
        under_way.cancel()
    elif end == "error":
        under_way.set_exception(ValueError("no"))
        under_way.exception()
    else:
        under_way.set_result(None)
    await taking
    assert order == ["work"]
    assert turns.idle


async def test_who_gives_up_does_not_cancel_what_was_not_given_here():
    turns = Turns()
    under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    turns.wait_for(under_way)
    taking = asyncio.ensure_future(turns.take(lambda: asyncio.sleep(0)))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert not under_way.done()
    under_way.set_result(None)
    await turns.take(lambda: asyncio.sleep(0))
    assert turns.idle
