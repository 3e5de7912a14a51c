"""Redelivery counts: a counter for each offset, stored as bit planes over compressed sets of offsets."""

from __future__ import annotations

from typing import Any

from pyroaring import BitMap64

from engine._native.format.offsets import range_set, runs
from engine.errors import InvalidArgumentError
from engine.model.redelivery import Backoff

PACKED_MAX = 10_000  # ranges of counts that another broker is given
PACKED_OFFSETS_MAX = 100_000_000  # offsets in them
PLANES_MAX = 32  # a count that reaches 2^32 - 1 stays there


class RedeliveryCounts:
    """Plane b has the offsets whose count has bit b set: a million messages take a few kilobytes."""

    __slots__ = ("planes",)

    def __init__(self) -> None:
        self.planes: list[BitMap64] = []

    def __bool__(self) -> bool:
        """Whether any count is not 0."""
        return bool(self.planes)

    def increment(self, offsets: BitMap64) -> None:
        """Add 1 to the count of each: binary addition, of all offsets at once."""
        carry = offsets
        for plane in self.planes:
            if not carry:
                return
            both = plane & carry
            plane.symmetric_difference_update(carry)
            carry = both
        if not carry:
            return
        if len(self.planes) < PLANES_MAX:
            self.planes.append(BitMap64(carry))
            return
        for plane in self.planes:
            plane |= carry

    def pack(self) -> list[tuple[int, int, int]]:
        """(first, last, count) for another broker; at most PACKED_MAX of them, those of the first offsets."""
        counted = BitMap64()
        for plane in self.planes:
            counted |= plane
        return self.ranges(counted[0], counted[-1])[:PACKED_MAX] if counted else []

    @classmethod
    def unpack(cls, ranges: Any) -> RedeliveryCounts:
        """Undo pack(). Raises InvalidArgumentError."""
        found, room = cls(), PACKED_OFFSETS_MAX
        try:
            for first, last, count in ranges[:PACKED_MAX]:
                room -= last - first
                if not 0 <= first <= last or not 0 < count < 1 << PLANES_MAX or room < 0:
                    raise ValueError(f"({first}, {last}, {count})")
                found.planes += [BitMap64() for _ in range(count.bit_length() - len(found.planes))]
                for bit, plane in enumerate(found.planes):
                    if count >> bit & 1:
                        plane |= range_set(first, last)
        except (TypeError, ValueError, AttributeError, OverflowError) as e:
            text = f"redelivery counts must be (first, last, count) of at most {PACKED_OFFSETS_MAX:,} offsets"
            raise InvalidArgumentError(f"{text}, got {e!s:.80}") from None
        return found

    def clear(self, offsets: BitMap64) -> None:
        """Reset the counts of acknowledged messages to 0."""
        if not self.planes:
            return
        for plane in self.planes:
            plane -= offsets
        while self.planes and not self.planes[-1]:
            self.planes.pop()

    def count(self, offset: int) -> int:
        """The count of one offset."""
        return sum(1 << bit for bit, plane in enumerate(self.planes) if offset in plane)

    def groups(self, offsets: BitMap64) -> list[tuple[int, BitMap64]]:
        """The offsets by count: (count, offsets), without empty sets."""
        groups = [(0, offsets)]
        for bit, plane in enumerate(self.planes):
            split = []
            for count, group in groups:
                split += [(count, group - plane), (count | 1 << bit, group & plane)]
            groups = [(count, group) for count, group in split if group]
        return groups

    def ranges(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """(first, last, count) for the offsets of first..last whose count is not 0, in order."""
        if not self.planes:
            return []
        groups = self.groups(range_set(first, last))
        return sorted((run[0], run[1], count) for count, group in groups if count for run in runs(group))


def backoff_of(parts: Any) -> Backoff | None:
    """[min, max, multiplier] of a REDELIVER. Raises InvalidArgumentError."""
    if parts is None:
        return None
    if not isinstance(parts, list) or len(parts) != 3:
        raise InvalidArgumentError(f"backoff must be [min, max, multiplier], got {parts!r:.80}")
    return Backoff(*parts)
