"""Calls between a parent and a child, over a real pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.errors import ConnectError, EngineError, NotFoundError
from engine.processes.channel import Answers, Channel


@asynccontextmanager
async def ends(left: Answers, right: Answers) -> AsyncIterator[tuple[Channel, Channel]]:
    """Both ends, each with its methods."""
    one, other = socket.socketpair()
    channels = await Channel.open(one, left, "right"), await Channel.open(other, right, "left")
    yield channels
    for channel in channels:
        await channel.close()


async def test_calls_in_both_directions():
    async def twice(n: int) -> int:
        return 2 * n

    async def text(size: int) -> str:
        return "x" * size

    async with ends({"twice": twice}, {"text": text}) as (left, right):
        found = await asyncio.gather(
            left.call("text", size=20_000_000), *(right.call("twice", n=n) for n in range(100))
        )
    assert len(found[0]) == 20_000_000
    assert found[1:] == [2 * n for n in range(100)]


async def test_errors_keep_their_type():
    async def missing() -> None:
        raise NotFoundError("no such thing")

    async def broken() -> None:
        raise ZeroDivisionError("a bug")

    async with ends({}, {"missing": missing, "broken": broken}) as (left, _):
        with pytest.raises(NotFoundError, match="no such thing"):
            await left.call("missing")
        with pytest.raises(EngineError, match="ZeroDivisionError: a bug"):
            await left.call("broken")
        with pytest.raises(EngineError, match="KeyError"):
            await left.call("unknown")


async def test_the_end_of_the_other_end():
    asked = asyncio.Event()

    async def never() -> Any:
        asked.set()
        await asyncio.Event().wait()

    async with ends({}, {"never": never}) as (left, right):
        waiting = asyncio.ensure_future(left.call("never"))
        await asked.wait()
        await right.close()
        with pytest.raises(ConnectError, match="right has ended"):
            await waiting
        await left.ended
        with pytest.raises(ConnectError, match="right has ended"):
            await left.call("never")
