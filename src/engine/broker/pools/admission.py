"""`Intake`: admission of received frames, a bounded number of them in each turn of the event loop.

One turn of the loop delivers everything that has arrived on all connections: with a thousand clients and a hundred
requests of each, all of these would run before the next message of any other client. So a turn has a budget of frames:

1. Each frame costs 1; a request that opens something (a producer, a consumer, a watch) costs REQUEST_FRAMES.
2. Above the budget, a connection with more received bytes is paused after its current frame; it is resumed when its
   turn comes, in the order in which connections were paused. One that sends single frames is never paused.
3. A request that opens something waits for its turn in the same queue, so requests of a connection keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.aio.pace import Pace
from engine.broker.pools.ports import Pause

if TYPE_CHECKING:
    from engine.broker.pools.ports import Held

FRAMES_PER_TURN = 64  # of all connections; above it, one of each
REQUEST_FRAMES = 8  # the cost of a request that opens something, in frames


class Intake:
    """One per broker. Loop thread only."""

    __slots__ = ("_counting", "_frames", "_pace")

    def __init__(self, busy: Callable[[], bool]) -> None:
        """`busy`: whether messages wait to become durable; queued work is then spread over more turns."""
        self._pace = Pace(busy, steps=0)
        self._frames = 0  # in this turn of the loop
        self._counting = False

    def __len__(self) -> int:
        """Connections and requests in the queue."""
        return len(self._pace)

    def frame(self, connection: Held) -> None:
        """Count one frame; pause reading from the connection when this turn's budget is spent."""
        self._frames += 1
        if not self._counting:
            self._count(0)
        if self._frames > FRAMES_PER_TURN and connection.stream.pending_bytes and connection.hold(Pause.ADMISSION):
            connection.stream.trim()
            self._pace.join().add_done_callback(lambda _: connection.release(Pause.ADMISSION))

    def request(self) -> asyncio.Future[None] | None:
        """Count one request that opens something. None: it may run now; otherwise done when it may."""
        self._count(REQUEST_FRAMES)
        at_once = self._frames <= FRAMES_PER_TURN and not len(self._pace)
        return None if at_once else self._pace.join()

    def _count(self, frames: int) -> None:
        self._frames += frames
        if not self._counting:
            self._counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._counting = False
        self._frames = 0
