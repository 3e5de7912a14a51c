"""`Line`: calls of a producer that wait for room, in the order in which they were made.

A call that finds no room joins the line, and so does each later one: what is sent first is taken first, awaited or not.
One task serves the line while there is one. A call that was cancelled meanwhile is left out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from engine.client.produce.outbox import Outbox
from engine.errors import QueueFullError, TimeoutError


class _Call:
    """A call that waits. `take` takes what there is room for; True: that is all of it. It may raise QueueFullError."""

    __slots__ = ("future", "take")

    def __init__(self, future: asyncio.Future[Any], take: Callable[[], bool]) -> None:
        self.future = future
        self.take = take


class Line:
    """Loop thread only. `formed` and `dissolved` are called when it has a first call, and none any more."""

    __slots__ = ("_dissolved", "_formed", "_outbox", "_task", "_timeout", "calls")

    def __init__(
        self, outbox: Outbox, timeout: float, formed: Callable[[], object], dissolved: Callable[[], object]
    ) -> None:
        self._outbox = outbox
        self._timeout = timeout
        self._formed = formed
        self._dissolved = dissolved
        self.calls: deque[_Call] = deque()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self.calls)

    def join(self, future: asyncio.Future[Any], take: Callable[[], bool]) -> None:
        """Call take() when there is room, until it returns True; what it raises, the future gets."""
        self.calls.append(_Call(future, take))
        if self._task is None:
            self._formed()
            self._task = future.get_loop().create_task(self._serve())

    async def served(self) -> None:
        """Wait until every call that is in the line now has been served."""
        if self.calls:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.join(future, lambda: _pass(future))
            await future

    async def _serve(self) -> None:
        try:
            while self.calls:
                call = self.calls[0]
                if call.future.done() or self._take(call):
                    self.calls.popleft()
                else:
                    await self._wait_room()
        finally:
            self._task = None
            for call in self.calls:  # the loop ends
                call.future.cancel()
            self.calls.clear()
            self._dissolved()

    def _take(self, call: _Call) -> bool:
        try:
            return call.take()
        except QueueFullError:
            return False
        except Exception as e:
            call.future.set_exception(e)
            return True

    async def _wait_room(self) -> None:
        """Where none comes in time, all fail that have waited so long."""
        waiting = len(self.calls)
        try:
            await self._outbox.wait_room(self._timeout)
        except TimeoutError as e:
            for _ in range(waiting):
                future = self.calls.popleft().future
                if not future.done():
                    future.set_exception(TimeoutError(str(e)))


def _pass(future: asyncio.Future[None]) -> bool:
    future.set_result(None)
    return True
