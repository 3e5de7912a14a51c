"""What the stores of one process share: reads and watches from memory, argument checks, sessions.

A subclass makes writes durable: it implements `_write`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import inf
from typing import TypeVar

from engine._native.records.rows import Row
from engine.clock import Clock
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.metadata.batch import Batch, check_version, check_writes, checked_append, checked_put
from engine.metadata.keys import LAST
from engine.metadata.store import (
    ANY,
    Append,
    Delete,
    Demands,
    Expected,
    IndexedRecords,
    Indexes,
    Keys,
    Outcomes,
    Put,
    Record,
    Session,
    Stat,
)
from engine.metadata.table import NO_INDEXES, Table, is_served
from engine.metadata.watches import IndexWatch, KeyWatch, PrefixWatch, TableWatch, WatchHub

T = TypeVar("T")
W = TypeVar("W", bound=TableWatch)


_list = list  # inside the class, `list` is a method


class SessionLease:
    """Ends a session whose holder does not refresh it. `end_after`: schedules its end on the store's side."""

    def __init__(self, clock: Clock, timeout: float, end_after: Callable[[float], asyncio.TimerHandle]) -> None:
        self._clock = clock
        self._timeout = timeout
        self._end_after = end_after
        self._timer: asyncio.TimerHandle | None = None
        self.renew()

    def renew(self) -> None:
        """Restart the timeout."""
        self.deadline = self._clock.monotonic() + self._timeout
        self.end_after(self._timeout)

    def end_after(self, seconds: float) -> None:
        """End the session after so many seconds, whatever deadline its holder sees."""
        self.cancel()
        self._timer = self._end_after(seconds)

    def cancel(self) -> None:
        """Stop the timer: the session has ended. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LocalSession:
    """A session of a local store. It ends by close(), with its store, or, if it has one, with its lease."""

    def __init__(self, store: LocalStore, session_id: int, timeout: float) -> None:
        self.id = session_id
        self.timeout = timeout
        self.lease: SessionLease | None = None
        self.ended = False  # to its holder; the store has it until its records are deleted
        self._store = store

    @property
    def deadline(self) -> float:
        """See Session. Without a lease it is infinite."""
        return inf if self.lease is None else self.lease.deadline

    async def refresh(self) -> None:
        self._store.check_session(self)
        if self.lease is not None:
            self.lease.renew()

    async def close(self) -> None:
        await self._store.end_session(self)


class LocalStore(ABC):
    """A store whose records are all in this process. Loop thread only. See MetadataStore for the methods."""

    def __init__(self, table: Table, hub: WatchHub) -> None:
        self._table = table
        self._hub = hub
        self._sessions: dict[LocalSession, None] = {}
        self._watches: dict[TableWatch, None] = {}
        self._closed = False

    @abstractmethod
    async def _write(self, operation: Callable[[Batch], T], count: int = 1) -> T:
        """Evaluate `operation`, make its changes durable, then visible. Errors of `operation` are raised here.

        `count`: the writes it counts as.
        """

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError("the metadata store is closed")

    @property
    def newest(self) -> LocalStore:
        return self

    @property
    def mirror(self) -> LocalStore:
        return self

    async def get(self, key: str) -> Record | None:
        self._check_open()
        row = self._table.rows.get(key)
        return None if row is None else row.record

    async def put(
        self,
        key: str,
        value: bytes,
        expected: Expected | int = ANY,
        *,
        session: Session | None = None,
        partition_key: str | None = None,
        indexes: Indexes | None = None,
        also: Demands | None = None,
    ) -> Stat:
        self._check_open()
        return await self._write(_putting(Put(key, value, expected, session, partition_key, indexes, also)))

    async def put_sequence(
        self,
        prefix: str,
        value: bytes,
        *,
        partition_key: str | None = None,
        indexes: Indexes | None = None,
    ) -> Record:
        self._check_open()
        append = checked_append(Append(prefix, value, partition_key, indexes))
        return await self._write(lambda batch: batch.put_sequence(prefix, append.value, append.indexes or NO_INDEXES))

    async def put_with_sequence(self, put: Put, appended: Append) -> tuple[Stat, Record]:
        self._check_open()
        put, appended = checked_put(put), checked_append(appended)
        return await self._write(lambda batch: batch.put_with_sequence(put, appended))

    async def delete(self, key: str, expected: Expected | int = ANY) -> bool:
        self._check_open()
        return await self._write(_deleting(key, expected))

    async def delete_range(self, start: str, end: str) -> int:
        self._check_open()
        return await self._write(lambda batch: batch.delete_range(start, end))

    async def write_all(self, writes: Sequence[Put | Delete]) -> Outcomes:
        self._check_open()
        check_writes(len(writes))
        checked = [_checked(write) for write in writes]
        return await self._write(lambda batch: batch.write_all(checked), len(checked))

    async def list(self, start: str, end: str, limit: int | None = None) -> list[Record]:
        self._check_open()
        return [self._table.rows[key].record for key in self._table.keys(start, end, limit)]

    async def list_keys(self, start: str, end: str, limit: int | None = None) -> Keys:
        self._check_open()
        return self._table.keys(start, end, limit)

    async def list_index(self, index: str, start: str, end: str, limit: int | None = None) -> IndexedRecords:
        self._check_open()
        found = self._table.index_keys(index, start, end, limit)
        return [(index_key, self._table.rows[key].record) for index_key, key in found]

    def watch(self, prefix: str, from_version: int | None = None) -> PrefixWatch:
        self._check_open()
        return self._own(self._hub.watch_prefix(prefix, from_version))

    def watch_key(self, key: str) -> KeyWatch:
        self._check_open()
        return self._own(self._hub.watch_key(key))

    def watch_index(self, index: str, start: str, end: str) -> IndexWatch:
        self._check_open()
        return self._own(self._hub.watch_index(index, start, end))

    def _own(self, watch: W) -> W:
        self._watches[watch] = None
        watch.on_close = self._disown
        return watch

    def _disown(self, watch: TableWatch) -> None:
        self._watches.pop(watch, None)

    def _close_watches(self) -> None:
        for watch in _list(self._watches):
            watch.close()

    async def session(self, timeout: float = 30.0) -> LocalSession:
        self._check_open()
        session = LocalSession(self, self._table.new_session(), timeout)
        self._sessions[session] = None
        return session

    def serve_session(self, timeout: float, session_id: int | None = None) -> LocalSession:
        """A session whose holder is in another process: the service ends it. `session_id`: of a leftover one.

        Raises AlreadyClosedError for an id that has ended.
        """
        self._check_open()
        if session_id is None:
            session_id = self._table.new_session(served=True)
        elif session_id not in self._table.sessions:
            raise AlreadyClosedError(f"the metadata session {session_id} has ended")
        session = LocalSession(self, session_id, timeout)
        self._sessions[session] = None
        return session

    def leave_session(self, session: Session) -> None:
        """Keep the records of a served session when this store is closed: its holder may find another service."""
        self._sessions.pop(session, None)  # type: ignore[call-overload]

    def leftover_sessions(self) -> _list[int]:
        """The served sessions of an earlier service that have records, and may still be alive."""
        mine = {session.id for session in self._sessions}
        return [session for session in self._table.sessions if is_served(session) and session not in mine]

    def check_session(self, session: LocalSession) -> None:
        """Raise AlreadyClosedError when the session has ended."""
        if session.ended or session not in self._sessions or self._closed:
            raise AlreadyClosedError(f"the metadata session {session.id} has ended")

    async def end_session(self, session: LocalSession) -> None:
        """Delete the session's records; nothing when that was done before.

        Where the deletion fails, the session remains, refuses what is done under it, and may be ended again.
        """
        session.ended = True
        if session.lease is not None:
            session.lease.cancel()
        if session in self._sessions:
            await self._write(lambda batch: batch.end_session(session.id))
            self._sessions.pop(session, None)

    @property
    def version(self) -> int:
        return self._table.version

    def rows(self) -> tuple[int, _list[Row]]:
        """The version, and all records at it in order of key, as they are durable now."""
        rows = self._table.rows
        return self._table.version, [rows[key] for key in self._table.keys("", LAST)]


def _putting(put: Put) -> Callable[[Batch], Stat]:
    checked = checked_put(put)
    return lambda batch: batch.put(checked)


def _deleting(key: str, expected: Expected | int) -> Callable[[Batch], bool]:
    check_version(expected)
    return lambda batch: batch.delete(key, expected)


def _checked(write: Put | Delete) -> Put | Delete:
    if isinstance(write, Put):
        return checked_put(write)
    if isinstance(write, Delete):
        check_version(write.expected)
        return write
    raise InvalidArgumentError(f"a write must be a Put or a Delete, got {write!r:.80}")
