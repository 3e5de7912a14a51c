"""`Pace`: work that many want done at once, in small steps that leave the loop to all that is no step."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

STEPS = 4  # one after the other, with a look at the sockets between them; then a rest
REST_S = 0.001  # the shortest that timers know


class Pace:
    """First come, first served. Whoever comes alone does not wait. Loop thread only.

    While others are busy there is a rest after each step: they hardly notice, and the work does not stand still.
    Steps are counted, not timed: they are to be of bounded size, a tenth of a millisecond or two.
    """

    __slots__ = ("_busy", "_scheduled", "_steps", "_waiting")

    def __init__(self, busy: Callable[[], bool] = lambda: False) -> None:
        """`busy`: whether there is something else that should not wait."""
        self._busy = busy
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False  # a step, or a rest
        self._steps = 0  # since the last rest

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
        """Let the first one go on; _after_step() runs right after its step."""
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._after_step)
                return
        self._scheduled = False

    def _after_step(self) -> None:
        loop = asyncio.get_running_loop()
        self._steps += 1
        if self._steps >= STEPS or self._busy():  # also when nobody waits: who comes next is not alone
            self._steps = 0
            loop.call_later(REST_S, self._next)
        else:
            loop.call_soon(self._next)
