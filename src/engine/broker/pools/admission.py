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

from engine._native.serve.meters import TurnFrames
from engine.aio.pace import Pace
from engine.broker.pools.ports import Pause

if TYPE_CHECKING:
    from engine.broker.pools.ports import Held

FRAMES_PER_TURN = 64  # of all connections; above it, one of each
REQUEST_FRAMES = 8  # the cost of a request that opens something, in frames


class Intake(TurnFrames):
    """One per broker. Loop thread only."""

    __slots__ = ("_pace",)

    def __init__(self, busy: Callable[[], bool]) -> None:
        """`busy`: whether messages wait to become durable; queued work is then spread over more turns."""
        super().__init__(FRAMES_PER_TURN)
        self._pace = Pace(busy, steps=0)

    def __len__(self) -> int:
        """Connections and requests in the queue."""
        return len(self._pace)

    def passed(self, connection: Held) -> None:
        """This turn's budget is spent: pause reading from the connection if more has come on it."""
        if connection.stream.pending_bytes and connection.hold(Pause.ADMISSION):
            connection.stream.trim()
            self._pace.join().add_done_callback(lambda _: connection.release(Pause.ADMISSION))

    def request(self) -> asyncio.Future[None] | None:
        """Count one request that opens something. None: it may run now; otherwise done when it may."""
        at_once = self.counted(REQUEST_FRAMES) <= FRAMES_PER_TURN and not len(self._pace)
        return None if at_once else self._pace.join()
