"""`Turns`: runs pieces of work one after the other, each to its end, even when the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from engine.aio.shielded import shielded

T = TypeVar("T")


class Turns:
    """Runs work one at a time. Loop thread only. Keeps references to its tasks, since asyncio does not."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: asyncio.Future[Any] | None = None

    @property
    def idle(self) -> bool:
        """Whether all work has ended."""
        return self._last is None or self._last.done()

    async def take(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run it after all earlier work, and wait. Cancelling the caller does not cancel the work."""
        return await shielded(self.begin(work))

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """Run it after all earlier work, without waiting."""
        task = asyncio.ensure_future(_after(self._last, work))
        task.add_done_callback(_seen)
        self._last = task
        return task

    def wait_for(self, under_way: asyncio.Future[Any]) -> None:
        """Make later work wait for a future that was not started here. Nothing may be running or queued."""
        self._last = under_way


async def _after(previous: asyncio.Future[Any] | None, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    if previous is not None and not previous.done():
        await asyncio.wait([previous])
    return await work()


def _seen(task: asyncio.Future[Any]) -> None:
    """Mark the error as retrieved: there may be no caller any more."""
    if not task.cancelled():
        task.exception()
