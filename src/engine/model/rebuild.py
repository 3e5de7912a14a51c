"""`rebuild`: a layout from the files of its segments, where the topic's record is lost or older than they."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from engine.errors import CorruptionError
from engine.limits import ENTRY_BUCKETS_DEFAULT, HASH_RING_SIZE
from engine.model.hashrange import HashRange
from engine.model.layout import SegmentLayout
from engine.model.segment import SegmentInfo, SegmentState, bucket_ends


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """The facts about one segment in its directory and files. Times are wall-clock milliseconds."""

    segment_id: int
    hash_range: HashRange
    sealed: bool  # its last file is sealed
    messages: bool  # whether it has, or had, messages
    created_ms: int
    durability: str | None = None  # None: unknown from the files


_Piece = tuple[int, int]  # first and last hash of a part of the ring that no found range divides


def rebuild(found: Iterable[FoundSegment], *, known: SegmentLayout | None, now_ms: int) -> SegmentLayout:
    """A layout with every segment that has messages, and the parents and children that ids and ranges imply.

    Ids ascend with time and are never used again. So the parents of a segment are, hash by hash, the segments with the
    largest smaller id; they are sealed. An unsealed segment without children is active. Where none is active, a new
    empty segment is added. An empty segment that overlaps an unsealed one was left by an unfinished change, and is
    omitted. `known`: an older record, for what files do not say: properties, policies, buckets.

    A segment with messages and unknown buckets gets one bucket, so that every entry is within a bucket. Epoch and next
    id are above those of any record that the topic can have had. Raises CorruptionError when segments with messages
    overlap and the older one is not sealed.
    """
    everything = sorted(found, key=lambda f: f.segment_id)
    kept = _without_leftovers(everything)
    pieces = _pieces(kept)
    parents, tops = _paint(kept, pieces)
    next_id = max(
        [f.segment_id + 1 for f in everything] + ([] if known is None else [known.next_segment_id]), default=0
    )
    for run in _holes(pieces, tops, {f.segment_id: f for f in kept}):
        hole = HashRange(run[0][0], run[-1][1])
        kept.append(FoundSegment(next_id, hole, False, False, now_ms))
        parents[next_id] = _distinct(tops[piece] for piece in run)
        next_id += 1
    infos = _infos(kept, parents, known, now_ms)
    if known is None:
        durability = next((f.durability for f in kept if f.durability is not None), "fsync")
        created_ms = min((f.created_ms for f in kept), default=now_ms)
        return SegmentLayout(_epoch(next_id), next_id, infos, durability=durability, created_at_ms=created_ms)
    epoch = max(known.epoch + 1, _epoch(next_id))
    return replace(known, epoch=epoch, next_segment_id=next_id, segments=infos, change=None)


def _epoch(next_id: int) -> int:
    """Above all epochs: each change takes an id, or removes a segment, which happens once for each."""
    return 2 * next_id + 1


def _without_leftovers(everything: Sequence[FoundSegment]) -> list[FoundSegment]:
    kept: list[FoundSegment] = []
    for found in everything:
        under = [k for k in kept if not k.sealed and _overlap(k.hash_range, found.hash_range)]
        if under and not (found.messages or found.sealed):
            continue
        for other in under:
            if other.messages:
                raise CorruptionError(
                    f"segments {other.segment_id} and {found.segment_id} overlap, hold messages, and the first is not "
                    f"sealed"
                )
            kept.remove(other)
        kept.append(found)
    return kept


def _overlap(a: HashRange, b: HashRange) -> bool:
    return a.start <= b.end and b.start <= a.end


def _pieces(kept: Iterable[FoundSegment]) -> list[_Piece]:
    starts = {0, HASH_RING_SIZE}
    for found in kept:
        starts |= {found.hash_range.start, found.hash_range.end + 1}
    rising = sorted(starts)
    return [(a, b - 1) for a, b in pairwise(rising)]


def _paint(
    kept: Sequence[FoundSegment], pieces: Sequence[_Piece]
) -> tuple[dict[int, tuple[int, ...]], dict[_Piece, int | None]]:
    """(the parents of each segment, by id; the last segment of each piece of the ring)."""
    tops: dict[_Piece, int | None] = dict.fromkeys(pieces)
    parents: dict[int, tuple[int, ...]] = {}
    for found in kept:
        own = [p for p in pieces if found.hash_range.start <= p[0] and p[1] <= found.hash_range.end]
        parents[found.segment_id] = _distinct(tops[p] for p in own)
        tops.update(dict.fromkeys(own, found.segment_id))
    return parents, tops


def _distinct(ids: Iterable[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(i for i in ids if i is not None))  # by range start


def _holes(
    pieces: Sequence[_Piece], tops: Mapping[_Piece, int | None], kept: Mapping[int, FoundSegment]
) -> Iterator[list[_Piece]]:
    """The parts of the ring without an active segment, each as its pieces, from left to right."""

    def empty(piece: _Piece) -> bool:
        top = tops[piece]
        return top is None or kept[top].sealed

    for is_hole, run in groupby(pieces, empty):
        if is_hole:
            yield list(run)


def _infos(
    kept: Sequence[FoundSegment], parents: Mapping[int, tuple[int, ...]], known: SegmentLayout | None, now_ms: int
) -> dict[int, SegmentInfo]:
    epochs: dict[int, int] = {}
    births: dict[tuple[int, ...], int] = {}  # by the parents: all results of one change have one epoch
    children: dict[int, list[FoundSegment]] = {}
    for found in kept:
        own = parents[found.segment_id]
        epochs[found.segment_id] = births.setdefault(own, len(births) + 1) if own else 0
        for parent in own:
            children.setdefault(parent, []).append(found)
    infos: dict[int, SegmentInfo] = {}
    for found in kept:
        heirs = children.get(found.segment_id, [])
        info = SegmentInfo(
            found.segment_id, found.hash_range, _buckets(found, known), epochs[found.segment_id], found.created_ms,
            parents[found.segment_id], tuple(h.segment_id for h in heirs),
        )  # fmt: skip
        if found.sealed:
            sealed_epoch = min(epochs[h.segment_id] for h in heirs)
            sealed_ms = max(found.created_ms, min(h.created_ms for h in heirs))
            info = replace(
                info, state=SegmentState.SEALED, sealed_at_epoch=sealed_epoch, sealed_at_ms=min(sealed_ms, now_ms)
            )
        infos[found.segment_id] = info
    return infos


def _buckets(found: FoundSegment, known: SegmentLayout | None) -> tuple[int, ...]:
    info = None if known is None else known.segments.get(found.segment_id)
    if info is not None and info.hash_range == found.hash_range:
        return info.bucket_ends
    return bucket_ends(1 if found.messages else ENTRY_BUCKETS_DEFAULT)
