"""Changes of a layout: split, merge, rebucket, prune. Pure; each raises the epoch by one (semantics 3).

A change that replaces segments is planned first, so that the children can be created before they are in the layout
(semantics 42): `plan_*` validates and names them, `reserve` takes their ids, `commit` makes the next layout.

    epoch n      [ 0 ................ ]   plan_split: children 1, 2      reserve: pending, next id 3
    epoch n + 1  [ 1 ..... ][ 2 ...... ]  commit: 0 sealed, 1 and 2 active, nothing pending
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.errors import CorruptionError, InvalidArgumentError, NotFoundError
from engine.limits import BUCKETS_PER_SEGMENT_MAX
from engine.model.fields import Fields
from engine.model.hashrange import HashRange
from engine.model.layout import PendingChange, SegmentLayout, check_size
from engine.model.segment import SegmentInfo, SegmentState, bucket_ends

SPLIT, MERGE, REBUCKET = "split", "merge", "rebucket"
KINDS = frozenset((SPLIT, MERGE, REBUCKET))

_HEIRS = {SPLIT: "split into", MERGE: "merged into", REBUCKET: "rebucketed as"}
_SPOKEN_MAX = 16  # ids that an error or a log line names


@dataclass(frozen=True, slots=True)
class Reshape:
    """Which segments replace which. The children's times are those of the commit, unknown before."""

    kind: str
    parent_ids: tuple[int, ...]  # by range start
    children: tuple[SegmentInfo, ...]  # by range start; their ranges tile those of the parents

    def __str__(self) -> str:
        parents, children = spoken(self.parent_ids), spoken(c.segment_id for c in self.children)
        return f"{self.kind} of {parents} into {children}"

    def pending(self, phase: str) -> PendingChange:
        """As a part of the topic's record."""
        details = {"parents": list(self.parent_ids), "children": [c.to_json() for c in self.children]}
        return PendingChange(self.kind, phase, details)

    @classmethod
    def of(cls, change: PendingChange) -> Reshape:
        """Undo pending(). Raises CorruptionError naming the field."""
        fields = Fields(f"pending {change.kind}", dict(change.details))
        children = children_of(change)
        if not children:
            fields.wrong("children", "is missing or empty")
        return cls(change.kind, fields.numbers("parents"), children)

    def same_as(self, other: Reshape) -> bool:
        """Whether both do the same to the same segments, except for the children's ids."""
        return (self.kind, self.parent_ids) == (other.kind, other.parent_ids) and [
            (c.hash_range, c.bucket_ends) for c in self.children
        ] == [(c.hash_range, c.bucket_ends) for c in other.children]


def children_of(change: PendingChange) -> tuple[SegmentInfo, ...]:
    """The segments that a pending change may have created outside the layout. Raises CorruptionError."""
    if "children" not in change.details:
        return ()
    fields = Fields(f"pending {change.kind}", dict(change.details))
    return tuple(SegmentInfo.from_json(child) for child in fields.objects("children"))


