"""`OutboundMemory`: what waits in this process for peers to read it, counted over all connections.

A slow peer is held back by its own connection's marks (`CONNECTION_WRITE_HIGH`); a crowd of them is by this. Bytes are
counted where they are queued, in the steps in which they are sent: a block, an answer of many. When they leave is not
told by the system, so it is looked at: when the count passes the limit, and then again and again while it is too high.

A crowd that reads fast is no better for the others if it is all served at once: so in one turn of the loop only so much
is sent, and who comes after that gets the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine import checks
from engine.aio.semaphore import PoolStatistics
from engine.broker.pools.file_reads import FileReads
from engine.limits import KIB, MIB, READ_BLOCK_SIZE, SCARCE_BLOCK_SIZE
from engine.wire.framing import payload_size
from engine.wire.stream import Payload

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

_LOOK_S = 0.02  # while it is full; longer, the more connections there are to look at
_LOOKED_AT = 1_000
TURN_BYTES = 2 * MIB  # sent to all consumers in one turn of the loop, and a block for each that was not told to wait
CROWDED_TURN_BYTES = 512 * KIB  # the same while others wait for their turn
CROWDED_BLOCK_SIZE = 256 * KIB


class OutboundMemory:
    """Loop thread only.

    Above the limit a connection is sent nothing more until its peer has taken all that waits, and nothing is read from
    it that it would have to be answered; then it gets small blocks. So the limit may be overshot by one such block, or
    one entry, for each connection. Invariant: `used` is the sum of all `noted`. Checked by _check(), with
    ENGINE_DEBUG=1.
    """

    __slots__ = (
        "_holders",
        "_in_turn",
        "_spent",
        "_timer",
        "_waiting",
        "limit",
        "reads",
        "used",
        "waits",
    )

    def __init__(self, limit: int, busy: Callable[[], bool] = lambda: False) -> None:
        """`limit` 0: none. `busy`: whether messages wait to become durable."""
        self.limit = limit
        self.used = 0
        self.waits = 0  # how often it was full
        self.reads = FileReads(busy)
        # Who waits for a turn of the loop, and what was sent in this one.
        self._waiting: deque[Connection] = deque()
        self._spent = 0
        self._in_turn = False
        self._holders: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether whoever has something waiting gets nothing more."""
        return self._timer is not None

    @property
    def block_size(self) -> int:
        """Of what is sent to a consumer at a time, but for one entry."""
        if self._timer is not None or self.used + self.reads.bytes > self.limit > 0:
            return SCARCE_BLOCK_SIZE
        return CROWDED_BLOCK_SIZE if len(self._waiting) > 1 or self.reads.crowded else READ_BLOCK_SIZE

    # -- turns -----------------------------------------------------------------------------------------------------

    def sent(self, who: Connection, payload: Payload) -> None:
        """A payload was handed to the stream of `who`."""
        self._spent += payload_size(payload)
        self.note(who)
        if not self._in_turn:
            self._in_turn = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._spent > self._budget:
            self.queue(who)

    def queue(self, who: Connection) -> None:
        """`who` goes on in a later turn."""
        if who.wait_turn():
            self._waiting.append(who)
            if not self._in_turn:
                self._in_turn = True
                asyncio.get_running_loop().call_soon(self._next_turn)

    @property
    def _budget(self) -> int:
        return CROWDED_TURN_BYTES if self._waiting else TURN_BYTES

    @property
    def crowded(self) -> bool:
        """Whether enough is sent in this turn, or others wait for theirs."""
        return self._spent > self._budget or bool(self._waiting)

    def _next_turn(self) -> None:
        self._spent = 0
        for _ in range(len(self._waiting)):
            if self._spent > self._budget:
                break
            self._waiting.popleft().take_turn()
        self._in_turn = bool(self._waiting) or self._spent > 0
        if self._in_turn:
            asyncio.get_running_loop().call_soon(self._next_turn)

    # -- how much waits --------------------------------------------------------------------------------------------

    def note(self, who: Connection) -> None:
        """Something was queued for `who`."""
        unsent = who.stream.unsent_bytes
        if unsent > who.noted:
            self._set(who, unsent)
            if self._timer is not None:
                who.hold_back()
            elif self.used > self.limit > 0:
                self._look()
        elif self._timer is None and unsent != who.noted:
            self._set(who, unsent)

    def forget(self, who: Connection) -> None:
        """`who` is gone, and what waited for it."""
        self._set(who, 0)

    def resize(self, limit: int) -> None:
        """Another limit from now on."""
        self.limit = limit
        if self._timer is None and self.used > limit > 0:
            self._look()

    def close(self) -> None:
        """Look no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, who: Connection, unsent: int) -> None:
        self.used += unsent - who.noted
        who.noted = unsent
        if unsent:
            self._holders[who] = None
        else:
            self._holders.pop(who, None)
        if checks.COSTLY:
            self._check()

    def _check(self) -> None:
        checks.check(
            self.used == sum(who.noted for who in self._holders), "what waits for peers is the sum over connections"
        )

    def _measure(self) -> list[Connection]:
        """Bring the count up to date; the connections for which nothing waits any more."""
        done = []
        for who in list(self._holders):
            self._set(who, who.stream.unsent_bytes)
            if not who.noted:
                done.append(who)
        return done

    def _look(self) -> None:
        """It seems to be full: it is, or the count is old."""
        self._measure()
        if self.used > self.limit:
            self.waits += 1
            self._look_again()
            for who in list(self._holders):
                who.hold_back()

    def _look_again(self) -> None:
        pause = _LOOK_S * (1 + len(self._holders) / _LOOKED_AT)
        self._timer = asyncio.get_running_loop().call_later(pause, self._relieve)

    def _relieve(self) -> None:
        """Let those go on whose peers have taken everything; all of them, once there is room again."""
        done = self._measure()
        if self.limit == 0 or self.used <= self.limit - self.limit // 4:
            self._timer = None
            done += self._holders
        else:
            self._look_again()
        for who in done:
            who.held_back = False
            self.queue(who)

    def statistics(self) -> PoolStatistics:
        """How it stands; `queue`: connections that get nothing more for now."""
        held = len(self._holders) if self.full else 0
        return PoolStatistics("reads", "bytes", self.used, self.limit, queue=held)
