"""A sorted set with cheap changes at any size: the basis of range reads and indexes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import islice, pairwise
from typing import Generic, TypeVar

from engine import checks

T = TypeVar("T", str, tuple[str, str])

_CHUNK_SIZE_MAX = 1024
_UNSORTED_MAX = 512  # additions, and as many removals
_SORTED_AT_ONCE = 64  # some tenths of a millisecond


class OrderedSet(Generic[T]):
    """Distinct items in order: a list of short sorted chunks, and beside them the latest additions and removals.

    An item is sorted into a chunk at the next read of its range, or when many were added after it: most items are
    removed again before that, and are never searched for.

    Invariants: no chunk is empty, and `_lasts[i]` is the last item of `_chunks[i]`. No item of `_added` is in a chunk,
    every item of `_removed` is. Checked by _check(), with ENGINE_DEBUG=1.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        """`items` must be sorted and distinct."""
        source = iter(items)
        self._chunks: list[list[T]] = []
        while chunk := list(islice(source, _CHUNK_SIZE_MAX // 2)):
            self._chunks.append(chunk)
        self._lasts: list[T] = [chunk[-1] for chunk in self._chunks]
        self._added: dict[T, None] = {}  # in order of insertion
        self._removed: dict[T, None] = {}

    def __len__(self) -> int:
        return sum(map(len, self._chunks)) + len(self._added) - len(self._removed)

    def add(self, item: T) -> None:
        """Add an item that is absent."""
        if item in self._removed:
            del self._removed[item]
            return
        self._added[item] = None
        if len(self._added) > _UNSORTED_MAX:
            self._sort(_SORTED_AT_ONCE)

    def remove(self, item: T) -> None:
        """Remove an item that is present."""
        if item in self._added:
            del self._added[item]
            return
        self._removed[item] = None
        if len(self._removed) > _UNSORTED_MAX:
            self._sort(_SORTED_AT_ONCE)

    def add_all(self, items: Iterable[T]) -> None:
        """Add items that are absent."""
        added, removed = self._added, self._removed
        for item in items:
            if item in removed:
                del removed[item]
            else:
                added[item] = None
        while len(added) > _UNSORTED_MAX:
            self._sort(_SORTED_AT_ONCE)

    def remove_all(self, items: Iterable[T]) -> None:
        """Remove items that are present."""
        added, removed = self._added, self._removed
        for item in items:
            if item in added:
                del added[item]
            else:
                removed[item] = None
        while len(removed) > _UNSORTED_MAX:
            self._sort(_SORTED_AT_ONCE)

    def _sort(self, count: int) -> None:
        """Sort the `count` oldest pending changes into the chunks."""
        self._sort_these(list(islice(self._removed, count)), list(islice(self._added, count)))

    def _sort_these(self, removed: list[T], added: list[T]) -> None:
        for item in sorted(removed):
            del self._removed[item]
            self._take_out(item)
        for item in sorted(added):
            del self._added[item]
            self._put_in(item)
        if checks.COSTLY:
            self._check()

    def _check(self) -> None:
        checks.check(all(self._chunks), "no chunk of a sorted set is empty")
        checks.check(
            self._lasts == [chunk[-1] for chunk in self._chunks], "the last items of a sorted set's chunks are known"
        )
        items = [item for chunk in self._chunks for item in chunk]
        checks.check(all(a < b for a, b in pairwise(items)), "the chunks of a sorted set are in order")
        there = set(items)
        checks.check(there.isdisjoint(self._added), "no pending addition is in a chunk")
        checks.check(there.issuperset(self._removed), "every pending removal is in a chunk")

    def _put_in(self, item: T) -> None:
        if not self._chunks:
            self._chunks, self._lasts = [[item]], [item]
            return
        at = min(bisect_left(self._lasts, item), len(self._lasts) - 1)
        chunk = self._chunks[at]
        insort(chunk, item)
        self._lasts[at] = chunk[-1]
        if len(chunk) > _CHUNK_SIZE_MAX:
            self._split(at)

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        half = len(chunk) // 2
        self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]
        self._lasts[at : at + 1] = [chunk[half - 1], chunk[-1]]

    def _take_out(self, item: T) -> None:
        at = bisect_left(self._lasts, item)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, item)]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]

    def between(self, start: T, end: T, limit: int | None = None) -> list[T]:
        """The items with start <= item < end, in order, at most `limit`."""
        if self._added or self._removed:
            removed = [item for item in self._removed if start <= item < end]
            self._sort_these(removed, [item for item in self._added if start <= item < end])
        found: list[T] = []
        for chunk in self._chunks[bisect_left(self._lasts, start) :]:
            low, high = bisect_left(chunk, start), bisect_left(chunk, end)
            found += chunk[low:high]
            if high < len(chunk) or (limit is not None and len(found) >= limit):
                break
        return found if limit is None else found[: max(limit, 0)]
