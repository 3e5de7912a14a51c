"""`HalfFrames`: the pool of bytes received of incomplete frames, over all connections."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.aio.semaphore import PoolStatistics
from engine.wire.chunks import ChunkPool

if TYPE_CHECKING:
    from engine.broker.pools.ports import Receiving

log = logging.getLogger(__name__)


class HalfFrames:
    """Frees memory when receive buffers exceed the pool's limit. Loop thread only.

    First every buffer is shrunk to the bytes that it holds. If that is not enough, connections are aborted, those
    first that have been receiving one frame for the longest: they sent a part of it and stalled. A well-behaved client
    reconnects and sends again.
    """

    __slots__ = ("_connections", "_pool", "cut")

    def __init__(self, pool: ChunkPool, connections: Iterable[Receiving], limit: int) -> None:
        self._pool = pool
        self._connections = connections
        self.cut = 0  # connections aborted
        pool.limit = limit
        pool.on_full = self._make_room

    def _make_room(self) -> None:
        holders = [c for c in self._connections if c.stream.pending_bytes]
        for connection in holders:
            connection.stream.compact()
        excess = self._pool.taken - self._pool.limit
        if excess <= 0:
            return
        holders.sort(key=lambda c: c.stalled_since)
        for connection in holders:
            excess -= connection.stream.pending_bytes
            self.cut += 1
            connection.stream.abort()
            if excess <= 0:
                break
        log.warning("connections aborted so far: %d; receive buffers hold %d bytes", self.cut, self._pool.taken)

    def resize(self, limit: int) -> None:
        """Apply a new limit."""
        self._pool.limit = limit

    def statistics(self) -> PoolStatistics:
        """Usage and limit; `refusals`: connections aborted."""
        return PoolStatistics("receive", "bytes", self._pool.taken, self._pool.limit, refusals=self.cut)
