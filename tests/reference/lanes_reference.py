"""Duplicate detection in a segment of plain buckets, and what an append becomes, as plain Python.

Slow, obvious, and independent of the native code it is compared with. Nothing is ever forgotten here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.reference.entry_reference import HEADER, KEYED, Stamp, stamped

Place = tuple[int, int, int, int, bool]  # first and last sequence, first offset, messages, whether it is a duplicate


class PartlyStoredError(Exception):
    """Some of its messages are stored, others are not."""


class OutOfOrderError(Exception):
    """An earlier one that failed has to come again first."""


class OutsideError(Exception):
    """It is in no bucket, or not in the segment."""


@dataclass(frozen=True)
class Fields:
    """What the header of an entry says."""

    size: int
    flags: int
    count: int
    buckets: tuple[int, int]
    hashes: tuple[int, int]
    producer: int
    sequences: tuple[int, int]


def fields_of(entry: bytes) -> Fields:
    """The header of an entry."""
    h = HEADER.unpack_from(entry)
    return Fields(h[1], h[5], h[8], (h[10], h[11]), (h[12], h[13]), h[16], (h[17], h[18]))


def split(data: bytes) -> list[bytes]:
    """Entries that lie back to back."""
    found, at = [], 0
    while at < len(data):
        size = fields_of(data[at:]).size
        found.append(data[at : at + size])
        at += size
    return found


@dataclass
class PlainSegment:
    """The hashes `start` to `end`, in buckets that end at `ends`. `log` has what was appended, stamped."""

    start: int
    end: int
    ends: tuple[int, ...]
    stamp: Stamp
    log: list[tuple[int, tuple[int, int, int], Fields, bytes]] = field(default_factory=list)
    next_offset: int = 0
    refused: dict[tuple[int, int, int], list[int]] = field(default_factory=dict)

    def key_of(self, entry: Fields) -> tuple[int, int, int]:
        """The lane of an entry."""
        if entry.flags & KEYED and not self.start <= entry.hashes[0] <= entry.hashes[1] <= self.end:
            raise OutsideError
        bucket = next(i for i, end in enumerate(self.ends) if entry.buckets[0] <= end)
        if entry.buckets[1] > self.ends[bucket]:
            raise OutsideError
        return entry.producer, entry.flags & 3, bucket

    def append(self, data: bytes) -> list[Place]:
        """The places of all entries; none is stored where one is refused."""
        before, places = (list(self.log), self.next_offset), []
        left = {key: list(firsts) for key, firsts in self.refused.items()}
        try:
            for entry in split(data):
                places.append(self._append_one(entry))
        except (PartlyStoredError, OutsideError, OutOfOrderError):
            self.log, self.next_offset = before
            del left
            raise
        return places

    def _append_one(self, entry: bytes) -> Place:
        said = fields_of(entry)
        key, (first, last) = self.key_of(said), said.sequences
        mine = [(offset, other) for offset, lane, other, _ in self.log if lane == key]
        level = max((other.sequences[1] for _, other in mine), default=-1)
        if last <= level:
            same = [(o, other) for o, other in mine if other.sequences == said.sequences]
            offset = same[-1][0] if same and same[-1][1].count == said.count else -1
            return first, last, offset, said.count, True
        if first <= level:
            raise PartlyStoredError
        order = key[0], key[1] & KEYED, key[2]
        waiting = self.refused.get(order, [])
        if waiting and first > waiting[0]:
            if first not in waiting:
                waiting.append(first)
            raise OutOfOrderError
        self.refused[order] = [one for one in waiting if one > last]
        offset = self.next_offset
        image = stamped(entry, Stamp(
            self.stamp.segment_id, offset, self.stamp.publish_time_ms, self.stamp.term, self.stamp.durable_upto,
            self.stamp.salt,
        ))  # fmt: skip
        self.log.append((offset, key, said, image))
        self.next_offset += said.count
        return first, last, offset, said.count, False

    def roll_back(self, offset: int) -> None:
        """What lies at or above an offset has failed, and has to come again first."""
        for at, (producer, kind, bucket), said, _ in self.log:
            if at >= offset:
                order = producer, kind & KEYED, bucket
                self.refused[order] = sorted([*self.refused.get(order, []), said.sequences[0]])
        self.log = [one for one in self.log if one[0] < offset]
        self.next_offset = offset
