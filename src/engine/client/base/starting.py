"""Calls that start when they are made: the work begins on the loop at once, and goes on when nothing awaits it.

Off the loop's thread, nothing of a client may be touched: there such a call gives a coroutine, which starts when the
loop runs it.
"""

from __future__ import annotations

import asyncio
from asyncio import _get_running_loop  # without an error outside of a loop, and several times as fast
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from engine._native.calls.started import Started
from engine.errors import AlreadyClosedError

KEPT_MIN = 64

T = TypeVar("T")


class Starting:
    """Starts calls on one loop, and keeps their tasks at least until they have ended."""

    __slots__ = ("_loop", "_prune_at", "_tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: list[asyncio.Future[Any]] = []  # those that have not ended, and some that have
        self._prune_at = KEPT_MIN

    def now(self) -> float:
        """The loop's time."""
        return self._loop.time()

    @property
    def here(self) -> bool:
        """Whether the caller runs on the loop."""
        return _get_running_loop() is self._loop

    def call(
        self, begin: Callable[..., Coroutine[Any, Any, T] | asyncio.Future[T] | None], *args: Any
    ) -> Coroutine[Any, Any, T]:
        """begin(*args), now. It returns what is left: a coroutine, which becomes a task; a future of this object; or
        None where nothing is.

        What `begin` raises is raised where the call is awaited.
        """
        if _get_running_loop() is not self._loop:
            return self.later(lambda: self.call(begin, *args))
        try:
            rest = begin(*args)
        except Exception as e:
            return self.failed(e)
        if rest is None:
            done: asyncio.Future[Any] = self._loop.create_future()
            done.set_result(None)
            return Started(done)
        return Started(rest if isinstance(rest, asyncio.Future) else self.keep(rest))

    def failed(self, error: Exception) -> Coroutine[Any, Any, Any]:
        """What raises the error when it is awaited; the loop reports it where it never is."""
        future: asyncio.Future[Any] = self._loop.create_future()
        future.set_exception(error)
        return Started(future)

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it as a task, which the loop alone would hold weakly."""
        task = self._loop.create_task(work)
        self._keep(task)
        return task

    def future(self) -> asyncio.Future[Any]:
        """A future that a callback ends, kept as tasks are."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._keep(future)
        return future

    def _keep(self, future: asyncio.Future[Any]) -> None:
        self._tasks.append(future)
        if len(self._tasks) > self._prune_at:  # cheaper than a callback of each
            self._tasks = [kept for kept in self._tasks if not kept.done()]
            self._prune_at = 2 * len(self._tasks) + KEPT_MIN

    def retrieve(self) -> None:
        """It ends: failures of what nothing awaits follow from that, and are no news."""
        for task in self._tasks:
            if not task.done():
                task.add_done_callback(_retrieved)
        self._tasks.clear()

    @staticmethod
    async def failure_of(work: Coroutine[Any, Any, object]) -> Exception | None:
        """What the work raises, to be raised later."""
        try:
            await work
        except Exception as e:
            return e
        return None

    async def later(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """call(), once it is awaited on the loop. Raises AlreadyClosedError on another loop."""
        if _get_running_loop() is not self._loop:
            raise AlreadyClosedError("the client was used in another event loop; make one client for each event loop")
        return await call()


def _retrieved(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
