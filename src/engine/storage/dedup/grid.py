"""How duplicate detection divides a segment: its own buckets, cut further along the boundaries of earlier segments.

When two parents' unacknowledged messages reach one bucket of a merged child, their sequences rise only within each
parent's part. The same holds for the buckets of a parent that had more of them. So the level of a producer is kept per
cell, a part of the segment's range (a row) by a part of a bucket (a column):

                         bucket 0         bucket 1           a child 0000-ffff with two buckets, whose parents were
                      ┌───────┬───────┬────────────────┐     0000-7fff with three buckets and 8000-ffff with two:
    0000-7fff         │   9   │   7   │       7        │     one row per parent, and bucket 0 is cut in two
    8000-ffff         │   4   │   4   │       2        │
                      └───────┴───────┴────────────────┘

An entry of a child covers an area of cells: from its least to its largest hash in both directions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from engine._native.serve.log import Claim
from engine.limits import HASH_RING_SIZE
from engine.model.hashrange import HashRange

# Rows [top, bottom) by columns [left, right) of one bucket; None in a bucket of one cell.
Area = tuple[int, int, int, int]


class Rectangle(NamedTuple):
    """A range of segment hashes by a range of bucket hashes."""

    segment: HashRange
    bucket: HashRange

    def holds(self, other: Rectangle) -> bool:
        """Whether the other one lies inside."""
        return _holds(self.segment, other.segment) and _holds(self.bucket, other.bucket)


def _holds(outer: HashRange, inner: HashRange) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end


class Grid:
    """The cells of a segment. Immutable. Ends are inclusive and rise; `columns[bucket]` ends where the bucket does."""

    __slots__ = ("bucket_ends", "columns", "plain", "rows", "segment")

    def __init__(
        self,
        segment: HashRange,
        bucket_ends: Sequence[int],
        rows: Iterable[int] = (),
        columns: Iterable[int] = (),
    ) -> None:
        self.segment = segment
        self.bucket_ends = tuple(bucket_ends)
        self.rows = (*sorted({end for end in rows if segment.start <= end < segment.end}), segment.end)
        ends = sorted({*columns, *self.bucket_ends} - {-1})
        at = [bisect_left(ends, end) + 1 for end in self.bucket_ends]
        self.columns = [tuple(ends[a:b]) for a, b in zip([0, *at], at, strict=False)]
        self.plain = len(self.rows) == 1 and len(ends) == len(self.bucket_ends)

    def cut(self, boundaries: Iterable[Rectangle]) -> Grid:
        """The grid with cuts along these rectangles too; itself if it has them all."""
        rows, columns = set(self.rows), {end for ends in self.columns for end in ends}
        before = len(rows), len(columns)
        for segment, bucket in boundaries:
            rows |= {end for end in (segment.start - 1, segment.end) if self.segment.start <= end < self.segment.end}
            columns |= {bucket.start - 1, bucket.end}
        columns.discard(-1)
        if (len(rows), len(columns)) == before:
            return self
        return Grid(self.segment, self.bucket_ends, rows, columns)

    def cells(self, bucket: int) -> int:
        return len(self.rows) * len(self.columns[bucket])

    def area_of(self, claim: Claim, bucket: int) -> Area | None:
        """The cells that an entry may have messages in."""
        return self._area(
            bucket, claim.segment_hash_min, claim.segment_hash_max, claim.bucket_min, claim.bucket_max
        )  # fmt: skip

    def areas(self, rectangle: Rectangle) -> Iterator[tuple[int, Area | None]]:
        """(bucket, its area in the rectangle) of every bucket that overlaps it."""
        segment, inside = rectangle
        first = bisect_left(self.bucket_ends, inside.start)
        for bucket in range(first, bisect_left(self.bucket_ends, inside.end) + 1):
            low, high = max(inside.start, self.start_of(bucket)), min(inside.end, self.bucket_ends[bucket])
            yield bucket, self._area(bucket, segment.start, segment.end, low, high)

    def _area(self, bucket: int, top: int, bottom: int, left: int, right: int) -> Area | None:
        rows, columns = self.rows, self.columns[bucket]
        if len(rows) == len(columns) == 1:
            return None
        last = self.segment.end  # keyless messages may claim any hash
        return (
            bisect_left(rows, min(top, last)),
            bisect_left(rows, min(bottom, last)) + 1,
            bisect_left(columns, left),
            bisect_left(columns, right) + 1,
        )

    def start_of(self, bucket: int) -> int:
        return self.bucket_ends[bucket - 1] + 1 if bucket else 0

    def whole(self, bucket: int) -> Rectangle:
        return Rectangle(self.segment, HashRange(self.start_of(bucket), self.bucket_ends[bucket]))

    def rectangles(self, bucket: int, levels: Sequence[int]) -> Iterator[tuple[Rectangle, int]]:
        """The cells of a bucket, joined where levels are equal; those of level -1 are left out."""
        columns = self.columns[bucket]
        width = len(columns)
        rows = [(tuple(levels[i * width : (i + 1) * width]), end) for i, end in enumerate(self.rows)]
        top = self.segment.start
        for row, group in groupby(rows, key=lambda r: r[0]):
            bottom = list(group)[-1][1]
            left = self.start_of(bucket)
            for level, run in groupby(zip(row, columns, strict=True), key=lambda c: c[0]):
                right = list(run)[-1][1]
                if level >= 0:
                    yield Rectangle(HashRange(top, bottom), HashRange(left, right)), level
                left = right + 1
            top = bottom + 1

    def boundaries(self) -> Iterator[Rectangle]:
        """Rectangles along which another grid is cut to have all cuts of this one."""
        ring = HashRange(0, HASH_RING_SIZE - 1)
        top = self.segment.start
        for end in self.rows:
            yield Rectangle(HashRange(top, end), ring)
            top = end + 1
        left = 0
        for ends in self.columns:
            for end in ends:
                yield Rectangle(self.segment, HashRange(left, end))
                left = end + 1
