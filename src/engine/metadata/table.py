"""The records of a local store in memory: rows, order, secondary indexes, sessions and recent changes.

Pure and synchronous. A write is evaluated in a `Batch` (batch.py), made durable by the store, and applied here; only
then do readers and watches see it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from types import MappingProxyType

from engine._native.records.rows import Change, Row, Rows
from engine.limits import METADATA_CHANGES_MAX
from engine.metadata.ordered import OrderedSet
from engine.metadata.store import Indexes

_SESSIONS_BITS = 22  # of the number of a session in its process
NO_INDEXES: Indexes = MappingProxyType({})


def is_served(session: int) -> bool:
    """Whether the holder of a session is in another process than the store."""
    return bool(session & 1)


def each_key(index_keys: str | tuple[str, ...]) -> tuple[str, ...]:
    """The keys that a record has in one index."""
    return (index_keys,) if isinstance(index_keys, str) else index_keys


class Table(Rows):
    """The visible state. Loop thread only, except while it is being loaded."""

    def __init__(self, version: int = 0, rows: Iterable[Row] = ()) -> None:
        """`rows`: in key order. `version`: the last one that was given out."""
        rows = list(rows)
        # (version, key) of every change after `_floor`, ascending.
        self._changes: deque[tuple[int, str]] = deque()
        self._floor = version
        self._keys: OrderedSet[str] = OrderedSet(row.record.key for row in rows)
        self._indexes: defaultdict[str, OrderedSet[tuple[str, str]]] = defaultdict(OrderedSet)
        super().__init__(rows, version, self._keys, self._indexes, self._changes)
        self.ending: set[int] = set()  # sessions whose records are being deleted, or could not be deleted yet
        # A process that wrote under a session left a larger version to the next one.
        self._sessions_from = version << _SESSIONS_BITS
        self._sessions_made = 0

    def apply(self, changes: list[Change]) -> None:
        """Make evaluated changes visible, in their order."""
        self.apply_all(changes)
        changed = self._changes
        while len(changed) > METADATA_CHANGES_MAX:
            self._floor, _ = changed.popleft()

    def new_session(self, *, served: bool = False) -> int:
        """A session id that was not used before, also by an earlier process, if any record was ever written under it.

        `served`: its holder is in another process, and may outlive this one.
        """
        self._sessions_made += 1
        session = 2 * (self._sessions_from + self._sessions_made) + served
        self.sessions[session] = set()
        return session

    def keys(self, start: str, end: str, limit: int | None = None) -> list[str]:
        """The keys with start <= key < end, in order."""
        return self._keys.between(start, end, limit)

    def index_keys(self, index: str, start: str, end: str, limit: int | None = None) -> list[tuple[str, str]]:
        """(index key, key) with start <= index key < end, in order."""
        keys = self._indexes.get(index)
        return [] if keys is None else keys.between((start, ""), (end, ""), limit)

    def changed_since(self, version: int) -> dict[str, int] | None:
        """{key: version of its last change} for changes after `version`; None: no longer remembered."""
        if not self._floor <= version <= self.version:
            return None
        changed: dict[str, int] = {}
        for at, key in reversed(self._changes):
            if at <= version:
                break
            changed.setdefault(key, at)
        return dict(reversed(changed.items()))
