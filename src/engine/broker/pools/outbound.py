"""`OutboundMemory`: bytes queued in this process for peers to read, over all connections.

One slow peer is limited by its own connection's high mark (`CONNECTION_WRITE_HIGH`); this pool limits a crowd of them.
It also shares the loop out: consumers that read fast would otherwise all be served at once, ahead of all other work.

    send a block ── note() ──> `used` grows by what the stream could not hand to the system
         │                          │ above the limit (counted anew first: the count may be old)
         │                          v
         │                      full: every connection with unsent bytes is held back; each is measured every _MEASURE_S
         │                          │ its peer took everything, or `used` fell to 3/4 of the limit
         v                          v
    budget of this turn spent ──> queue(): waits for a later turn of the loop ──> take_turn(), in order

The system does not report when bytes leave, so they are counted where they are queued, and counted again (`_measure`)
when the sum passes the limit and at intervals while it is too high.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine import checks
from engine._native.serve.delivery import Outgoing
from engine.aio.semaphore import PoolStatistics
from engine.broker.pools.file_reads import FileReads

if TYPE_CHECKING:
    from engine.broker.pools.ports import Held

_MEASURE_S = 0.02  # between two counts while the pool is full; longer, the more connections are counted
_MEASURED_AT = 1_000


class OutboundMemory(Outgoing):
    """One per broker. Loop thread only.

    A connection that is held back is sent no blocks until its peer has taken all that is queued, and its requests are
    not read; after that it is sent small blocks. So each connection may exceed the limit by one such block, or by one
    entry. Invariant: `used` is the sum of all `noted`. Checked by _check(), with ENGINE_DEBUG=1.
    """

    __slots__ = ("_holders", "waits")
    timer: asyncio.TimerHandle | None
    reads: FileReads

    def __init__(self, limit: int, busy: Callable[[], bool] = lambda: False) -> None:
        """`limit` 0: none. `busy`: whether messages wait to become durable."""
        super().__init__(limit, FileReads(busy))
        self.waits = 0  # how often the pool was full
        self._holders: dict[Held, None] = {}  # connections with unsent bytes

    @property
    def full(self) -> bool:
        """Whether connections with unsent bytes are held back."""
        return self.timer is not None

    # -- unsent bytes ----------------------------------------------------------------------------------------------

    def count(self, connection: Held, unsent: int) -> None:
        """Its unsent bytes are others than they were: hold it back if the pool is full and they grew."""
        grew = unsent > connection.noted
        self._set(connection, unsent)
        if grew and self.timer is not None:
            connection.hold_back()
        elif grew and self.used > self.limit > 0:
            self._measure_full()

    def forget(self, connection: Held) -> None:
        """It is closed, and nothing is queued for it any more."""
        self._set(connection, 0)

    def resize(self, limit: int) -> None:
        """Apply a new limit."""
        self.limit = limit
        if self.timer is None and self.used > limit > 0:
            self._measure_full()

    def close(self) -> None:
        """Stop the timer. Idempotent."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _set(self, connection: Held, unsent: int) -> None:
        self.used += unsent - connection.noted
        connection.noted = unsent
        if unsent:
            self._holders[connection] = None
        else:
            self._holders.pop(connection, None)
        if checks.COSTLY:
            self._check()

    def _check(self) -> None:
        noted = sum(connection.noted for connection in self._holders)
        checks.check(self.used == noted, "unsent bytes are the sum over connections")

    def _measure(self) -> list[Held]:
        """Count all unsent bytes anew; the connections that have none any more."""
        done = []
        for connection in list(self._holders):
            self._set(connection, connection.stream.unsent_bytes)
            if not connection.noted:
                done.append(connection)
        return done

    def _measure_full(self) -> None:
        """By the count the pool is full: either it is, or the count is old."""
        self._measure()
        if self.used > self.limit:
            self.waits += 1
            self._measure_later()
            for connection in list(self._holders):
                connection.hold_back()

    def _measure_later(self) -> None:
        pause = _MEASURE_S * (1 + len(self._holders) / _MEASURED_AT)
        self.timer = asyncio.get_running_loop().call_later(pause, self._relieve)

    def _relieve(self) -> None:
        """Relieve connections whose peers have taken everything; all of them once a quarter of the pool is free."""
        done = self._measure()
        if self.limit == 0 or self.used <= self.limit - self.limit // 4:
            self.timer = None
            done += self._holders
        else:
            self._measure_later()
        for connection in done:
            connection.relieve()
            self.queue(connection)

    def statistics(self) -> PoolStatistics:
        """Usage and limit; `queue`: connections that are held back."""
        held = len(self._holders) if self.full else 0
        return PoolStatistics("reads", "bytes", self.used, self.limit, queue=held)
