"""`Snapshot`: the keys of a table at one moment, in version order, while the table goes on changing.

It begins with references to the keys in key order, which is cheap for any number of them. They are sorted by version
some at a time, with turns of the loop in between; changes in the meantime are noted, so that each key keeps the place
that it had at that moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from engine._native.records.rows import Change, Row
from engine.metadata.table import Table

SORTED_AT_ONCE = 256  # records: some tenths of a millisecond

Place = tuple[int, str]  # a version, and the key that had it


class Snapshot:
    """One watch's start. Loop thread only.

    Each key is returned once, at its place, whatever its record has become meanwhile; or not at all, if it was removed.
    """

    __slots__ = ("_before", "_count", "_index", "_keys", "_left", "_merged", "_reached", "_runs", "_several", "_table",
                 "version")  # fmt: skip

    def __init__(self, table: Table, keys: list[str], index: str | None = None) -> None:
        """`keys`: of present rows. A key of an `index` may be given as often as the index lists it."""
        self.version = table.version
        self._table = table
        self._index = index
        self._keys = keys  # the first ones are not sorted yet
        self._runs: list[list[Place]] = []  # each sorted
        self._merged: Iterator[Place] = iter(())
        self._count = len(keys)
        self._reached = 0  # the version of the last place that was returned
        # Keys that changed since and are still ahead: their version at the moment, whether they may be listed again.
        self._before: dict[str, tuple[int, bool]] = {}
        self._left: set[str] = set()  # of these, keys that are not to be returned
        self._several: set[str] = set()  # keys that may be listed again and were returned
        if len(keys) <= SORTED_AT_ONCE:
            self.sort_some()

    @property
    def in_order(self) -> bool:
        """Whether take() may be called."""
        return not self._keys

    def sort_some(self) -> None:
        """Sort some more keys."""
        some = self._keys[-SORTED_AT_ONCE:]
        del self._keys[-SORTED_AT_ONCE:]
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
        """Whether a change is of a key that is still ahead; if not, it must be reported after the snapshot.

        `before`, `after`: whether the key was, and is, inside the watch.
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
        """The next place; None at the end. Only when in_order."""
        for version, key in self._merged:
            self._reached = version
            self._before.pop(key, None)
            if key not in self._left:
                self._count -= 1
                return version, key
            self._left.discard(key)
        return None

    def __len__(self) -> int:
        """The places still ahead. Sorts the rest first where keys may be listed repeatedly."""
        while self._index is not None and self._keys:
            self.sort_some()
        return self._count
