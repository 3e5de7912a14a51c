"""Evaluates writes in order on top of a table, without changing the table.

The changes of a batch become visible when they are applied to the table; a durable store commits them before that.
Only one batch exists at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from engine._native.records.rows import Row, Writes, copied_indexes, fits
from engine.errors import AlreadyClosedError, InvalidArgumentError
from engine.limits import (
    METADATA_ALSO_MAX,
    METADATA_KEY_SIZE_MAX,
    METADATA_VALUE_SIZE_MAX,
    METADATA_WRITE_ALL_MAX,
)
from engine.metadata.store import (
    ABSENT,
    ANY,
    Append,
    ConflictError,
    Delete,
    Demands,
    Expected,
    Indexes,
    Outcomes,
    Put,
    Record,
    Stat,
)
from engine.metadata.table import NO_INDEXES, Table

_SEQUENCE_SIZE = 21  # of the key below a prefix
_INDEX_KEYS_CACHED = 256


class Batch(Writes):
    """The writes of one commit. A method that raises leaves the batch as it was."""

    def __init__(self, table: Table, now_ms: int) -> None:
        super().__init__(table, now_ms, Record, Stat, ABSENT)
        self.ended: set[int] = set()
        self.refused = 0  # writes of write_all() that were refused
        self._table = table

    def check_state(self, key: str, row: Row | None, expected: Expected | int) -> None:
        """See Writes. Raises ConflictError."""
        check_expected(key, row, expected)

    def check_rest(self, put: Put) -> None:
        """See Writes. Raises ConflictError; AlreadyClosedError when the session has ended."""
        if put.also:
            self._check_also(put.also)
        if put.session is not None:
            self._check_session(put.session.id, put.key)

    def delete(self, key: str, expected: Expected | int) -> bool:
        """Delete one record; False when there was none. Raises ConflictError."""
        old = self.row(key)
        check_expected(key, old, expected)
        if old is None:
            return False
        self.change(key, old, None)
        return True

    def delete_range(self, start: str, end: str) -> int:
        """Delete the records with start <= key < end; how many there were."""
        keys = set(self._table.keys(start, end))
        keys.update(key for key in self.staged if start <= key < end)
        return sum(self.delete(key, ANY) for key in sorted(keys))

    def write_all(self, writes: Iterable[Put | Delete]) -> Outcomes:
        """Evaluate independent writes, which were checked: each one's result, or the error that refused it."""
        outcomes: Outcomes = []
        for write in writes:
            try:
                outcomes.append(self.put(write) if isinstance(write, Put) else self.delete(write.key, write.expected))
            except (ConflictError, AlreadyClosedError) as e:
                outcomes.append(e)
                self.refused += 1
        return outcomes

    def end_session(self, session: int) -> None:
        """Delete the records of a session; later puts under it are refused."""
        self.ended.add(session)
        self._table.ending.add(session)  # also when the commit fails: the deletion is tried again
        keys = self._table.sessions.get(session, set()) | self.staged.keys()
        for key in sorted(keys):
            row = self.row(key)
            if row is not None and row.record.stat.session == session:
                self.change(key, row, None)

    def apply(self) -> None:
        """Make the changes visible in the table."""
        self._table.apply(self.changes)
        for session in self.ended:
            self._table.sessions.pop(session, None)
            self._table.ending.discard(session)

    def _check_also(self, also: Demands) -> None:
        for key, expected in also.items():
            check_expected(key, self.row(key), expected)

    def _check_session(self, session: int, key: str) -> None:
        if session not in self._table.sessions or session in self._table.ending:
            raise AlreadyClosedError(f"the metadata session {session} has ended; {key!r} was not written")


def check_expected(key: str, row: Row | None, expected: Expected | int) -> None:
    """Raise ConflictError unless the key's present state is the expected one."""
    present = None if row is None else row.record.stat.version
    wanted = None if expected is ABSENT else expected
    if present != wanted and expected is not ANY:
        state = "absent" if present is None else f"at version {present}"
        demand = "absent" if wanted is None else f"at version {wanted}"
        raise ConflictError(f"{key!r} is {state}; the write demands it {demand}")


