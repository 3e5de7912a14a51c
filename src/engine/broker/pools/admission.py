"""`Intake`: what clients ask for is begun some of it at a time, however much of it has arrived.

In one turn of the loop everything is received that has come, over all connections: the hundred requests of each of a
thousand clients would be done before anybody else's next message is looked at. So of what comes in one turn only so
much is done at once. A connection that has more is read from no further until its turn comes, and what has to be opened
for somebody (a producer, a consumer, a watch) is when its turn comes. Who sends one frame at a time does not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.aio.pace import Pace

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

FRAMES_PER_TURN = 64  # of all connections; above it, one of each
REQUEST_FRAMES = 8  # what a request costs that opens something, in frames


class Intake:
    """Of one broker. Loop thread only."""

    __slots__ = ("_counting", "_frames", "_pace")

    def __init__(self, busy: Callable[[], bool]) -> None:
        """`busy`: whether messages wait to become durable; then there is a rest after each of those that wait."""
        self._pace = Pace(busy, steps=0)
        self._frames = 0  # in this turn of the loop
        self._counting = False

    def __len__(self) -> int:
        """Connections and requests that wait."""
        return len(self._pace)

    def frame(self, who: Connection) -> None:
        """One more is received from `who`. If that was enough for this turn, and more of it is here, that waits."""
        self._count(1)
        if self._frames > FRAMES_PER_TURN and who.stream.pending_bytes and who.hold("intake"):
            who.stream.trim()
            self._pace.join().add_done_callback(lambda _: who.release("intake"))

    def request(self) -> asyncio.Future[None] | None:
        """One was received that something is to be opened for. None: at once; otherwise done when that may begin.

        In the order in which they came, so that none of a connection overtakes another.
        """
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
