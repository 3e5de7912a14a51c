"""Which entries of a producer are in a segment already: duplicates are recognised by sequence id (semantics 24).

A producer numbers its messages. If a segment received them all in order, one number per producer would do: the highest
sequence stored. But a client batches per bucket and per kind (keyed or keyless, transactional or not) and sends these
batches side by side, so sequences rise only per producer, bucket and kind: a *lane*. In each lane, for an entry with
the sequences first..last,

    last <= level          a duplicate: acknowledged again, with the original's offset if that is still remembered and
                           the entry is the original again: of the same first, last and number of messages
    first > level          new: the level becomes `last`
    first <= level < last  part of it is stored: refused, since an entry has one place or none

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
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from engine._native.produce.hashing import xxh64
from engine._native.serve.log import Claim
from engine.errors import CorruptionError, InvalidArgumentError, PartlyStoredError, StorageError
from engine.limits import HASH_RING_SIZE
from engine.model.hashrange import HashRange
from engine.storage.dedup.grid import Area, Grid, Rectangle
from engine.storage.dedup.lanes import RECENT, UNKNOWN_OFFSET, GridLane, Lane, Seen, seen_up_to

LANES_MAX = 16_384  # of one segment; the lane that was silent longest is forgotten first
CHILD_RECORDS_MAX = 8_192  # of producers; the snapshots of two parents and their shapes fit a frame's header
KEYED = 1  # of an entry's kind

# On disk: do not change. producer id, last sequence, last entry's first sequence and offset, segment range, bucket
# range, kind, whether it is the segment's own (1) or a parent's (0), the last entry's messages (0: not known, as in
# files of older builds).
_RECORD = struct.Struct("<QQQqHHHHBB2xI")
_HELD = 253  # as a kind, in a child's snapshot only: the producer had exclusive access to the parent
_FLOOR = 254  # as a kind, with the whole ring: everything below the `last` sequence is stored in some segment
_BOUNDARY = 255  # as a kind, with the producer id 0: only a rectangle along which the ring was divided

Key = tuple[int, int, int]  # producer id, kind, bucket


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


class Dedup:
    """The lanes of one segment."""

    __slots__ = ("_floors", "_found", "_from_parents", "_grid", "_lanes", "_place", "_refused", "_segment")

    def __init__(self, segment: HashRange, bucket_ends: Sequence[int]) -> None:
        self._segment = segment
        self._grid = Grid(segment, bucket_ends)
        self._lanes: dict[Key, Lane] = {}
        self._from_parents: dict[int, list[Known]] = {}
        self._floors: dict[int, int] = {}  # by producer, as its entries stated them
        self._refused: dict[Key, list[int]] = {}  # first sequences that failed, in order; keys without TRANSACTIONAL
        # The entry that find() found to be new, with its place, so that record() need not search again.
        self._found: Claim | None = None
        self._place: tuple[int, Area | None] = (0, None)

    def fresh(self) -> Dedup:
        """A second one for the same segment, with what parents knew, and nothing of the segment's own."""
        made = Dedup(self._segment, self._grid.bucket_ends)
        made._grid = self._grid
        made._floors = dict(self._floors)
        made._from_parents = {producer_id: list(records) for producer_id, records in self._from_parents.items()}
        return made

    def bucket_of(self, claim: Claim) -> int:
        """The index of the entry's bucket. Raises InvalidArgumentError when it spans two."""
        ends = self._grid.bucket_ends
        bucket = bisect_left(ends, claim.bucket_min)
        if claim.bucket_max > ends[bucket]:
            raise InvalidArgumentError(
                f"an entry must belong to one bucket; buckets end at {', '.join(f'{e:04x}' for e in ends)}, got bucket "
                f"hashes {claim.bucket_min:04x}-{claim.bucket_max:04x}"
            )
        return bucket

    def find(self, claim: Claim) -> int | None:
        """The offset of a duplicate's original (UNKNOWN_OFFSET if forgotten); None for a new entry.

        Raises PartlyStoredError when only a part of it is new, StorageError when an earlier entry has to come first.
        """
        self._check_range(claim)
        first, last = claim.first_sequence, claim.last_sequence
        bucket = self.bucket_of(claim)
        lane = self._lanes.get((claim.producer_id, claim.kind, bucket))
        if lane is None:
            if claim.producer_id not in self._from_parents:
                self._admit(claim, bucket)
                return None
            lane = self._lane((claim.producer_id, claim.kind, bucket))
        area = None if self._grid.plain else self._grid.area_of(claim, bucket)
        low, high = lane.reach(area)
        if last <= low:
            return lane.offset_of(first, last, claim.count)
        if first <= high:
            raise _partly_stored(first, last, high)
        self._admit(claim, bucket)
        self._found, self._place = claim, (bucket, area)
        return None

    def _admit(self, claim: Claim, bucket: int) -> None:
        """Raise StorageError when an earlier entry failed and has not come again."""
        if not self._refused:
            return
        refused, first = self._refused.get((claim.producer_id, claim.kind & KEYED, bucket)), claim.first_sequence
        if refused and first > refused[0]:
            if first not in refused:
                refused.append(first)
            raise StorageError(
                f"the entry of sequence {first} is refused: the append of sequence {refused[0]} failed and must be "
                "sent again first, to keep the order"
            )

    def _check_range(self, claim: Claim) -> None:
        """G4: a message is stored in a segment whose range holds its hash. Keyless messages have none."""
        inside = self._segment
        if claim.kind & KEYED and not inside.start <= claim.segment_hash_min <= claim.segment_hash_max <= inside.end:
            raise InvalidArgumentError(
                f"segment hashes of an entry must be in {inside.start:04x}-{inside.end:04x}, got "
                f"{claim.segment_hash_min:04x}-{claim.segment_hash_max:04x}"
            )

    def record(self, claim: Claim, offset: int, durable: int) -> None:
        """The entry was appended at `offset`."""
        if claim is self._found:
            bucket, area = self._place
        else:
            bucket = self.bucket_of(claim)
            area = None if self._grid.plain else self._grid.area_of(claim, bucket)
        key = (claim.producer_id, claim.kind, bucket)
        lanes = self._lanes
        lane = lanes.get(key)
        if lane is None:
            lane = self._lane(key)
        elif len(lanes) > LANES_MAX // 2:
            lanes[key] = lanes.pop(key)
        lane.push((claim.first_sequence, claim.last_sequence, offset, claim.count), durable, area)
        if self._refused:
            self._came_again((claim.producer_id, claim.kind & KEYED, bucket), claim.last_sequence)
        self._raise_floor(claim.producer_id, claim.floor)

    def _came_again(self, key: Key, last: int) -> None:
        left = [first for first in self._refused.pop(key, ()) if first > last]
        if left:
            self._refused[key] = left

    def _raise_floor(self, producer_id: int, floor: int) -> None:
        floors = self._floors
        if floor > floors.get(producer_id, 0):
            floors.pop(producer_id, None)
            floors[producer_id] = floor
            if len(floors) > LANES_MAX:
                del floors[next(iter(floors))]

    def replay(self, claims: Iterable[Claim], offset: int) -> None:
        """Record entries that lie back to back in the log from `offset` on."""
        for claim in claims:
            self.record(claim, offset, offset)
            offset += claim.count

    def _lane(self, key: Key) -> Lane:
        """The lane; a new one begins with what parents knew."""
        lanes = self._lanes
        lane = lanes.get(key)
        if lane is not None:
            return lane
        if len(lanes) >= LANES_MAX:
            del lanes[next(iter(lanes))]
        producer_id, kind, bucket = key
        cells = self._grid.cells(bucket)
        lane = lanes[key] = Lane() if cells == 1 else GridLane(len(self._grid.columns[bucket]), cells)
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
        for (producer_id, kind, bucket), lane in self._lanes.items():
            failed = lane.drop(max(offset, acknowledged))
            lane.drop(offset)
            if failed:
                key = (producer_id, kind & KEYED, bucket)
                self._refused[key] = sorted(failed + self._refused.pop(key, []))
        for key in list(self._refused)[:-LANES_MAX]:
            del self._refused[key]

    def undo(self, offset: int) -> None:
        """Forget what was recorded at or above an offset: it was not appended, and not acknowledged."""
        for lane in self._lanes.values():
            lane.drop(offset)

    def forget_refused(self, producer_id: int) -> None:
        """A new session of the producer begins: it need not resend what failed before."""
        for key in [key for key in self._refused if key[0] == producer_id]:
            del self._refused[key]

    def last_sequence(self, producer_id: int) -> int:
        """The highest sequence stored of a producer, -1 for none."""
        own = (lane.last for key, lane in self._lanes.items() if key[0] == producer_id)
        inherited = (known.seen[1] for known in self._from_parents.get(producer_id, ()))
        return max((*own, *inherited), default=-1)

    @property
    def producers(self) -> int:
        """How many producers it remembers."""
        return len({producer_id for producer_id, _, _ in self._lanes} | self._from_parents.keys())

    def remembers(self, producer_id: int) -> bool:
        """Whether it knows a sequence of the producer."""
        return self.last_sequence(producer_id) >= 0

    def floor(self, producer_id: int) -> int:
        """Every message of the producer with a lower sequence is stored in some segment; 0 for nothing known."""
        return self._floors.get(producer_id, 0)

    # -- snapshots -----------------------------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether every bucket is one cell: then restore() is enough, else replay() is needed."""
        return self._grid.plain

    def restore(self, lanes: Iterable[tuple[int, int, int, list[Seen], int]]) -> None:
        """Continue with what a scan found after a snapshot: (producer id, kind, bucket, entries, floor)."""
        for producer_id, kind, bucket, recent, floor in lanes:
            self._raise_floor(producer_id, floor)
            lane = self._lane((producer_id, kind, bucket))
            lane.base = max(lane.last, recent[0][0] - 1) if len(recent) == RECENT else lane.last
            lane.recent = list(recent)

    def snapshot(self, below: int | None = None) -> bytes:
        """What is known, for a file of this segment. `below`: only what lies below that offset."""
        own = [_pack(key[0], known, 1) for key, lane in self._lanes.items() for known in self._known(key, lane, below)]
        return b"".join(own) + b"".join(map(self._packed_floor, self._floors)) + self._packed_from_parents()

    def child_snapshot(self, below: int | None = None) -> bytes:
        """The producer snapshot for child segments: what is known, and along which boundaries it is divided.

        Of more than CHILD_RECORDS_MAX records those of the producers that were silent longest are left out.
        """
        own: dict[int, list[Known]] = {}
        for key, lane in self._lanes.items():
            own.setdefault(key[0], []).extend(self._known(key, lane, below))
        parts = []
        for producer_id in [*(p for p in self._from_parents if p not in own), *own]:
            known = own.get(producer_id, [])
            known = known + [r for r in self._from_parents.get(producer_id, ()) if not any(o.covers(r) for o in known)]
            parts += [_pack(producer_id, record, 0) for record in known]
            if producer_id in self._floors:
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
        floors = b"".join(self._packed_floor(i) for i in self._from_parents if i in self._floors)
        return self._packed_from_parents() + floors + _packed_boundaries(self._grid)

    def _packed_from_parents(self) -> bytes:
        return b"".join(_pack(i, record, 0) for i, records in self._from_parents.items() for record in records)

    def _packed_floor(self, producer_id: int) -> bytes:
        return _pack(producer_id, Known(_FLOOR, _RING, seen_up_to(self._floors[producer_id])), 0)

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
                self._raise_floor(producer_id, known.seen[1])
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
        kept = [(key[0], known) for key, lane in self._lanes.items() for known in self._known(key, lane, None)]
        self._grid, self._lanes, self._found = grid, {}, None
        for producer_id, known in kept:
            for bucket, area in grid.areas(known.where):
                self._lane((producer_id, known.kind, bucket)).lift(area, known.seen)

    def _add_from_parent(self, producer_id: int, known: Known) -> None:
        new = known._replace(seen=(known.seen[0], known.seen[1], UNKNOWN_OFFSET, 0))
        records = self._from_parents.setdefault(producer_id, [])
        if any(old.covers(new) for old in records):
            return
        records[:] = [old for old in records if not new.covers(old)] + [new]
        for key, lane in self._lanes.items():
            if key[0] == producer_id and key[1] == new.kind:
                self._lift(key, lane, new)


def pack_held(producers: Iterable[str]) -> bytes:
    """Records to append to a child's snapshot: these producers had exclusive access to the parent."""
    return b"".join(_pack(producer_id(name), Known(_HELD, _RING, seen_up_to(0)), 0) for name in producers)


def held_in(snapshot: bytes) -> set[int]:
    """The ids of the producers that pack_held() recorded."""
    return {fields[0] for fields in _RECORD.iter_unpack(snapshot) if fields[8] == _HELD}


def _partly_stored(first: int, last: int, known: int) -> PartlyStoredError:
    error = PartlyStoredError(
        f"an entry holds sequences {first} to {last}, of which some up to {known} are stored already; "
        "send only the others"
    )
    error.sequence = first
    return error


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
    where = Rectangle(HashRange(start, end), HashRange(low, high))
    return producer_id, Known(kind, where, (first, last, offset, count)), own
