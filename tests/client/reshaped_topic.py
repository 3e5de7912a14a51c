"""A topic in memory that splits, merges and rebuckets, with real duplicate detection in each segment."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from engine._native.format.entry import Entry, EntryMessage
from engine._native.serve import log
from engine.model.compression import decompressor
from engine.model.hashrange import HashRange
from engine.storage.dedup.dedup import Dedup


def even(buckets: int) -> tuple[int, ...]:
    """Inclusive ends of so many equal buckets."""
    return tuple((b + 1) * (65536 // buckets) - 1 for b in range(buckets))


@dataclass
class Piece:
    """One segment."""

    ident: int
    range: HashRange
    bucket_ends: tuple[int, ...]
    parents: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    sealed: bool = False
    entries: list[bytes] = field(default_factory=list)
    next_offset: int = 0

    def __post_init__(self) -> None:
        self.dedup = Dedup(self.range, self.bucket_ends)
        self._inherited: list[bytes] = []

    def inherit(self, bequest: bytes) -> None:
        self._inherited.append(bequest)
        self.dedup.load(bequest, from_parent=True)

    def append(self, data: bytes) -> tuple[int, bool]:
        """(first offset or -1, duplicate)."""
        (claim,) = log.entries(data)
        known = self.dedup.find(claim)
        if known is not None:
            return known, True
        self.dedup.record(claim, self.next_offset, self.next_offset)
        first, self.next_offset = self.next_offset, self.next_offset + claim.count
        self.entries.append(data)
        return first, False

    def restart(self, rng: random.Random) -> None:
        """Another process opens it: what came from parents, what a file began with, what lies in the file."""
        at = rng.randrange(len(self.entries) + 1)
        before = Dedup(self.range, self.bucket_ends)
        after = Dedup(self.range, self.bucket_ends)
        for image in self._inherited:
            before.load(image, from_parent=True)
            after.load(before.parents_snapshot(), from_parent=True)
        offset = 0
        for data in self.entries[:at]:
            claims = log.entries(data)
            before.replay(claims, offset)
            offset += claims[0].count
        after.load(before.snapshot())
        for data in self.entries[at:]:
            claims = log.entries(data)
            after.replay(claims, offset)
            offset += claims[0].count
        self.dedup = after

    def messages(self) -> list[EntryMessage]:
        """Everything in it, in order."""
        found: list[EntryMessage] = []
        for data in self.entries:
            found += Entry(data).messages(decompressor())
        return found


class ReshapedTopic:
    """`active` is ordered by range."""

    def __init__(self, rng: random.Random, segments: int, buckets: int) -> None:
        self.rng = rng
        self.epoch = 0
        self.pieces = {i: Piece(i, r, even(buckets)) for i, r in enumerate(HashRange.divide(segments))}

    @property
    def active(self) -> list[Piece]:
        return sorted((p for p in self.pieces.values() if not p.sealed), key=lambda p: p.range.start)

    def reshape(self) -> list[Piece]:
        """One random change; the parents."""
        kind = self.rng.choice(["split", "split", "merge", "merge", "rebucket"])
        at = self.rng.randrange(len(self.active))
        if kind == "merge" and len(self.active) > 1:
            return self.merge(min(at, len(self.active) - 2))
        if kind == "rebucket":
            return self.rebucket(at, self.rng.choice([1, 2, 4, 8]))
        return self.split(at)

    def split(self, at: int) -> list[Piece]:
        parent = self.active[at]
        inside = parent.range
        if inside.width < 2:
            return []
        middle = (inside.start + inside.end) // 2
        self._succeed(
            [parent], [HashRange(inside.start, middle), HashRange(middle + 1, inside.end)], parent.bucket_ends
        )
        return [parent]

    def merge(self, at: int) -> list[Piece]:
        left, right = self.active[at : at + 2]
        ends = max(left.bucket_ends, right.bucket_ends, key=len)
        self._succeed([left, right], [HashRange(left.range.start, right.range.end)], ends)
        return [left, right]

    def rebucket(self, at: int, buckets: int) -> list[Piece]:
        parent = self.active[at]
        self._succeed([parent], [parent.range], even(buckets))
        return [parent]

    def _succeed(self, parents: list[Piece], ranges: list[HashRange], ends: tuple[int, ...]) -> None:
        for inside in ranges:
            child = Piece(len(self.pieces), inside, ends, parents=[p.ident for p in parents])
            self.pieces[child.ident] = child
            for parent in parents:
                parent.sealed = True
                parent.children.append(child.ident)
                child.inherit(parent.dedup.child_snapshot())
        self.epoch += 1

    def lineage(self) -> list[Piece]:
        """Every segment, parents before children: ids only rise."""
        return [self.pieces[i] for i in sorted(self.pieces)]


def check(topic: ReshapedTopic, sent: list[tuple[int, bytes | None]]) -> None:
    """Each message lies in the topic once, and those of a key lie in the order in which they were sent."""
    found = [(m.sequence_id, m.key) for piece in topic.lineage() for m in piece.messages()]
    assert sorted(found, key=lambda m: m[0]) == sent
    keys: dict[bytes, int] = {}
    for sequence, key in found:
        if key is not None:
            assert keys.get(key, -1) < sequence, f"{key!r} out of order"
            keys[key] = sequence
