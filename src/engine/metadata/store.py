"""The metadata store: small facts that must survive and be agreed upon (docs/formats/metadata.md).

One interface, one file per implementation (`memory.py`, `sqlite.py`), one conformance suite (`tests/metadata/`) that
each of them passes. Keys are "/"-separated paths in text, ordered by code point; values are bytes. Every write of a key
gives it a new, larger version; the keys that one call writes together may bear the same one. A process recognises its
own write after an unknown outcome by the value, never by the order of versions within one call.

There are two kinds of read, and each caller names the one it needs: `newest` and `mirror` (see Reads).
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from engine.errors import AlreadyClosedError


class Expected(enum.Enum):
    """The state of the key that a write demands; an int demands that version."""

    ANY = "any"
    ABSENT = "absent"


ANY = Expected.ANY
ABSENT = Expected.ABSENT


class Stat(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Facts about one record. Times are wall-clock milliseconds. `session`: the owner of an ephemeral, or None."""

    version: int
    created_ms: int
    modified_ms: int
    session: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One key, its value and its facts."""

    key: str
    value: bytes
    stat: Stat


class EventKind(enum.Enum):
    """The change of a key. SNAPSHOT_END follows the records with which a watch starts."""

    PUT = "put"
    DELETE = "delete"
    SNAPSHOT_END = "snapshot_end"


class Event(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One change. Events of a key arrive in version order; several may collapse into the last (semantics 37).

    `version`: the store-wide version of the change. Pass the last one seen to `watch` to resume.
    """

    kind: EventKind
    key: str
    version: int
    record: Record | None = None


class ConflictError(Exception):
    """The key is not in the state that `expected` demands; nothing was written."""


class OutcomeUnknownError(Exception):
    """The write may or may not have happened; read back to find out."""


class Session(Protocol):
    """Keeps ephemeral records alive. When it ends, by close() or by expiry, they are deleted, with events."""

    id: int

    @property
    def deadline(self) -> float:
        """The time on the holder's monotonic clock until which it surely lives; infinite if it lives as long as the
        process.

        A remote store counts the timeout from the arrival of a refresh; the holder, from before it was sent. So the
        holder stops relying on the session before the store ends it.
        """

    async def refresh(self) -> None:
        """Prolong the session, which moves the deadline. Raises AlreadyClosedError when it has ended."""

    async def close(self) -> None:
        """End the session and delete its records. Idempotent."""


class Watch(Protocol):
    """A running watch."""

    def __aiter__(self) -> AsyncIterator[Event]:
        """The events. The iteration ends when the watch or the store is closed."""

    def close(self) -> None:
        """End the iteration. Idempotent."""


# Inside the classes, `list` is a method.
Keys = list[str]
IndexedRecords = list[tuple[str, Record]]
Indexes = Mapping[str, str | tuple[str, ...]]  # index name -> the record's key there, or its keys
Demands = Mapping[str, Expected | int]  # key -> the state of it that a write of another key demands


class Put(msgspec.Struct, frozen=True):
    """One write of a record, as MetadataStore.put() takes it: for write_all() and put_with_sequence()."""

    key: str
    value: bytes
    expected: Expected | int = ANY
    session: Session | None = None
    partition_key: str | None = None
    indexes: Indexes | None = None
    also: Demands | None = None


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


# The outcome of one of several writes: what put() or delete() returns, or an error that concerns this write alone.
Outcome = Stat | bool | ConflictError | AlreadyClosedError
Outcomes = list[Outcome]


