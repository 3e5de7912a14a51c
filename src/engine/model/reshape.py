"""How one layout becomes the next: split, merge, rebucket, prune. Pure; each raises the epoch by one (SEMANTICS 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.errors import InvalidArgumentError, NotFoundError
from engine.limits import BUCKETS_PER_SEGMENT_MAX
from engine.model.hashrange import HashRange
from engine.model.layout import SegmentLayout
from engine.model.segment import SegmentInfo, SegmentState, bucket_ends


def split_segment(layout: SegmentLayout, segment_id: int, now_ms: int) -> SegmentLayout:
    """An active segment's range in two halves, each with half its bucket count, one at least (SEMANTICS 2).

    Raises InvalidArgumentError when it is unknown, sealed or of one hash value (SEMANTICS 5).
    """
    parent = _active(layout, segment_id, "split")
    whole = parent.hash_range
    if whole.width < 2:
        raise InvalidArgumentError(f"segment {segment_id} owns one hash value, {whole.start}; it cannot be split")
    middle = (whole.start + whole.end) // 2
    ends = bucket_ends(max(1, parent.bucket_count // 2))
    halves = (HashRange(whole.start, middle), HashRange(middle + 1, whole.end))
    return _succeed(layout, [parent], [(half, ends) for half in halves], now_ms)


def merge_segments(layout: SegmentLayout, first_id: int, second_id: int, now_ms: int) -> SegmentLayout:
    """Two adjacent active segments as one, with the sum of their bucket counts, clamped to the maximum.

    Raises InvalidArgumentError when one is unknown or sealed, or when they are not adjacent.
    """
    pair = [_active(layout, i, "merged") for i in (first_id, second_id)]
    low, high = sorted(pair, key=lambda s: s.hash_range.start)
    if low.hash_range.end + 1 != high.hash_range.start:
        raise InvalidArgumentError(f"segments {first_id} and {second_id} are not adjacent; neighbours are right")
    ends = bucket_ends(min(BUCKETS_PER_SEGMENT_MAX, low.bucket_count + high.bucket_count))
    whole = HashRange(low.hash_range.start, high.hash_range.end)
    return _succeed(layout, [low, high], [(whole, ends)], now_ms)


def rebucket_segment(layout: SegmentLayout, segment_id: int, buckets: int, now_ms: int) -> SegmentLayout:
    """An active segment replaced by one of the same range with `buckets` equal buckets (PIP-486 rollover).

    Raises InvalidArgumentError when it is unknown or sealed, for a count out of range, or the boundaries it has.
    """
    parent = _active(layout, segment_id, "rebucketed")
    if type(buckets) is not int:
        raise InvalidArgumentError(f"buckets is {buckets!r}; an integer from 1 to {BUCKETS_PER_SEGMENT_MAX} is right")
    ends = bucket_ends(buckets)
    if ends == parent.bucket_ends:
        raise InvalidArgumentError(f"segment {segment_id} has these {buckets} buckets already")
    return _succeed(layout, [parent], [(parent.hash_range, ends)], now_ms)


def prune_segment(layout: SegmentLayout, segment_id: int) -> SegmentLayout:
    """Forget a sealed segment that has no parents left; its children become roots (of it).

    Raises InvalidArgumentError when it is unknown, active, or when a parent of it is still there: the oldest go first.
    """
    try:
        gone = layout.segment(segment_id)
    except NotFoundError as e:
        raise InvalidArgumentError(f"segment {segment_id} cannot be pruned: {e}") from None
    if gone.active:
        raise InvalidArgumentError(f"segment {segment_id} is active; only a sealed segment can be pruned")
    if gone.parent_ids:
        raise InvalidArgumentError(f"segment {segment_id} has the parents {list(gone.parent_ids)}; prune those first")
    segments = {i: s for i, s in layout.segments.items() if i != segment_id}
    for child_id in gone.child_ids:
        child = segments[child_id]
        segments[child_id] = replace(child, parent_ids=tuple(p for p in child.parent_ids if p != segment_id))
    return replace(layout, epoch=layout.epoch + 1, segments=segments)


def _active(layout: SegmentLayout, segment_id: int, verb: str) -> SegmentInfo:
    info = layout.segments.get(segment_id)
    if info is None:
        raise InvalidArgumentError(f"segment {segment_id} cannot be {verb}: it is not in the layout")
    if not info.active:
        since = info.sealed_at_epoch
        raise InvalidArgumentError(f"segment {segment_id} cannot be {verb}: it is sealed since epoch {since}")
    return info


def _succeed(
    layout: SegmentLayout,
    parents: Sequence[SegmentInfo],
    heirs: Sequence[tuple[HashRange, tuple[int, ...]]],
    now_ms: int,
) -> SegmentLayout:
    """Seal the parents at the moment in which their heirs are born (SEMANTICS 4)."""
    epoch, first_id = layout.epoch + 1, layout.next_segment_id
    moment = max(now_ms, *(p.created_at_ms for p in parents))  # the clock may have gone back
    parent_ids = tuple(p.segment_id for p in parents)
    child_ids = tuple(range(first_id, first_id + len(heirs)))
    segments = dict(layout.segments)
    for parent in parents:
        segments[parent.segment_id] = replace(
            parent, state=SegmentState.SEALED, child_ids=child_ids, sealed_at_epoch=epoch, sealed_at_ms=moment
        )
    for child_id, (hash_range, ends) in zip(child_ids, heirs, strict=True):
        segments[child_id] = SegmentInfo(child_id, hash_range, ends, epoch, moment, parent_ids)
    return replace(layout, epoch=epoch, next_segment_id=first_id + len(heirs), segments=segments)