def plan_split(layout: SegmentLayout, segment_id: int) -> Reshape:
    """Split an active segment's range in two halves, each with half its bucket count, at least one (semantics 2).

    Raises InvalidArgumentError when it is unknown, sealed or of one hash value (semantics 5), or when the topic has the
    maximum of segments.
    """
    parent = _active(layout, segment_id, "split")
    whole = parent.hash_range
    if whole.width < 2:
        raise InvalidArgumentError(f"segment {segment_id} owns one hash value, {whole.start}; it cannot be split")
    middle = (whole.start + whole.end) // 2
    ends = bucket_ends(max(1, parent.bucket_count // 2))
    halves = (HashRange(whole.start, middle), HashRange(middle + 1, whole.end))
    return _plan(layout, SPLIT, [parent], [(half, ends) for half in halves])


def merged_buckets(first: int, second: int, buckets_max: int) -> int:
    """The buckets of a merged segment: the sum, up to the ceiling; where one has more already, as many as that one."""
    return min(BUCKETS_PER_SEGMENT_MAX, first + second, max(buckets_max, first, second))


def plan_merge(
    layout: SegmentLayout, first_id: int, second_id: int, buckets_max: int = BUCKETS_PER_SEGMENT_MAX
) -> Reshape:
    """Merge two adjacent active segments, with the sum of their bucket counts, up to the ceiling.

    Raises InvalidArgumentError when one is unknown or sealed, or when they are identical or not adjacent.
    """
    pair = [_active(layout, i, "merged") for i in (first_id, second_id)]
    if first_id == second_id:
        raise InvalidArgumentError(f"segments to merge must be two neighbours, got {first_id} twice")
    low, high = sorted(pair, key=lambda s: s.hash_range.start)
    if low.hash_range.end + 1 != high.hash_range.start:
        raise InvalidArgumentError(f"segments to merge must be neighbours, got {first_id} and {second_id}")
    ends = bucket_ends(merged_buckets(low.bucket_count, high.bucket_count, buckets_max))
    whole = HashRange(low.hash_range.start, high.hash_range.end)
    return _plan(layout, MERGE, [low, high], [(whole, ends)])


def plan_rebucket(layout: SegmentLayout, segment_id: int, buckets: int) -> Reshape:
    """Replace an active segment by one of the same range with `buckets` equal buckets (PIP-486 rollover).

    Raises InvalidArgumentError when it is unknown or sealed, for a count out of range, or the boundaries it has.
    """
    parent = _active(layout, segment_id, "rebucketed")
    if type(buckets) is not int:
        raise InvalidArgumentError(f"buckets must be an integer from 1 to {BUCKETS_PER_SEGMENT_MAX}, got {buckets!r}")
    ends = bucket_ends(buckets)
    if ends == parent.bucket_ends:
        raise InvalidArgumentError(f"segment {segment_id} has these {buckets} buckets already")
    return _plan(layout, REBUCKET, [parent], [(parent.hash_range, ends)])


def _plan(
    layout: SegmentLayout,
    kind: str,
    parents: Sequence[SegmentInfo],
    heirs: Sequence[tuple[HashRange, tuple[int, ...]]],
) -> Reshape:
    parent_ids = tuple(p.segment_id for p in parents)
    children = tuple(
        SegmentInfo(child_id, hash_range, ends, layout.epoch + 1, 0, parent_ids)
        for child_id, (hash_range, ends) in enumerate(heirs, layout.next_segment_id)
    )
    reshape = Reshape(kind, parent_ids, children)
    check_size(commit(layout, reshape, 0))
    return reshape


def reserve(layout: SegmentLayout, reshape: Reshape, phase: str) -> SegmentLayout:
    """The same layout, with the change pending at `phase` and the children's ids taken for good."""
    last = max(child.segment_id for child in reshape.children)
    return replace(layout, next_segment_id=max(layout.next_segment_id, last + 1), change=reshape.pending(phase))


def commit(layout: SegmentLayout, reshape: Reshape, now_ms: int) -> SegmentLayout:
    """The next layout: parents are sealed at the time at which the children are created (semantics 4); none pending.

    Raises CorruptionError when a parent is missing or sealed, or the children do not take their parents' place.
    """
    epoch, segments = layout.epoch + 1, dict(layout.segments)
    parents = [segments[i] for i in reshape.parent_ids if i in segments and segments[i].active]
    if len(parents) != len(reshape.parent_ids) or any(c.segment_id in segments for c in reshape.children):
        raise CorruptionError(
            f"the pending {reshape.kind} of {list(reshape.parent_ids)} does not fit epoch {epoch - 1}"
        )
    moment = max(now_ms, *(p.created_at_ms for p in parents))  # the clock may have been set back
    child_ids = tuple(child.segment_id for child in reshape.children)
    for parent in parents:
        segments[parent.segment_id] = replace(
            parent, state=SegmentState.SEALED, child_ids=child_ids, sealed_at_epoch=epoch, sealed_at_ms=moment
        )
    for child in reshape.children:
        segments[child.segment_id] = replace(child, created_at_epoch=epoch, created_at_ms=moment)
    next_id = max(layout.next_segment_id, *(i + 1 for i in child_ids))
    return replace(layout, epoch=epoch, next_segment_id=next_id, segments=segments, change=None)


def split_segment(layout: SegmentLayout, segment_id: int, now_ms: int) -> SegmentLayout:
    return commit(layout, plan_split(layout, segment_id), now_ms)


def merge_segments(layout: SegmentLayout, first_id: int, second_id: int, now_ms: int) -> SegmentLayout:
    return commit(layout, plan_merge(layout, first_id, second_id), now_ms)


def rebucket_segment(layout: SegmentLayout, segment_id: int, buckets: int, now_ms: int) -> SegmentLayout:
    return commit(layout, plan_rebucket(layout, segment_id, buckets), now_ms)


def prune_segment(layout: SegmentLayout, segment_id: int) -> SegmentLayout:
    """Remove a sealed segment without parents; its children have no parent any more.

    Raises InvalidArgumentError when it is unknown, active, or still has a parent: the oldest go first.
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


def spoken(segment_ids: Iterable[int]) -> str:
    """ "1, 2 and 3"; the first ones of very many."""
    ids = [str(i) for i in segment_ids]
    ids = ids if len(ids) <= _SPOKEN_MAX else [*ids[: _SPOKEN_MAX - 1], f"{len(ids) - _SPOKEN_MAX + 1} more"]
    return " and ".join((", ".join(ids[:-1]), ids[-1])) if len(ids) > 1 else "".join(ids)


def _replaced(layout: SegmentLayout, info: SegmentInfo) -> str:
    """What replaced a sealed segment: the caller may not know yet, or may be repeating its request."""
    children = layout.children(info.segment_id)
    merged = any(child.hash_range.width > info.hash_range.width for child in children)
    verb = SPLIT if len(children) > 1 else MERGE if merged else REBUCKET
    said = f"sealed since epoch {info.sealed_at_epoch}, {_HEIRS[verb]} {spoken(info.child_ids)}"
    heirs = [i for i in sorted(layout.descendants(info.segment_id)) if layout.segments[i].active]
    return said if heirs == sorted(info.child_ids) else f"{said}; active now: {spoken(heirs)}"


def _active(layout: SegmentLayout, segment_id: int, verb: str) -> SegmentInfo:
    if type(segment_id) is not int:
        raise InvalidArgumentError(f"a segment id must be an integer, got {segment_id!r:.80}")
    info = layout.segments.get(segment_id)
    if info is None:
        active = spoken(sorted(s.segment_id for s in layout.active))
        raise InvalidArgumentError(f"segment {segment_id} cannot be {verb}: it is not in the layout; active: {active}")
    if not info.active:
        raise InvalidArgumentError(f"segment {segment_id} cannot be {verb}: it is {_replaced(layout, info)}")
    return info