class Reads(Protocol):
    """One kind of read. `MetadataStore.newest` and `MetadataStore.mirror` have the same methods.

    *newest* goes to the store: it sees every write, of any process, that was confirmed before the call. What is decided
    by a read, without a compare-and-set on what was read, needs it.

    *mirror* may answer from what this process knows. It sees this process's own confirmed writes, and all that its
    watches have reported; a write of another process may show a moment later. It never answers that a record is absent
    when the store has it. For answers to clients, statistics, and what a watch corrects soon.

    A store that is in this process answers both from its memory.
    """

    async def get(self, key: str) -> Record | None:
        """The record, or None."""

    async def list(self, start: str, end: str, limit: int | None = None) -> list[Record]:
        """The records with start <= key < end, in order."""

    async def list_keys(self, start: str, end: str, limit: int | None = None) -> Keys:
        """The keys with start <= key < end, in order."""

    async def list_index(self, index: str, start: str, end: str, limit: int | None = None) -> IndexedRecords:
        """(index key, record) with start <= index key < end, ordered by index key, then key."""


@runtime_checkable
class Historied(Protocol):
    """A store that keeps each change until it is told to forget it."""

    async def revision(self) -> int:
        """The number of its present state."""

    async def compact(self, revision: int) -> None:
        """Forget the changes before a revision. A watch that was disconnected for longer starts with a snapshot."""


class MetadataStore(Protocol):
    """A small, asynchronous, linearisable (per key) key-value store with watches and secondary indexes.

    A confirmed write survives a crash (where a store is durable at all). All methods raise AlreadyClosedError after
    close(). A store in another process also raises TimeoutError when it cannot be reached in time: nothing was written,
    except that a begin or end of a session that was sent may have been done, which its text says then.
    """

    @property
    def newest(self) -> Reads:
        """Reads that see all writes confirmed before them."""

    @property
    def mirror(self) -> Reads:
        """Reads from what this process knows."""

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
        """Write one record and return its new facts once it is durable.

        `session` makes the record ephemeral. `partition_key` keeps records together in a sharded store (a local store
        ignores it). `indexes` maps index names to the record's key or keys in that index; they replace those of the
        record's earlier version, atomically with the record.

        `also`: states of up to METADATA_ALSO_MAX other keys that it demands in the same moment. Raises ConflictError,
        which then says which key is not so, OutcomeUnknownError, AlreadyClosedError when the session has ended.
        """

    async def delete(self, key: str, expected: Expected | int = ANY) -> bool:
        """Delete one record; False when there was none (under ANY). Raises ConflictError, OutcomeUnknownError."""

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
        """Write a new record at `{prefix}/{sequence:020d}`, the sequence larger than any before below the prefix."""

    async def put_with_sequence(self, put: Put, appended: Append) -> tuple[Stat, Record]:
        """Write one record as put() does, and a new one as put_sequence() does: atomically, both or nothing.

        Returns the facts of the first and the whole second, whose version is not the larger one. Raises ConflictError,
        OutcomeUnknownError.
        """

    async def write_all(self, writes: Sequence[Put | Delete]) -> Outcomes:
        """Do up to METADATA_WRITE_ALL_MAX independent writes with one call; their outcomes, in order, not raised.

        They are evaluated in order, with no other write in between, and each sees the ones before it; a conflict of one
        does not affect the others. They become durable, and visible, together. Raised are only errors that concern all
        of them: OutcomeUnknownError (all were done, or none), InvalidArgumentError (one is malformed; none was done).
        """

    def watch(self, prefix: str, from_version: int | None = None) -> Watch:
        """Changes of keys that start with `prefix`.

        Without `from_version`: the present records as PUT events, SNAPSHOT_END, then changes. With it: only changes
        after that store version; where the store no longer remembers them, it starts with a snapshot (ended by
        SNAPSHOT_END: a key that the reader knew and the snapshot did not show was deleted).
        """

    def watch_key(self, key: str) -> Watch:
        """Changes of one record, and of none whose key only begins likewise; starts with a snapshot."""

    def watch_index(self, index: str, start: str, end: str) -> Watch:
        """Changes of records whose key in `index` is (or, on DELETE, was) in [start, end); starts with a snapshot."""

    async def session(self, timeout: float = 30.0) -> Session:
        """A new session. A local store ends it with the process; `timeout` is for stores that can lose contact."""

    @property
    def version(self) -> int:
        """The store-wide version of the last write known to this process."""

    async def close(self) -> None:
        """End all watches and sessions and release the store. Idempotent."""
