"""A sorted set with cheap changes at any size: the basis of range reads and indexes.

What it does is native; here are its sizes and its invariants.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeVar

from engine import checks
from engine._native.records.ordered import SortedItems

T = TypeVar("T", str, tuple[str, str])

_CHUNK_SIZE_MAX = 1024
_UNSORTED_MAX = 512  # additions, and as many removals; a read sorts those of its range, and looks at all
_SORTED_AT_ONCE = 64  # some tenths of a millisecond


class OrderedSet(SortedItems[T]):
    """Distinct items in order.

    Invariants: no chunk is empty, and `lasts[i]` is the last item of `chunks[i]`. No item of `added` is in a chunk,
    every item of `removed` is. Checked by _check(), with ENGINE_DEBUG=1.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        """`items` must be sorted and distinct."""
        super().__init__(items, _CHUNK_SIZE_MAX, _UNSORTED_MAX, _SORTED_AT_ONCE)

    def arranged(self) -> None:
        """See SortedItems."""
        if checks.COSTLY:
            self._check()

    def _check(self) -> None:
        checks.check(all(self.chunks), "no chunk of a sorted set is empty")
        checks.check(
            self.lasts == [chunk[-1] for chunk in self.chunks], "the last items of a sorted set's chunks are known"
        )
        items = [item for chunk in self.chunks for item in chunk]
        checks.check(all(a < b for a, b in pairwise(items)), "the chunks of a sorted set are in order")
        there = set(items)
        checks.check(there.isdisjoint(self.added), "no pending addition is in a chunk")
        checks.check(there.issuperset(self.removed), "every pending removal is in a chunk")
