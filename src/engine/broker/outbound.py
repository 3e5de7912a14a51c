"""`OutboundMemory`: what waits in this process for peers to read it, counted over all connections.

A slow peer is held back by its own connection's marks (`CONNECTION_WRITE_HIGH`); a crowd of them is by this. Bytes are
counted where they are queued, in the steps in which they are sent: a block, an answer of many. When they leave is not
told by the system, so it is looked at: when the count passes the limit, and then again and again while it is too high.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from engine.aio.semaphore import PoolStatistics
from engine.limits import READ_BLOCK_SIZE, SCARCE_BLOCK_SIZE

if TYPE_CHECKING:
    from engine.broker.connection import Connection

_LOOK_S = 0.02  # while it is full; longer, the more connections there are to look at
_LOOKED_AT = 1_000


class OutboundMemory:
    """Loop thread only.

    Above the limit a connection is sent nothing more until its peer has taken all that waits, and nothing is read from
    it that it would have to be answered; then it gets small blocks. So the limit may be overshot by one such block, or
    one entry, for each connection. Invariant: `used` is the sum of all `noted`, each at least what waits there.
    """

    __slots__ = ("_holders", "_timer", "block_size", "limit", "used", "waits")

    def __init__(self, limit: int) -> None:
        """`limit` 0: none."""
        self.limit = limit
        self.used = 0
        self.waits = 0  # how often it was full
        self.block_size = READ_BLOCK_SIZE  # of what is sent to a consumer at a time
        self._holders: dict[Connection, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether whoever has something waiting gets nothing more."""
        return self._timer is not None

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
            self.block_size = SCARCE_BLOCK_SIZE
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
            self.block_size = READ_BLOCK_SIZE
            done += self._holders
        else:
            self._look_again()
        for who in done:
            who.go_on()

    def statistics(self) -> PoolStatistics:
        """How it stands; `queue`: connections that get nothing more for now."""
        held = len(self._holders) if self.full else 0
        return PoolStatistics("reads", "bytes", self.used, self.limit, queue=held)
