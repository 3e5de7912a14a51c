"""The metadata store for tests and simulation: in memory only, shareable by several brokers of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from engine.clock import Clock
from engine.metadata.batch import Batch
from engine.metadata.local import LocalSession, LocalStore
from engine.metadata.table import Table
from engine.metadata.watches import WatchHub

T = TypeVar("T")


class MemoryMetadataStore(LocalStore):
    """One broker's handle on records in memory. `client()` gives another broker its own handle on the same records."""

    def __init__(self, clock: Clock, _hub: WatchHub | None = None) -> None:
        hub = WatchHub(Table()) if _hub is None else _hub
        super().__init__(hub.table, hub)
        self._clock = clock
        self._expiring: set[asyncio.Task[None]] = set()

    def client(self) -> MemoryMetadataStore:
        """A handle with sessions and watches of its own on the same records; it outlives this one."""
        return MemoryMetadataStore(self._clock, self._hub)

    async def _write(self, operation: Callable[[Batch], T]) -> T:
        batch = Batch(self._table, self._clock.time_ms())
        result = operation(batch)
        batch.apply()
        self._hub.notify(batch.changes)
        return result

    def abandon(self, after: float | None = None) -> None:
        """What the store sees of a killed broker: silence, and sessions that expire.

        `after`: seconds until they do; None is each session's own timeout.
        """
        if self._closed:
            return
        self._closed = True
        self._close_watches()
        loop = asyncio.get_running_loop()
        for session in self._sessions:
            loop.call_later(session.timeout if after is None else after, self._expire, session)

    def _expire(self, session: LocalSession) -> None:
        self._expiring.add(task := asyncio.get_running_loop().create_task(self.end_session(session)))
        task.add_done_callback(self._expiring.discard)

    async def close(self) -> None:
        """End this handle's sessions and watches. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._close_watches()
        for session in list(self._sessions):
            await self.end_session(session)
