"""Which entries of a producer a segment has already: duplicates are recognised by sequence id (SEMANTICS 24).

A producer's entries reach a segment in sequence order only per bucket, and only among entries of one kind (keyed or
keyless, transactional or not), because each of these is batched apart. So there is one lane per producer, bucket and
kind, and inside a lane sequences rise.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine._native.log import Claim
from engine.errors import CorruptionError, InvalidArgumentError, StorageError
from engine.model.hashrange import HashRange

RECENT = 16  # entries of a lane whose offsets are remembered; as in _native/log.pxd
LANES_MAX = 16_384  # of one segment; the lanes that were silent longest are forgotten first
UNKNOWN_OFFSET = -1
KEYED = 1  # of an entry's kind

# On disk: do not change. producer id, last sequence, last entry's first sequence and offset,
# segment range, bucket range, kind, whether it is the segment's own (1) or a parent's (0).
_RECORD = struct.Struct("<QQQqHHHHBB6x")

Seen = tuple[int, int, int]  # first sequence, last sequence, offset


class Lane:
    """The entries of one producer in one bucket, of one kind."""

    __slots__ = ("base", "recent", "refused")

    def __init__(self, base: int = -1, recent: Iterable[Seen] = ()) -> None:
        self.base = base  # the highest sequence before `recent`
        self.recent: list[Seen] = list(recent)
        self.refused: list[int] = []  # first sequences that failed and have to come again, in order, before others

    @property
    def last(self) -> int:
        """The highest sequence appended, -1 for none."""
        return self.recent[-1][1] if self.recent else self.base

    def offset_of(self, first: int, last: int) -> int:
        """The offset of an entry appended before, or UNKNOWN_OFFSET."""
        for seen_first, seen_last, offset in reversed(self.recent):
            if seen_first == first and seen_last == last:
                return offset
        return UNKNOWN_OFFSET

    def admit(self, first: int, last: int) -> None:
        """Raise StorageError when an earlier entry failed and has not come again."""
        if self.refused and first > self.refused[0]:
            if first not in self.refused:
                self.refused.append(first)
            raise StorageError(
                f"entry of sequence {first} refused: that of sequence {self.refused[0]} failed before it and has to be "
                "sent again first, or order would be lost"
            )

    def push(self, first: int, last: int, offset: int, durable: int) -> None:
        """Remember an appended entry; old durable ones make room."""
        if self.refused:
            self.refused = [f for f in self.refused if f > last]
        recent = self.recent
        recent.append((first, last, offset))
        if len(recent) > 2 * RECENT and recent[RECENT][2] < durable:
            self.base = recent[RECENT - 1][1]
            del recent[:RECENT]

    def rollback(self, offset: int) -> None:
        """Forget what was appended at or above an offset; it has to come again first."""
        failed = []
        while self.recent and self.recent[-1][2] >= offset:
            failed.append(self.recent.pop()[0])
        if failed:
            self.refused = failed[::-1] + self.refused


class Inherited(NamedTuple):
    """What a parent segment knew of a producer in one bucket of its own."""

    segment: HashRange
    bucket: HashRange
    kind: int
    seen: Seen  # its last entry there

    def covers(self, claim: Claim) -> bool:
        """Whether the entry's messages would all have been in that bucket of the parent."""
        return (
            self.kind == claim.kind
            and self.segment.start <= claim.segment_hash_min
            and claim.segment_hash_max <= self.segment.end
            and self.bucket.start <= claim.bucket_min
            and claim.bucket_max <= self.bucket.end
        )


