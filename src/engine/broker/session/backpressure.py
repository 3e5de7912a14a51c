"""`Backpressure`: one connection between its peer and the pools, as a state machine of two halves.

*Reading* is paused by any number of reasons (`Pause`) and goes on when the last one is released. RATE is a reason of
several producers, each of which holds and releases it for itself: it ends with the last of them. *Writing* is one
state; consumers are sent blocks in OPEN alone:

    event                 OPEN     QUEUED   FULL     HELD_BACK        HELD_BACK_FULL
    stream above its mark FULL     FULL     .        HELD_BACK_FULL   .
    stream drained        .        .        QUEUED   .                HELD_BACK
    pool is full          HELD_BACK HELD_BACK HELD_BACK_FULL .        .
    pool relieves         .        .        .        QUEUED           FULL
    turn's budget spent   QUEUED   .        .        .                .
    its turn comes        .        OPEN     .        .                .

A connection that is QUEUED waits in the pool's queue. It leaves for FULL or HELD_BACK without losing its place there.

The two halves meet in answers: a peer that asks and does not read would fill memory with answers, so while it is not
OPEN and has too much unsent, its requests are not read.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.broker.pools.ports import Pause
from engine.limits import CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW

if TYPE_CHECKING:
    from engine.broker.pools.outbound import OutboundMemory
    from engine.wire.stream import FrameStream

ANSWERS_UNSENT_MAX = 4 * CONNECTION_WRITE_HIGH  # requests of a peer that does not read are not read above this


class Writing(enum.Enum):
    """Whether the consumers of a connection are sent blocks, or what they wait for."""

    OPEN = "open"
    QUEUED = "queued"  # for a turn of the loop
    FULL = "full"  # the stream holds more than its high mark
    HELD_BACK = "held back"  # the outbound pool is full
    HELD_BACK_FULL = "held back, full"
    CLOSED = "closed"


_OPEN, _QUEUED, _FULL, _CLOSED = Writing.OPEN, Writing.QUEUED, Writing.FULL, Writing.CLOSED
_HELD_BACK, _HELD_BACK_FULL = Writing.HELD_BACK, Writing.HELD_BACK_FULL

# What each event makes of a state; in the others it changes nothing.
_Moves = dict[Writing, Writing]
_STREAM_FULL: _Moves = {_OPEN: _FULL, _QUEUED: _FULL, _HELD_BACK: _HELD_BACK_FULL}
_STREAM_DRAINED: _Moves = {_FULL: _QUEUED, _HELD_BACK_FULL: _HELD_BACK}
_POOL_FULL: _Moves = {_OPEN: _HELD_BACK, _QUEUED: _HELD_BACK, _FULL: _HELD_BACK_FULL}
_RELIEVED: _Moves = {_HELD_BACK: _QUEUED, _HELD_BACK_FULL: _FULL}
_TURN_SPENT: _Moves = {_OPEN: _QUEUED}
_TURN_COMES: _Moves = {_QUEUED: _OPEN}


class Backpressure:
    """Loop thread only. Implements `Held`. `resumed` is called whenever writing is OPEN again.

    `writable` is whether writing is OPEN. A QUEUED connection is in the queue of `outbound`, which is what ends QUEUED.
    """

    __slots__ = ("_outbound", "_rate_holders", "_resumed", "noted", "reading", "stream", "writable", "writing")

    def __init__(self, stream: FrameStream, outbound: OutboundMemory, resumed: Callable[[], None]) -> None:
        self.stream = stream
        self.reading: set[Pause] = set()  # why frames are not read
        self.writing = _OPEN
        self.writable = True
        self.noted = 0
        self._rate_holders = 0
        self._outbound = outbound
        self._resumed = resumed

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def held(self) -> bool:
        """Whether the peer is not read from, so that its silence means nothing."""
        return bool(self.reading)

    def hold(self, reason: Pause) -> bool:
        """Read no frames until every reason is released; whether this one is new. RATE is counted."""
        if reason is Pause.RATE:
            self._rate_holders += 1
        if reason in self.reading:
            return False
        if not self.reading:
            self.stream.pause_reading()
        self.reading.add(reason)
        return True

    def release(self, reason: Pause) -> None:
        """Undo hold(): for RATE one of them, for other reasons all."""
        if reason is Pause.RATE and self._rate_holders:
            self._rate_holders -= 1
            if self._rate_holders:
                return
        if reason in self.reading:
            self.reading.remove(reason)
            if not self.reading:
                self.stream.resume_reading()

    # -- writing ---------------------------------------------------------------------------------------------------

    def move_to(self, writing: Writing) -> None:
        """Enter a state; CLOSED is final."""
        self.writing = writing
        self.writable = writing is _OPEN
        if self.writable:
            self.release(Pause.ANSWERS)
            self._resumed()

    def _on(self, event: _Moves) -> None:
        if (writing := event.get(self.writing)) is not None:
            self.move_to(writing)

    def pause_writing(self) -> None:
        """The stream holds more than its high mark."""
        self._on(_STREAM_FULL)
        self._outbound.note(self)

    def resume_writing(self) -> None:
        """The stream has drained: go on now, or in a later turn if others wait or this one's budget is spent."""
        self._on(_STREAM_DRAINED)
        if self.writing is _QUEUED:
            if self._outbound.crowded:
                self._outbound.queue(self)
            else:
                self.take_turn()

    def hold_back(self) -> None:
        """The outbound pool is full."""
        self._on(_POOL_FULL)

    def relieve(self) -> None:
        """The outbound pool has room again."""
        self._on(_RELIEVED)

    def wait_turn(self) -> None:
        """The budget of this turn is spent."""
        self._on(_TURN_SPENT)

    def take_turn(self) -> None:
        """Its turn has come."""
        self._on(_TURN_COMES)

    def close(self) -> None:
        """The connection is gone."""
        self.move_to(_CLOSED)

    @property
    def held_back(self) -> bool:
        """Whether the outbound pool keeps it from sending."""
        return self.writing is _HELD_BACK or self.writing is _HELD_BACK_FULL

    def has_room(self, unsent_max: int) -> bool:
        """Whether a block may be queued beyond the high mark: the pool allows it, and less than so much is unsent."""
        return not self.held_back and self.stream.unsent_bytes < unsent_max

    # -- answers ---------------------------------------------------------------------------------------------------

    @property
    def takes_answers(self) -> bool:
        """Whether an answer may be sent now. A closed connection takes, and drops, all of them."""
        if self.writing is _CLOSED:
            return True
        # Half of the limit is more than consumers leave unsent.
        most = CONNECTION_WRITE_LOW if self.held_back else ANSWERS_UNSENT_MAX // 2
        return self.stream.unsent_bytes <= most

    def check_answers(self) -> None:
        """After a frame, while it is not writable: read no more of them from a peer that does not read answers."""
        if not self.writable and (self.held_back or self.stream.unsent_bytes > ANSWERS_UNSENT_MAX):
            self.hold(Pause.ANSWERS)
