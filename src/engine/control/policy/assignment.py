"""Assigns segments to consumers: round-robin over consumers by name (PIP-468); with more consumers than segments, an
equal number of consumers to each segment (PIP-486). Pure and deterministic (semantics 15).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from engine.model.layout import SegmentLayout
from engine.model.segment import SegmentInfo
from engine.model.subscriptions import DeliveryMode, Share, Shares, SubscriptionKind


def assign(
    layout: SegmentLayout,
    kind: SubscriptionKind,
    drained: AbstractSet[int],
    consumers: Iterable[str],
    *,
    share_sealed: bool = True,
) -> dict[str, Shares]:
    """{consumer name: its segments by range start}, with every consumer, surplus ones without a segment.

    `drained`: the sealed segments in which a stream subscription has acknowledged everything. A segment with several
    consumers is SHARED; it never has more consumers than buckets, and only one if it is sealed and not `share_sealed`.
    Checkpoint groups never share (semantics 29).
    """
    names = sorted(consumers)
    if kind is SubscriptionKind.CHECKPOINT:
        return _with_history(layout, _deal_segments(layout.active, names))
    segments = open_segments(layout, drained)
    if len(names) <= len(segments):
        return _exclusive(_deal_segments(segments, names))
    places = {s.segment_id: s.bucket_count if s.active or share_sealed else 1 for s in segments}
    return _deal_places(places, names)


def _deal_segments(segments: Sequence[SegmentInfo], names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Deal segments, by range start, to the names in order."""
    ordered = sorted(segments, key=_by_range)
    return {name: tuple(s.segment_id for s in ordered[i :: len(names)]) for i, name in enumerate(names)}


def _deal_places(room: Mapping[int, int], names: Sequence[str]) -> dict[str, Shares]:
    """Fill slots of segments by range start, round after round, as far as each has room. A segment's slots go to
    consecutive names, so that one consumer more or less moves at most one other between segments.
    """
    rounds = range(max(room.values(), default=0))
    places = [segment_id for turn in rounds for segment_id, count in room.items() if count > turn]
    readers = Counter(places[: len(names)])
    taken = dict(zip(names, (segment_id for segment_id in room for _ in range(readers[segment_id])), strict=False))
    modes = {i: DeliveryMode.SHARED if count > 1 else DeliveryMode.EXCLUSIVE for i, count in readers.items()}
    return {name: (Share(taken[name], modes[taken[name]]),) if name in taken else () for name in names}


def _exclusive(dealt: Mapping[str, tuple[int, ...]]) -> dict[str, Shares]:
    return {name: tuple(Share(i) for i in ids) for name, ids in dealt.items()}


def open_segments(layout: SegmentLayout, drained: AbstractSet[int]) -> list[SegmentInfo]:
    """The segments that a stream subscription may read now, by range start (semantics 7 to 9).

    Excluded are drained sealed segments, and all descendants of a sealed segment that is not drained.
    """
    blocked: set[int] = set()
    for segment_id, segment in layout.segments.items():  # by id: parents precede their children
        if any(parent in blocked or parent not in drained for parent in segment.parent_ids):
            blocked.add(segment_id)
    chosen = (s for i, s in layout.segments.items() if i not in blocked and i not in drained)
    return sorted(chosen, key=_by_range)


def _by_range(segment: SegmentInfo) -> tuple[int, int]:
    return (segment.hash_range.start, segment.segment_id)


def _with_history(layout: SegmentLayout, dealt: Mapping[str, tuple[int, ...]]) -> dict[str, Shares]:
    """Checkpoint groups have no cursor to gate by (semantics 10): a sealed segment follows its first descendant."""
    owner = {segment_id: name for name, ids in dealt.items() for segment_id in ids}
    whole: dict[str, list[int]] = {name: [] for name in dealt}
    heirs = _first_heirs(layout)
    for segment in sorted(layout.segments.values(), key=_by_range):
        if (name := owner.get(heirs[segment.segment_id].segment_id)) is not None:
            whole[name].append(segment.segment_id)
    return _exclusive({name: tuple(ids) for name, ids in whole.items()})


def _first_heirs(layout: SegmentLayout) -> dict[int, SegmentInfo]:
    """{segment id: its first active descendant by range}; an active segment is its own."""
    heirs: dict[int, SegmentInfo] = {}
    for segment_id in sorted(layout.segments, reverse=True):  # children precede their parents
        segment = layout.segments[segment_id]
        heirs[segment_id] = segment if segment.active else min((heirs[i] for i in segment.child_ids), key=_by_range)
    return heirs