class Dedup:
    """The lanes of one segment. Loop thread only."""

    __slots__ = ("_bucket_ends", "_inherited", "_lanes", "_segment")

    def __init__(self, segment: HashRange, bucket_ends: Sequence[int]) -> None:
        self._segment = segment
        self._bucket_ends = tuple(bucket_ends)
        self._lanes: dict[tuple[int, int, int], Lane] = {}
        self._inherited: dict[int, list[Inherited]] = {}

    def bucket_of(self, claim: Claim) -> int:
        """The index of the entry's bucket. Raises InvalidArgumentError when it spans two."""
        bucket = bisect_left(self._bucket_ends, claim.bucket_min)
        if claim.bucket_max > self._bucket_ends[bucket]:
            raise InvalidArgumentError(
                f"an entry holds bucket hashes {claim.bucket_min:04x}-{claim.bucket_max:04x}; buckets end at "
                f"{', '.join(f'{e:04x}' for e in self._bucket_ends)} and an entry belongs to one"
            )
        return bucket

    def find(self, claim: Claim) -> int | None:
        """The offset of a duplicate's original (UNKNOWN_OFFSET when forgotten); None for a new entry.

        Raises InvalidArgumentError when only a part of it is new, StorageError when an earlier one has to come first.
        """
        self._check_range(claim)
        first, last = claim.first_sequence, claim.last_sequence
        lane = self._lanes.get((claim.producer_id, claim.kind, self.bucket_of(claim)))
        if lane is not None:
            if first <= lane.last:
                self._check_whole(claim, lane.last)
                return lane.offset_of(first, last)
            lane.admit(first, last)
        for inherited in self._inherited.get(claim.producer_id, ()):
            if first <= inherited.seen[1] and inherited.covers(claim):
                self._check_whole(claim, inherited.seen[1])
                return UNKNOWN_OFFSET
        return None

    def _check_range(self, claim: Claim) -> None:
        """G4: a message lives in a segment whose range holds its hash. Keyless messages have none."""
        inside = self._segment
        if claim.kind & KEYED and not inside.start <= claim.segment_hash_min <= claim.segment_hash_max <= inside.end:
            raise InvalidArgumentError(
                f"an entry holds segment hashes {claim.segment_hash_min:04x}-{claim.segment_hash_max:04x}; "
                f"this segment holds {inside.start:04x}-{inside.end:04x}"
            )

    @staticmethod
    def _check_whole(claim: Claim, known: int) -> None:
        if claim.last_sequence > known:
            raise InvalidArgumentError(
                f"an entry holds sequences {claim.first_sequence} to {claim.last_sequence}, and those up to {known} "
                "are in the log already; send only the others"
            )

    def record(self, claim: Claim, offset: int, durable: int) -> None:
        """The entry was appended at `offset`."""
        key = (claim.producer_id, claim.kind, self.bucket_of(claim))
        lanes = self._lanes
        lane = lanes.get(key)
        if lane is None:
            if len(lanes) >= LANES_MAX:
                del lanes[next(iter(lanes))]
            lane = lanes[key] = Lane()
        elif len(lanes) > LANES_MAX // 2:
            lanes[key] = lanes.pop(key)
        lane.push(claim.first_sequence, claim.last_sequence, offset, durable)

    def rollback(self, offset: int) -> None:
        """What was appended at or above an offset failed."""
        for lane in self._lanes.values():
            lane.rollback(offset)

    def undo(self, offset: int) -> None:
        """What was recorded at or above an offset was not appended after all, and nobody was told."""
        for lane in self._lanes.values():
            while lane.recent and lane.recent[-1][2] >= offset:
                lane.recent.pop()

    def forget_refused(self, producer_id: int) -> None:
        """A new session of the producer: what failed before does not have to come again."""
        for key, lane in self._lanes.items():
            if key[0] == producer_id:
                lane.refused = []

    def last_sequence(self, producer_id: int) -> int:
        """The highest sequence known of a producer, -1 for none."""
        own = (lane.last for key, lane in self._lanes.items() if key[0] == producer_id)
        inherited = (i.seen[1] for i in self._inherited.get(producer_id, ()))
        return max((*own, *inherited), default=-1)

    def restore(self, lanes: Iterable[tuple[int, int, int, list[Seen]]]) -> None:
        """Continue with what a scan found after a snapshot: (producer id, kind, bucket, entries)."""
        for producer_id, kind, bucket, recent in lanes:
            lane = self._lanes.setdefault((producer_id, kind, bucket), Lane())
            lane.base = max(lane.last, recent[0][0] - 1) if len(recent) == RECENT else lane.last
            lane.recent = list(recent)

    def snapshot(self, below: int | None = None) -> bytes:
        """What is known, of entries below an offset only when one is given; for a file or for a child segment."""
        parts = []
        for (producer_id, kind, bucket), lane in self._lanes.items():
            seen = next((s for s in reversed(lane.recent) if below is None or s[2] < below), None)
            if seen is None and lane.base < 0:
                continue
            own = Inherited(self._segment, self._bucket(bucket), kind, seen or (0, lane.base, UNKNOWN_OFFSET))
            parts.append(_pack(producer_id, own, 1))
        for producer_id, records in self._inherited.items():
            parts.extend(_pack(producer_id, record, 0) for record in records)
        return b"".join(parts)

    def inherited_snapshot(self) -> bytes:
        """What came from parents."""
        return b"".join(_pack(i, record, 0) for i, records in self._inherited.items() for record in records)

    def load(self, snapshot: bytes, *, from_parent: bool = False) -> None:
        """Take over a snapshot of this segment or of a parent. Loading it twice changes nothing."""
        if len(snapshot) % _RECORD.size:
            raise CorruptionError(f"a snapshot of duplicate detection has {len(snapshot)} bytes")
        for record in _RECORD.iter_unpack(snapshot):
            producer_id, last, first, offset, start, end, low, high, kind, own = record
            if own and not from_parent:
                self._load_own((producer_id, kind, bisect_left(self._bucket_ends, high)), (first, last, offset))
            else:
                seen = (first, last, UNKNOWN_OFFSET)
                self._load_inherited(producer_id, Inherited(HashRange(start, end), HashRange(low, high), kind, seen))

    def _load_own(self, key: tuple[int, int, int], seen: Seen) -> None:
        lane = self._lanes.setdefault(key, Lane())
        if seen[1] > lane.last:
            lane.base, lane.recent = (seen[1], []) if seen[2] < 0 else (max(lane.last, seen[0] - 1), [seen])

    def _load_inherited(self, producer_id: int, new: Inherited) -> None:
        records = self._inherited.setdefault(producer_id, [])
        for i, old in enumerate(records):
            if old[:3] == new[:3]:
                records[i] = new if new.seen[1] > old.seen[1] else old
                return
        records.append(new)

    def _bucket(self, index: int) -> HashRange:
        return HashRange(self._bucket_ends[index - 1] + 1 if index else 0, self._bucket_ends[index])


def _pack(producer_id: int, record: Inherited, own: int) -> bytes:
    first, last, offset = record.seen
    segment, bucket = record.segment, record.bucket
    return _RECORD.pack(
        producer_id, last, first, offset, segment.start, segment.end, bucket.start, bucket.end, record.kind, own
    )
