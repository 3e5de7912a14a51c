"""`Pace`: runs many pending pieces of work in small steps, and lets the loop serve everything else in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

STEPS = 4  # in succession, with a poll of the sockets in between; then a pause
REST_S = 0.001  # the shortest that timers can do


class Pace:
    """Grants steps in the order of requests; a single request is granted at once. Loop thread only.

    While the loop is busy each step is followed by a pause, so other work is hardly delayed and this work still
    progresses. Steps are counted, not timed: each should be of bounded size, a tenth of a millisecond or two.
    """

    __slots__ = ("_busy", "_room", "_scheduled", "_steps", "_steps_max", "waiting")

    def __init__(
        self,
        busy: Callable[[], bool] = lambda: False,
        *,
        steps: int = STEPS,
        room: Callable[[], bool] = lambda: True,
    ) -> None:
        """`busy`: whether there is other work that should not wait. `steps`: steps between pauses while the loop is
        idle; 0 means no pauses then. `room`: whether a step may begin; the caller runs go_on() when that becomes true.
        """
        self._busy = busy
        self._room = room
        self._steps_max = steps
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False  # a step or a pause is scheduled
        self._steps = 0  # since the last pause

    def __len__(self) -> int:
        """The requests that wait, including cancelled ones."""
        return len(self.waiting)

    async def turn(self) -> None:
        """Wait for the next step, which lasts until the caller's next await."""
        await self.join()

    def join(self) -> asyncio.Future[None]:
        """A future for the next step, which is its callbacks. Cancel it to give the step up."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(mine)
        self.go_on()
        return mine

    def go_on(self) -> None:
        """Resume: `room` may be true again."""
        if self.waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Grant one step; _after_step() runs right behind it."""
        while self.waiting and self._room():
            first = self.waiting.popleft()
            if not first.done():
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._after_step)
                return
        self._scheduled = False

    def _after_step(self) -> None:
        loop = asyncio.get_running_loop()
        self._steps += 1
        # Also with an empty queue: the next request does not come alone.
        if self._busy() or self._steps >= self._steps_max > 0:
            self._steps = 0
            loop.call_later(REST_S, self._next)
        else:
            loop.call_soon(self._next)
