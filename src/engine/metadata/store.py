"""The metadata store: small facts that must survive and be agreed upon (docs/formats/metadata.md).

One interface, one file per implementation (`memory.py`, `sqlite.py`), one conformance suite
(`tests/metadata/`) that each of them passes. Keys are "/"-separated paths in text, ordered by code point; values are
bytes. Every write of a key gives it a new, larger version.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from engine.errors import AlreadyClosedError


class Expected(enum.Enum):
    """What a write demands of the key's present state; an int demands that version."""

    ANY = "any"
    ABSENT = "absent"


ANY = Expected.ANY
ABSENT = Expected.ABSENT


class Stat(msgspec.Struct, frozen=True, gc=False):
    """Facts about one record. Times are wall-clock milliseconds. `session` is the owner of an ephemeral, or None."""

    version: int
    created_ms: int
    modified_ms: int
    session: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """One key and what it holds."""

    key: str
    value: bytes
    stat: Stat


class EventKind(enum.Enum):
    """What happened to a key. SNAPSHOT_END ends the records a watch starts with."""

    PUT = "put"
    DELETE = "delete"
    SNAPSHOT_END = "snapshot_end"


class Event(msgspec.Struct, frozen=True, gc=False):
    """One change. Events of a key arrive in version order; several may collapse into the last (semantics 37).

    `version` is the store-wide version at which it happened: hand the last one seen to `watch` to resume.
    """

    kind: EventKind
    key: str
    version: int
    record: Record | None = None


class ConflictError(Exception):
    """The key is not in the state that `expected` demanded; nothing was written."""


class OutcomeUnknownError(Exception):
    """The write may or may not have happened; read back to find out."""


class Session(Protocol):
    """Keeps ephemeral records alive. When it ends, by close() or by expiry, they are deleted, with events."""

    id: int

    @property
    def deadline(self) -> float:
        """Until when, on the holder's monotonic clock, it surely lives; infinite where it lives as long as the process.

        A store that can lose sight of a holder counts the timeout from when it heard of it; the holder, from before it
        spoke. So the deadline is over on the holder's side before anything is taken from it on the store's.
        """

    async def refresh(self) -> None:
        """Show that the holder lives, which moves the deadline. Raises AlreadyClosedError when the session is over."""

    async def close(self) -> None:
        """End the session and delete its records. Idempotent."""


class Watch(Protocol):
    """A running watch: iterate it, close it."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events. The iteration ends when the watch or the store is closed."""

    def close(self) -> None:
        """End the iteration. Idempotent."""


# Inside the classes, `list` is a method.
Keys = list[str]
IndexedRecords = list[tuple[str, Record]]
Indexes = Mapping[str, str | tuple[str, ...]]  # index name -> the record's key there, or its keys


class Put(msgspec.Struct, frozen=True):
    """One write of a record, as MetadataStore.put() takes it: for write_all() and put_with_sequence()."""

    key: str
    value: bytes
    expected: Expected | int = ANY
    session: Session | None = None
    partition_key: str | None = None
    indexes: Indexes | None = None


class Append(msgspec.Struct, frozen=True):
    """One new record below a prefix, as MetadataStore.put_sequence() takes it: for put_with_sequence()."""

    prefix: str
    value: bytes
    partition_key: str | None = None
    indexes: Indexes | None = None


class Delete(msgspec.Struct, frozen=True):
    """One deletion, as MetadataStore.delete() takes it: for write_all()."""

    key: str
    expected: Expected | int = ANY


# What came of one of several writes: what put() or delete() returns, or what it raises because of record or session.
Outcome = Stat | bool | ConflictError | AlreadyClosedError
Outcomes = list[Outcome]


class MetadataStore(Protocol):
    """A small, asynchronous, linearisable (per key) key-value store with watches and secondary indexes.

    Reads see all writes that were confirmed before them. A confirmed write survives a crash (where a store is
    durable at all). All methods raise AlreadyClosedError after close().
    """

    async def get(self, key: str) -> Record | None:
        """The record, or None."""

    async def put(
        self,
        key: str,
        value: bytes,
        expected: Expected | int = ANY,
        *,
        session: Session | None = None,
        partition_key: str | None = None,
        indexes: Indexes | None = None,
    ) -> Stat:
        """Write one record and return its new facts once it is durable.

        `session` makes it ephemeral. `partition_key` keeps records together where a store is sharded (a local store
        remembers nothing of it). `indexes` maps index names to this record's key in that index, or to several; they
        replace those of the record's earlier version, atomically with the record. Raises ConflictError,
        OutcomeUnknownError.
        """

    async def delete(self, key: str, expected: Expected | int = ANY) -> bool:
        """Delete one record; False when there was none (under ANY). Raises ConflictError, OutcomeUnknownError."""

    async def list(self, start: str, end: str, limit: int | None = None) -> list[Record]:
        """The records with start <= key < end, in order."""

    async def list_keys(self, start: str, end: str, limit: int | None = None) -> Keys:
        """The same, keys only."""

    async def delete_range(self, start: str, end: str) -> int:
        """Delete the records with start <= key < end, atomically; how many there were."""

    async def put_sequence(
        self,
        prefix: str,
        value: bytes,
        *,
        partition_key: str | None = None,
        indexes: Indexes | None = None,
    ) -> Record:
        """Write a new record at `{prefix}/{sequence:020d}`, the sequence larger than any the prefix ever had."""

    async def put_with_sequence(self, put: Put, appended: Append) -> tuple[Stat, Record]:
        """Write one record as put() does, and a new one as put_sequence() does: atomically, both or nothing.

        Returns the facts of the first and the whole second. The second has the smaller version. Raises ConflictError,
        OutcomeUnknownError.
        """

    async def write_all(self, writes: Sequence[Put | Delete]) -> Outcomes:
        """Do up to METADATA_WRITE_ALL_MAX writes with one call; what came of each, in their order, not raised.

        They are independent: a conflict of one is not the others'. They are done in their order, and each finds what
        those before it did; nobody else's write comes in between. What is done of them is durable, and is seen, at
        once, and no part of it without the rest. What is raised concerns all of them: OutcomeUnknownError, they were
        done or were not; InvalidArgumentError (what one of them cannot be), nothing was.
        """

    async def list_index(self, index: str, start: str, end: str, limit: int | None = None) -> IndexedRecords:
        """(index key, record) with start <= index key < end, ordered by index key, then key."""

    def watch(self, prefix: str, from_version: int | None = None) -> Watch:
        """Changes of keys that start with `prefix`.

        Without `from_version`: first the present records as PUT events, then SNAPSHOT_END, then changes. With it: only
        what changed after that store version; where the store no longer knows, it starts over with a snapshot
        (SNAPSHOT_END says so: what the reader knew and the snapshot did not show is gone).
        """

    def watch_index(self, index: str, start: str, end: str) -> Watch:
        """Changes of records whose key in `index` is (or, on DELETE, was) in [start, end); starts with a snapshot."""

    async def session(self, timeout: float = 30.0) -> Session:
        """A new session. A local store ends it with the process; `timeout` is for stores that can lose sight of it."""

    @property
    def version(self) -> int:
        """The store-wide version of the last write this process knows of."""

    async def close(self) -> None:
        """End all watches and sessions and release the store. Idempotent."""
