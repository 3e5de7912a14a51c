"""`Pace`: work that many want done at once, a step at a time, and after each as long a rest for all that is no step."""

from __future__ import annotations

import asyncio
from collections import deque


class Pace:
    """First come, first served. Whoever comes alone does not wait. Loop thread only."""

    __slots__ = ("_scheduled", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def turn(self) -> None:
        """Done when it is this one's turn: the step is what the caller does before it awaits anything else."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._next)
        await mine

    def _next(self) -> None:
        """Let the first one go on; _rest() runs right after its step."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                loop.call_soon(self._rest, loop.time())
                return
        self._scheduled = False

    def _rest(self, began: float) -> None:
        loop = asyncio.get_running_loop()
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            loop.call_later(loop.time() - began, self._next)
