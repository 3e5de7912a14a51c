"""How often each message was handed back: a counter per offset, kept as bit planes over sets of offsets."""

from __future__ import annotations

import struct

from pyroaring import BitMap64

from engine._native.offsets import range_set, runs

PLANES_MAX = 32  # a count that reaches 2^32 - 1 stays there

# In the metadata store: do not change. Version, number of planes; then each plane's size and serialised set.
_HEAD = struct.Struct("<BB")
_SIZE = struct.Struct("<I")
_VERSION = 1


class RedeliveryCounts:
    """Plane b holds the offsets whose count has bit b set, so that a million messages cost a few kilobytes.

    `changed`: since it was last set to False, by whoever stores them.
    """

    __slots__ = ("_planes", "changed")

    def __init__(self, planes: list[BitMap64] | None = None) -> None:
        self._planes: list[BitMap64] = planes or []
        self.changed = False

    def __bool__(self) -> bool:
        """Whether any count is not 0."""
        return bool(self._planes)

    def increment(self, offsets: BitMap64) -> None:
        """One more for each of them: binary addition, all offsets at once."""
        carry = offsets
        self.changed = self.changed or bool(offsets)
        for plane in self._planes:
            if not carry:
                return
            both = plane & carry
            plane.symmetric_difference_update(carry)
            carry = both
        if not carry:
            return
        if len(self._planes) < PLANES_MAX:
            self._planes.append(BitMap64(carry))
            return
        for plane in self._planes:
            plane |= carry

    def clear(self, offsets: BitMap64) -> None:
        """These are acknowledged: their counts are 0 again."""
        if not self._planes:
            return
        for plane in self._planes:
            plane -= offsets
        while self._planes and not self._planes[-1]:
            self._planes.pop()
        self.changed = True

    def count(self, offset: int) -> int:
        """How often this one was handed back."""
        return sum(1 << bit for bit, plane in enumerate(self._planes) if offset in plane)

    def groups(self, offsets: BitMap64) -> list[tuple[int, BitMap64]]:
        """(count, those of `offsets` that have it), without empty ones."""
        groups = [(0, offsets)]
        for bit, plane in enumerate(self._planes):
            split = []
            for count, group in groups:
                split += [(count, group - plane), (count | 1 << bit, group & plane)]
            groups = [(count, group) for count, group in split if group]
        return groups

    def ranges(self, first: int, last: int) -> list[list[int]]:
        """[first, last, count] for the offsets of first..last whose count is not 0, in order."""
        if not self._planes:
            return []
        groups = self.groups(range_set(first, last))
        return sorted([*run, count] for count, group in groups if count for run in runs(group))

    def to_bytes(self) -> bytes:
        """The stored form."""
        planes = [plane.serialize() for plane in self._planes]
        return _HEAD.pack(_VERSION, len(planes)) + b"".join(_SIZE.pack(len(p)) + p for p in planes)

    @classmethod
    def from_bytes(cls, data: bytes) -> RedeliveryCounts:
        """Undo to_bytes(). Raises ValueError for anything else, also of a later version."""
        try:
            version, count = _HEAD.unpack_from(data)
            if version != _VERSION or count > PLANES_MAX:
                raise ValueError(f"redelivery counts of version {version} with {count} planes")
            planes, at = [], _HEAD.size
            for _ in range(count):
                (size,) = _SIZE.unpack_from(data, at)
                at += _SIZE.size + size
                planes.append(BitMap64.deserialize(data[at - size : at]))
        except (struct.error, IndexError) as e:
            raise ValueError(f"redelivery counts of {len(data)} bytes are cut short") from e
        if at != len(data):
            raise ValueError(f"redelivery counts of {len(data)} bytes end at {at}")
        return cls(planes)
