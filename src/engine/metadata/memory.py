"""The metadata store for tests and simulation: in memory only, shareable by several brokers of one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import TypeVar

from engine.clock import Clock
from engine.metadata.batch import Batch
from engine.metadata.local import LocalSession, LocalStore, SessionLease
from engine.metadata.table import Table
from engine.metadata.watches import WatchHub

T = TypeVar("T")


class MemoryMetadataStore(LocalStore):
    """One broker's handle on records in memory. `client()` returns another broker's handle on the same records.

    `leases`: sessions expire unless they are refreshed, as in a remote store. Without leases a session lives until it
    is closed or abandoned.
    """

    def __init__(self, clock: Clock, _root: MemoryMetadataStore | None = None, *, leases: bool = False) -> None:
        hub = WatchHub(Table()) if _root is None else _root._hub
        super().__init__(hub.table, hub)
        self._clock = clock
        self._leases = leases
        # Timers run in the store's context: the program that holds a handle may be killed in a simulation.
        self._context: Context = copy_context() if _root is None else _root._context
        self._expiring: set[asyncio.Task[None]] = set()

    def client(self, *, leases: bool | None = None) -> MemoryMetadataStore:
        """A handle with sessions and watches of its own on the same records; it outlives this one."""
        return MemoryMetadataStore(self._clock, self, leases=self._leases if leases is None else leases)

    async def session(self, timeout: float = 30.0) -> LocalSession:
        session = await super().session(timeout)
        if self._leases:
            session.lease = SessionLease(self._clock, timeout, partial(self._end_after, session))
        return session

    def _end_after(self, session: LocalSession, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, self._expire, session, context=self._context.copy())

    async def _write(self, operation: Callable[[Batch], T], count: int = 1) -> T:
        batch = Batch(self._table, self._clock.time_ms())
        result = operation(batch)
        batch.apply()
        self._hub.notify(batch.changes)
        return result

    def abandon(self, after: float | None = None) -> None:
        """Behave as the store sees a killed broker: no more calls, and sessions that expire.

        `after`: seconds until they expire; None: each session's own timeout since its last refresh.
        """
        if self._closed:
            return
        self._closed = True
        self._close_watches()
        for session in self._sessions:
            if session.lease is None:
                self._end_after(session, session.timeout if after is None else after)
            elif after is not None:
                session.lease.end_after(after)

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
