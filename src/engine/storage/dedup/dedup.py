"""Which entries of a producer are in a segment already: duplicates are recognised by sequence id (semantics 24).

A producer numbers its messages. If a segment received them all in order, one number per producer would do: the highest
sequence stored. But a client batches per bucket and per kind (keyed or keyless, transactional or not) and sends these
batches side by side, so sequences rise only per producer, bucket and kind: a *lane*. In each lane, for an entry with
the sequences first..last,

    last <= level          a duplicate: acknowledged again, with the original's offset if that is still remembered and
                           the entry is the original again: of the same first, last and number of messages
    first > level          new: the level becomes `last`
    first <= level < last  part of it is stored: refused, since an entry has one place or none

**Chunks.** All chunks of a message of Apache Pulsar's clients have the sequence id of that message. So only the last
one is in the lane of its kind, and makes the message known as stored. Those before it are in a lane of their own
(PART), by numbers that their door to the broker gives them, one for each: see pulsar/chunks.py.

**Across reshapes.** A split, merge or rebucket seals the parents and creates children, and a client then sends to a
child what the parents did not acknowledge. So each parent hands its children a *producer snapshot*: per producer and
kind, the rectangles (segment hashes by bucket hashes) below whose level everything is stored.

    parents        ┌─── A: level 7 ───┐┌─── B: level 4 ───┐
    merged child   ├── one bucket, cut along the parents' boundaries into two cells: 7 │ 4 ──┤

Sequences of two parents' leftovers do not rise together in the child: message 5 of B may come after message 9 of A. So
the child cuts its buckets along the boundaries of all segments before it, and keeps a level per cell: see grid.py. Each
generation passes on what it got, so that a message may come late by any number of reshapes.

**After a failure.** An append that failed has to come again before what was sent behind it, or the order of a key's
messages would be lost. Until it has come, later entries of its lane are refused; transactional and other entries of a
bucket are one order here, because a key's messages may be in both. A new session of the producer starts afresh.

**Limits.** The lanes that were silent longest are forgotten first. Each entry states a *floor*: all its producer's
messages with a lower sequence are stored, in whatever segment. It bounds what a producer that resumes has to resend.

Everything here is in memory. It is part of each log file as a snapshot: of what was known before the file at its head,
and of what was known at its end in its footer. Recovery loads one of them and replays the entries behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from engine._native.produce.hashing import xxh64
from engine._native.serve.lanes import UNKNOWN_OFFSET, Lane, Lanes
from engine._native.serve.log import Claim
from engine.errors import CorruptionError, InvalidArgumentError
from engine.limits import HASH_RING_SIZE
from engine.model.hashrange import HashRange
from engine.storage.dedup.grid import Area, Grid, Rectangle
from engine.storage.dedup.lanes import RECENT, GridLane, Seen, seen_up_to

LANES_MAX = 16_384  # of one segment; the lane that was silent longest is forgotten first
CHILD_RECORDS_MAX = 8_192  # of producers; the snapshots of two parents and their shapes fit a frame's header
KEYED = 1  # of an entry's kind
PART = 4  # of an entry's kind: a chunk which others follow; as in _native/serve/log.pxd

# On disk: do not change. producer id, last sequence, last entry's first sequence and offset, segment range, bucket
# range, kind, whether it is the segment's own (1) or a parent's (0), the last entry's messages (0: not known, as in
# files of older builds).
_RECORD = struct.Struct("<QQQqHHHHBB2xI")
_HELD = 253  # as a kind, in a child's snapshot only: the producer had exclusive access to the parent
_FLOOR = 254  # as a kind, with the whole ring: everything below the `last` sequence is stored in some segment
_BOUNDARY = 255  # as a kind, with the producer id 0: only a rectangle along which the ring was divided

_SEQUENCE_MAX = 2**63 - 1  # as producers may number; the lanes keep signed numbers

Key = tuple[int, int, int]  # producer id, kind, bucket


@lru_cache(1024)
def producer_id(name: str) -> int:
    """The id of a producer in entries: a hash of its name."""
    return xxh64(name.encode())


class Known(NamedTuple):
    """All messages of a producer with hashes in `where`, up to and with the entry `seen`, are stored."""

    kind: int
    where: Rectangle
    seen: Seen

    def covers(self, other: Known) -> bool:
        """Whether the other one adds nothing."""
        return self.kind == other.kind and self.seen[1] >= other.seen[1] and self.where.holds(other.where)


_RING = Rectangle(HashRange(0, HASH_RING_SIZE - 1), HashRange(0, HASH_RING_SIZE - 1))


class Dedup(Lanes):
    """The lanes of one segment."""

    __slots__ = ("_from_parents", "_grid", "_segment")

    def __init__(self, segment: HashRange, bucket_ends: Sequence[int]) -> None:
        super().__init__(LANES_MAX, segment.start, segment.end, bucket_ends)
        self._segment = segment
        self._grid = Grid(segment, bucket_ends)
        self._from_parents: dict[int, list[Known]] = {}
        self.plain = self._grid.plain

    def fresh(self) -> Dedup:
        """A second one for the same segment, with what parents knew, and nothing of the segment's own."""
        made = Dedup(self._segment, self._grid.bucket_ends)
        made._grid, made.plain = self._grid, self.plain
        made.floors = dict(self.floors)
        made._from_parents = {producer_id: list(records) for producer_id, records in self._from_parents.items()}
        return made

    def is_inherited(self, producer_id: int) -> bool:
        return producer_id in self._from_parents

    def area_of(self, claim: Claim, bucket: int) -> Area | None:
        return self._grid.area_of(claim, bucket)

    def replay(self, claims: Iterable[Claim], offset: int) -> None:
        """Record entries that lie back to back in the log from `offset` on."""
        for claim in claims:
            self.record(claim, offset, offset)
            offset += claim.count

    def _lane(self, key: Key) -> Lane:
        lane: Lane | None = self.lanes.get(key)
        return self.begin(key) if lane is None else lane

    def begin(self, key: Key) -> Lane:
        """A new lane begins with what parents knew."""
        lanes = self.lanes
        if len(lanes) >= LANES_MAX:
            del lanes[next(iter(lanes))]
        producer_id, kind, bucket = key
        cells = self._grid.cells(bucket)
        lane: Lane = Lane() if cells == 1 else GridLane(len(self._grid.columns[bucket]), cells)
        lanes[key] = lane
        for known in self._from_parents.get(producer_id, ()):
            if known.kind == kind:
                self._lift(key, lane, known)
        return lane

    def _lift(self, key: Key, lane: Lane, known: Known) -> None:
        for bucket, area in self._grid.areas(known.where):
            if bucket == key[2]:
                lane.lift(area, known.seen)

    def rollback(self, offset: int, acknowledged: int = 0) -> None:
        """The appends at or above an offset failed, and have to come again first.

        Those below `acknowledged` were lost in a relaxed mode after their acknowledgement: they are only forgotten.
        """
        for (producer_id, kind, bucket), lane in self.lanes.items():
            failed = lane.drop(max(offset, acknowledged))
            lane.drop(offset)
            if failed:
                key = (producer_id, kind & (KEYED | PART), bucket)
                self.refused[key] = sorted(failed + self.refused.pop(key, []))
        for key in list(self.refused)[:-LANES_MAX]:
            del self.refused[key]

    def undo(self, offset: int) -> None:
        """Forget what was recorded at or above an offset: it was not appended, and not acknowledged."""
        for lane in self.lanes.values():
            lane.drop(offset)

    def forget_refused(self, producer_id: int) -> None:
        """A new session of the producer begins: it need not resend what failed before."""
        for key in [key for key in self.refused if key[0] == producer_id]:
            del self.refused[key]

    def last_sequence(self, producer_id: int) -> int:
        """The highest sequence stored of a producer, -1 for none."""
        own = (lane.last for key, lane in self.lanes.items() if key[0] == producer_id and not key[1] & PART)
        inherited = (known.seen[1] for known in self._from_parents.get(producer_id, ()) if not known.kind & PART)
        return max((*own, *inherited), default=-1)

    def levels(self, producer_id: int) -> dict[int, int]:
        """By the kind of an entry, the highest sequence stored of a producer: of the segment's own entries."""
        found: dict[int, int] = {}
        for key, lane in self.lanes.items():
            if key[0] == producer_id:
                found[key[1]] = max(found.get(key[1], -1), lane.last)
        return found

    def last_part(self, producer_id: int) -> tuple[int, int]:
        """(sequence, offset) of the newest chunk of a producer which others follow; -1 for what is not known."""
        found = [(-1, UNKNOWN_OFFSET)]
        for key, lane in self.lanes.items():
            if key[0] == producer_id and key[1] & PART:
                found.append((lane.last, lane.recent[-1][2] if lane.recent else UNKNOWN_OFFSET))
        return max(found)

    @property
    def producers(self) -> int:
        """How many producers it remembers."""
        return len({producer_id for producer_id, _, _ in self.lanes} | self._from_parents.keys())

    def remembers(self, producer_id: int) -> bool:
        """Whether it knows a sequence of the producer."""
        return self.last_sequence(producer_id) >= 0

    def floor(self, producer_id: int) -> int:
        """Every message of the producer with a lower sequence is stored in some segment; 0 for nothing known."""
        return self.floors.get(producer_id, 0)

    # -- snapshots -----------------------------------------------------------------------------------------------

    def restore(self, lanes: Iterable[tuple[int, int, int, list[Seen], int]]) -> None:
        """Continue with what a scan found after a snapshot: (producer id, kind, bucket, entries, floor)."""
        for producer_id, kind, bucket, recent, floor in lanes:
            self.raise_floor(producer_id, floor)
            lane = self._lane((producer_id, kind, bucket))
            lane.base = max(lane.last, recent[0][0] - 1) if len(recent) == RECENT else lane.last
            lane.recent = list(recent)

    def snapshot(self, below: int | None = None) -> bytes:
        """What is known, for a file of this segment. `below`: only what lies below that offset."""
        own = [_pack(key[0], known, 1) for key, lane in self.lanes.items() for known in self._known(key, lane, below)]
        return b"".join(own) + b"".join(map(self._packed_floor, self.floors)) + self._packed_from_parents()

    def child_snapshot(self, below: int | None = None) -> bytes:
        """The producer snapshot for child segments: what is known, and along which boundaries it is divided.

        Of more than CHILD_RECORDS_MAX records those of the producers that were silent longest are left out.
        """
        own: dict[int, list[Known]] = {}
        for key, lane in self.lanes.items():
            own.setdefault(key[0], []).extend(self._known(key, lane, below))
        parts = []
        for producer_id in [*(p for p in self._from_parents if p not in own), *own]:
            known = own.get(producer_id, [])
            known = known + [r for r in self._from_parents.get(producer_id, ()) if not any(o.covers(r) for o in known)]
            parts += [_pack(producer_id, record, 0) for record in known]
            if producer_id in self.floors:
                parts.append(self._packed_floor(producer_id))
        return b"".join(parts[-CHILD_RECORDS_MAX:]) + _packed_boundaries(self._grid)

    def _known(self, key: Key, lane: Lane, below: int | None) -> Iterator[Known]:
        _, kind, bucket = key
        if isinstance(lane, GridLane):
            for where, level in self._grid.rectangles(bucket, lane.levels_below(below)):
                yield Known(kind, where, seen_up_to(level))
            return
        seen = next((s for s in reversed(lane.recent) if below is None or s[2] < below), None)
        if seen is not None or lane.base >= 0:
            yield Known(kind, self._grid.whole(bucket), seen or seen_up_to(lane.base))

    def parents_snapshot(self) -> bytes:
        """What came from parents, to be stored before the first append."""
        floors = b"".join(self._packed_floor(i) for i in self._from_parents if i in self.floors)
        return self._packed_from_parents() + floors + _packed_boundaries(self._grid)

    def _packed_from_parents(self) -> bytes:
        return b"".join(_pack(i, record, 0) for i, records in self._from_parents.items() for record in records)

    def _packed_floor(self, producer_id: int) -> bytes:
        return _pack(producer_id, Known(_FLOOR, _RING, seen_up_to(self.floors[producer_id])), 0)

    def load(self, snapshot: bytes, *, from_parent: bool = False) -> None:
        """Load a snapshot of this segment, or a parent's producer snapshot. Idempotent.

        The parents' have to be loaded before anything of the segment's own. Raises CorruptionError.
        """
        if len(snapshot) % _RECORD.size:
            raise CorruptionError(
                f"a producer snapshot must have a multiple of {_RECORD.size} bytes, got {len(snapshot)}"
            )
        try:
            records = [_unpack(fields) for fields in _RECORD.iter_unpack(snapshot)]
        except InvalidArgumentError as e:
            raise CorruptionError(f"a producer snapshot: {e}") from e
        here = [r for r in records if _overlap(r[1].where.segment, self._segment)]
        self._cut(r[1].where for r in here if r[1].kind not in (_FLOOR, _HELD))
        for producer_id, known, own in here:
            if known.kind == _FLOOR:
                self.raise_floor(producer_id, known.seen[1])
            elif known.kind in (_BOUNDARY, _HELD):
                continue
            elif own and not from_parent:
                for bucket, area in self._grid.areas(known.where):
                    self._lane((producer_id, known.kind, bucket)).lift(area, known.seen)
            else:
                self._add_from_parent(producer_id, known)

    def _cut(self, boundaries: Iterable[Rectangle]) -> None:
        grid = self._grid.cut(boundaries)
        if grid is self._grid:
            return
        kept = [(key[0], known) for key, lane in self.lanes.items() for known in self._known(key, lane, None)]
        self._grid, self.lanes, self.plain = grid, {}, grid.plain
        for producer_id, known in kept:
            for bucket, area in grid.areas(known.where):
                self._lane((producer_id, known.kind, bucket)).lift(area, known.seen)

    def _add_from_parent(self, producer_id: int, known: Known) -> None:
        new = known._replace(seen=(known.seen[0], known.seen[1], UNKNOWN_OFFSET, 0))
        records = self._from_parents.setdefault(producer_id, [])
        if any(old.covers(new) for old in records):
            return
        records[:] = [old for old in records if not new.covers(old)] + [new]
        for key, lane in self.lanes.items():
            if key[0] == producer_id and key[1] == new.kind:
                self._lift(key, lane, new)