def check_key(key: str, what: str = "key") -> str:
    """`key` itself, when it can be stored. Raises InvalidArgumentError."""
    if not isinstance(key, str) or not key:
        raise InvalidArgumentError(f"metadata {what} must be text of at least one character, got {key!r}")
    if fits(key):
        return key
    try:
        size = len(key.encode())
    except UnicodeEncodeError as e:
        raise InvalidArgumentError(f"metadata {what} must be valid Unicode text, got {key!r}") from e
    if size > METADATA_KEY_SIZE_MAX:
        raise InvalidArgumentError(f"metadata {what} must have at most {METADATA_KEY_SIZE_MAX} bytes, got {size}")
    return key


def check_value(key: str, value: bytes) -> bytes:
    """`value` as bytes. Raises InvalidArgumentError."""
    if type(value) is bytes and len(value) <= METADATA_VALUE_SIZE_MAX:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidArgumentError(f"the value of {key!r} must be bytes, got {type(value).__name__}")
    if len(value) > METADATA_VALUE_SIZE_MAX:
        limit = f"must have at most {METADATA_VALUE_SIZE_MAX} bytes"
        raise InvalidArgumentError(f"the value of {key!r} {limit}, got {len(value)}")
    return bytes(value)


def check_indexes(indexes: Indexes | None) -> Indexes:
    """A copy of `indexes`, when all its names and keys can be stored. Raises InvalidArgumentError."""
    if not indexes:
        return NO_INDEXES
    return copied_indexes(indexes, check_key, _check_index_keys)


def _check_index_keys(keys: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if not isinstance(keys, tuple):
        return check_key(keys, "index key")
    try:
        return _checked_index_keys(keys)
    except TypeError:  # one has no hash
        return _checked_index_keys.__wrapped__(keys)


# Records with several keys in an index come again and again with the same: writes of one topic's transactions.
@lru_cache(_INDEX_KEYS_CACHED, typed=True)
def _checked_index_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    if not keys:
        raise InvalidArgumentError("metadata index keys must be at least one, got ()")
    for key in keys:
        check_key(key, "index key")
    return tuple(dict.fromkeys(keys))


def check_version(expected: Expected | int) -> Expected | int:
    """`expected` itself, when it is ANY, ABSENT or a version. Raises InvalidArgumentError."""
    if isinstance(expected, Expected) or type(expected) is int:
        return expected
    raise InvalidArgumentError(f"expected must be ANY, ABSENT or a version, got {expected!r}")


def check_also(also: Demands | None) -> Demands | None:
    """A copy of `also`, when each is a key and its state. Raises InvalidArgumentError."""
    if not also:
        return None
    if len(also) > METADATA_ALSO_MAX:
        raise InvalidArgumentError(f"also must have at most {METADATA_ALSO_MAX} keys, got {len(also)}")
    return {check_key(key): check_version(expected) for key, expected in also.items()}


def checked_put(put: Put) -> Put:
    """A copy that the caller cannot change. Raises InvalidArgumentError."""
    key, value, expected = put.key, put.value, put.expected
    if not fits(key):
        check_key(key)
    if type(value) is not bytes or len(value) > METADATA_VALUE_SIZE_MAX:
        value = check_value(key, value)
    if type(expected) is not int and type(expected) is not Expected:
        check_version(expected)
    indexes = check_indexes(put.indexes) if put.indexes else NO_INDEXES
    also = check_also(put.also) if put.also else None
    return Put(key, value, expected, put.session, put.partition_key, indexes, also)


def checked_append(append: Append) -> Append:
    """A copy that the caller cannot change. Raises InvalidArgumentError."""
    value, indexes = append.value, check_indexes(append.indexes)
    if not fits(append.prefix, _SEQUENCE_SIZE):
        check_key(f"{append.prefix}/{0:020d}")
    if type(value) is not bytes or len(value) > METADATA_VALUE_SIZE_MAX:
        value = check_value(append.prefix, value)
    return Append(append.prefix, value, append.partition_key, indexes)


def check_writes(count: int) -> None:
    """Raise InvalidArgumentError when one call has too many writes."""
    if count > METADATA_WRITE_ALL_MAX:
        raise InvalidArgumentError(f"writes must be at most {METADATA_WRITE_ALL_MAX}, got {count}")
