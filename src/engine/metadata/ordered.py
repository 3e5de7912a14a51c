"""A sorted set that stays cheap to change when it is large: what ranges and indexes are read from."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T", str, tuple[str, str])

_CHUNK_SIZE_MAX = 1024


class OrderedSet(Generic[T]):
    """Distinct items in order, as a list of short sorted lists.

    Invariant: no chunk is empty, and `_lasts[i]` is the last item of `_chunks[i]`.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        """`items` must be sorted and distinct."""
        source = iter(items)
        self._chunks: list[list[T]] = []
        while chunk := list(islice(source, _CHUNK_SIZE_MAX // 2)):
            self._chunks.append(chunk)
        self._lasts: list[T] = [chunk[-1] for chunk in self._chunks]

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def add(self, item: T) -> None:
        """Put in an item that is not there."""
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

    def remove(self, item: T) -> None:
        """Take out an item that is there."""
        at = bisect_left(self._lasts, item)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, item)]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]

    def between(self, start: T, end: T, limit: int | None = None) -> list[T]:
        """The items with start <= item < end, in order, at most `limit`."""
        found: list[T] = []
        for chunk in self._chunks[bisect_left(self._lasts, start) :]:
            low, high = bisect_left(chunk, start), bisect_left(chunk, end)
            found += chunk[low:high]
            if high < len(chunk) or (limit is not None and len(found) >= limit):
                break
        return found if limit is None else found[: max(limit, 0)]
