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

    __slots__ = ("_busy", "_room", "_scheduled", "_steps", "_steps_max", "_waiting")

    def __init__(
        self,
        busy: Callable[[], bool] = lambda: False,
        *,
        steps: int = STEPS,
        room: Callable[[], bool] = lambda: True,
    ) -> None:
        """`busy`: whether there is something else that should not wait. `steps`: until the next rest, while there is
        nothing; 0: no rests then. `room`: whether a step may begin; when there is room again, go_on() is to be called.
        """
        self._busy = busy
        self._room = room
        self._steps_max = steps
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False  # a step, or a rest
        self._steps = 0  # since the last rest

    def __len__(self) -> int:
        """How many wait, those included that gave up."""
        return len(self._waiting)

    async def turn(self) -> None:
        """Done when it is this one's turn: the step is what the caller does before it awaits anything else."""
        await self.join()

    def join(self) -> asyncio.Future[None]:
        """The same as a future: the step is what is called when it is done. Cancelling it gives the turn up."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self.go_on()
        return mine

    def go_on(self) -> None:
        """There may be somebody to let go on."""
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Let the first one go on; _after_step() runs right after its step."""
        while self._waiting and self._room():
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._after_step)
                return
        self._scheduled = False

    def _after_step(self) -> None:
        loop = asyncio.get_running_loop()
        self._steps += 1
        if self._busy() or self._steps >= self._steps_max > 0:  # also when nobody waits: who comes next is not alone
            self._steps = 0
            loop.call_later(REST_S, self._next)
        else:
            loop.call_soon(self._next)
