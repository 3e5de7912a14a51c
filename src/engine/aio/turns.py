"""`Turns`: work that is done one after the other, each to its end, also when whoever waits for it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """Loop thread only. Holds its tasks, since asyncio does not."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: asyncio.Future[Any] | None = None

    @property
    def idle(self) -> bool:
        """Whether everything that was given has ended."""
        return self._last is None or self._last.done()

    async def take(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do it after all that was given before. Cancelling the caller does not cancel the work."""
        return await asyncio.shield(self.begin(work))

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """The same; nobody has to wait for it."""
        task = asyncio.ensure_future(_after(self._last, work))
        task.add_done_callback(_seen)
        self._last = task
        return task

    def wait_for(self, under_way: asyncio.Future[Any]) -> None:
        """What is given from now on comes after this, too, which was not given here. Nothing may be under way."""
        self._last = under_way


async def _after(previous: asyncio.Future[Any] | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    if previous is not None and not previous.done():
        await asyncio.wait([previous])
    return await work()


def _seen(task: asyncio.Future[Any]) -> None:
    """Nobody may be left to look at the error."""
    if not task.cancelled():
        task.exception()
