"""How often each message was handed back: a counter per offset, kept as bit planes over sets of offsets."""

from __future__ import annotations

from pyroaring import BitMap64


def range_set(first: int, last: int) -> BitMap64:
    """The offsets first..last, both inclusive."""
    found = BitMap64()
    found.add_range(first, last + 1)
    return found


def runs(offsets: BitMap64) -> list[list[int]]:
    """The maximal [first, last] runs of a set, in order."""
    if not offsets:
        return []
    first, last = offsets.min(), offsets.max()
    if last - first + 1 == len(offsets):
        return [[first, last]]
    found: list[list[int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset - 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return found


class RedeliveryCounts:
    """Plane b holds the offsets whose count has bit b set, so that a million messages cost a few kilobytes."""

    __slots__ = ("_planes",)

    def __init__(self) -> None:
        self._planes: list[BitMap64] = []

    def __bool__(self) -> bool:
        """Whether any count is not 0."""
        return bool(self._planes)

    def increment(self, offsets: BitMap64) -> None:
        """One more for each of them: binary addition, all offsets at once."""
        carry = offsets
        for plane in self._planes:
            if not carry:
                return
            both = plane & carry
            plane.symmetric_difference_update(carry)
            carry = both
        if carry:
            self._planes.append(BitMap64(carry))

    def clear(self, first: int, last: int) -> None:
        """first..last are acknowledged: their counts are 0 again."""
        for plane in self._planes:
            plane.remove_range(first, last + 1)
        while self._planes and not self._planes[-1]:
            self._planes.pop()

    def count(self, offset: int) -> int:
        """How often this one was handed back."""
        return sum(1 << bit for bit, plane in enumerate(self._planes) if offset in plane)

    def ranges(self, first: int, last: int) -> list[list[int]]:
        """[first, last, count] for the offsets of first..last whose count is not 0, in order."""
        if not self._planes:
            return []
        counted = range_set(first, last)
        counted &= BitMap64().union(*self._planes)
        found: list[list[int]] = []
        for offset in counted:
            count = self.count(offset)
            if found and found[-1][1] == offset - 1 and found[-1][2] == count:
                found[-1][1] = offset
            else:
                found.append([offset, offset, count])
        return found