def pack_held(producers: Iterable[str]) -> bytes:
    """Records to append to a child's snapshot: these producers had exclusive access to the parent."""
    return b"".join(_pack(producer_id(name), Known(_HELD, _RING, seen_up_to(0)), 0) for name in producers)


def held_in(snapshot: bytes) -> set[int]:
    """The ids of the producers that pack_held() recorded."""
    return {fields[0] for fields in _RECORD.iter_unpack(snapshot) if fields[8] == _HELD}


def _overlap(a: HashRange, b: HashRange) -> bool:
    return a.start <= b.end and b.start <= a.end


def _packed_boundaries(grid: Grid) -> bytes:
    return b"".join(_pack(0, Known(_BOUNDARY, where, seen_up_to(0)), 0) for where in grid.boundaries())


def _pack(producer_id: int, known: Known, own: int) -> bytes:
    (segment, bucket), (first, last, offset, count) = known.where, known.seen
    return _RECORD.pack(
        producer_id, last, first, offset, segment.start, segment.end, bucket.start, bucket.end, known.kind, own, count
    )


def _unpack(fields: tuple[int, ...]) -> tuple[int, Known, int]:
    producer_id, last, first, offset, start, end, low, high, kind, own, count = fields
    if max(first, last) > _SEQUENCE_MAX:
        raise InvalidArgumentError(f"a sequence must be at most {_SEQUENCE_MAX}, got {max(first, last)}")
    where = Rectangle(HashRange(start, end), HashRange(low, high))
    return producer_id, Known(kind, where, (first, last, offset, count)), own
