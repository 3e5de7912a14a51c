"""Who reads which segment: round-robin over consumers by name (PIP-468). Pure and deterministic (SEMANTICS 15)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from engine.model.layout import SegmentLayout
from engine.model.segment import SegmentInfo
from engine.model.subscriptions import SubscriptionKind

Shares = dict[str, tuple[int, ...]]


def assign(
    layout: SegmentLayout, kind: SubscriptionKind, drained: AbstractSet[int], consumers: Iterable[str]
) -> Shares:
    """{consumer name: segment ids by range start}, every consumer present, surplus ones with nothing.

    `drained` are the sealed segments in which a stream subscription has acknowledged everything.
    """
    names = sorted(consumers)
    if kind is SubscriptionKind.CHECKPOINT:
        return _with_history(layout, share_out(layout.active, names))
    return share_out(open_segments(layout, drained), names)


def share_out(segments: Sequence[SegmentInfo], names: Sequence[str]) -> Shares:
    """Segments in order of range start, dealt to the names in their order."""
    ordered = sorted(segments, key=_by_range)
    return {name: tuple(s.segment_id for s in ordered[i :: len(names)]) for i, name in enumerate(names)}


def open_segments(layout: SegmentLayout, drained: AbstractSet[int]) -> list[SegmentInfo]:
    """What a stream subscription may read now, by range start (SEMANTICS 7 to 9).

    Out are sealed segments that are drained, and all those that descend from a sealed one that is not.
    """
    blocking = [s.segment_id for s in layout.segments.values() if not s.active and s.segment_id not in drained]
    blocked = frozenset[int]().union(*(layout.descendants(i) for i in blocking))
    chosen = (s for s in layout.segments.values() if s.segment_id not in blocked and s.segment_id not in drained)
    return sorted(chosen, key=_by_range)


def _by_range(segment: SegmentInfo) -> tuple[int, int]:
    return (segment.hash_range.start, segment.segment_id)


def _with_history(layout: SegmentLayout, shares: Shares) -> Shares:
    """Checkpoint groups have no cursor to gate by (SEMANTICS 10): a sealed segment goes where its first heir goes."""
    owner = {segment_id: name for name, ids in shares.items() for segment_id in ids}
    whole: dict[str, list[SegmentInfo]] = {name: [] for name in shares}
    for segment in sorted(layout.segments.values(), key=_by_range):
        heir = segment if segment.active else _first_heir(layout, segment)
        if heir.segment_id in owner:
            whole[owner[heir.segment_id]].append(segment)
    return {name: tuple(s.segment_id for s in segments) for name, segments in whole.items()}


def _first_heir(layout: SegmentLayout, segment: SegmentInfo) -> SegmentInfo:
    heirs = (layout.segments[i] for i in layout.descendants(segment.segment_id))
    return min((s for s in heirs if s.active), key=_by_range)
