"""`HalfFrames`: what was received of frames that are not whole, over all connections, is bounded."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.aio.semaphore import PoolStatistics
from engine.wire.chunks import ChunkPool

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

log = logging.getLogger(__name__)


class HalfFrames:
    """Makes room when receivers hold more than the pool's limit. Loop thread only.

    First each is left no more than it has received. If that is not enough, those connections are cut that have been at
    one frame for the longest: they are the ones that send a part and then nothing. A client that was meant well
    connects again, and sends again.
    """

    __slots__ = ("_connections", "_pool", "cut")

    def __init__(self, pool: ChunkPool, connections: Iterable[Connection], limit: int) -> None:
        self._pool = pool
        self._connections = connections
        self.cut = 0  # connections
        pool.limit = limit
        pool.on_full = self._make_room

    def _make_room(self) -> None:
        holders = [c for c in self._connections if c.stream.pending_bytes]
        for connection in holders:
            connection.stream.compact()
        excess = self._pool.taken - self._pool.limit
        if excess <= 0:
            return
        holders.sort(key=lambda c: (c.pulse.frame_at, c.pulse.since))
        for connection in holders:
            excess -= connection.stream.pending_bytes
            self.cut += 1
            connection.stream.abort()
            if excess <= 0:
                break
        log.warning("%d connections are cut: %d bytes of unfinished frames are too many", self.cut, self._pool.taken)

    def resize(self, limit: int) -> None:
        """Another limit from now on."""
        self._pool.limit = limit

    def statistics(self) -> PoolStatistics:
        """How it stands; `refusals`: connections that were cut."""
        return PoolStatistics("receive", "bytes", self._pool.taken, self._pool.limit, refusals=self.cut)
