"""`Snapshot`: the keys of a table as it was at one moment, by version, while the table goes on changing.

It begins with references to the keys in their own order, which costs little however many they are. They are put in
order some at a time: in between others are served, and what changes then is noted so that each key has the place that
it had at that moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from engine.metadata.table import Change, Row, Table

LOOKED_AT_ONCE = 256  # records: some tenths of a millisecond

Place = tuple[int, str]  # a version, and the key that had it


class Snapshot:
    """Loop thread only.

    A key is taken once, at its place, whatever its record has become meanwhile; or not at all, if it has left.
    """

    __slots__ = ("_before", "_count", "_index", "_keys", "_left", "_merged", "_reached", "_runs", "_several", "_table",
                 "version")  # fmt: skip

    def __init__(self, table: Table, keys: list[str], index: str | None = None) -> None:
        """`keys`: of rows that are there. Those of an `index` may be given as often as the index has them."""
        self.version = table.version
        self._table = table
        self._index = index
        self._keys = keys  # those that were not looked at yet are the first ones
        self._runs: list[list[Place]] = []  # each in order
        self._merged: Iterator[Place] = iter(())
        self._count = len(keys)
        self._reached = 0  # the version of the last that was taken
        # Of keys that have changed since, and were not passed: the version then, and whether they may be given again.
        self._before: dict[str, tuple[int, bool]] = {}
        self._left: set[str] = set()  # of these, those that are not to be taken
        self._several: set[str] = set()  # that may be given again, and were given
        if len(keys) <= LOOKED_AT_ONCE:
            self.look()

    @property
    def in_order(self) -> bool:
        """Whether the first can be taken."""
        return not self._keys

    def look(self) -> None:
        """Put some more of it in order."""
        some = self._keys[-LOOKED_AT_ONCE:]
        del self._keys[-LOOKED_AT_ONCE:]
        self._runs.append(sorted(self._places(some)))
        if not self._keys:
            self._merged = heapq.merge(*self._runs)
            self._runs, self._several = [], set()

    def _places(self, keys: list[str]) -> Iterator[Place]:
        for key in keys:
            version, repeated = self._before.get(key) or self._place_of(self._table.rows[key])
            if repeated and key in self._several:
                self._count -= 1
                continue
            if repeated:
                self._several.add(key)
            yield version, key

    def _place_of(self, row: Row) -> tuple[int, bool]:
        repeated = self._index is not None and not isinstance(row.indexes[self._index], str)
        return row.record.stat.version, repeated

    def notice(self, change: Change, before: bool, after: bool) -> bool:
        """Whether a change is of a key that is still to be taken; otherwise it is to be told behind the snapshot.

        `before`, `after`: whether the key belonged to what is watched, and does.
        """
        key, place = change.key, self._before.get(change.key)
        if place is None:
            if not before or change.old is None:
                return False
            place = self._place_of(change.old)
            if not self._reached < place[0] <= self.version:
                return False
            self._before[key] = place
        elif key in self._left:
            return False
        if not after:
            self._left.add(key)
            self._count -= 1
        return True

    def take(self) -> Place | None:
        """The next one; None when there are no more. Only when they are in order."""
        for version, key in self._merged:
            self._reached = version
            self._before.pop(key, None)
            if key not in self._left:
                self._count -= 1
                return version, key
            self._left.discard(key)
        return None

    def __len__(self) -> int:
        """How many are still to be taken. Puts all in order if it has to, for one that is given keys repeatedly."""
        while self._index is not None and self._keys:
            self.look()
        return self._count
