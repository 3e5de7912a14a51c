"""`decide`: whether a topic splits, merges or rebuckets by itself now (PIP-483, PIP-486, semantics 30 to 35). Pure.

Five rules in this order; the first that calls for a change determines it, and the result lists what guards held back:

    split     for consumers: more of them than segments, and a segment above the floor; the busiest one
    split     for load: a segment above any split threshold; the most overloaded one
    rebucket  up, for consumers: more of them than buckets, and no split would serve them
    merge     two neighbours that have long been below all merge thresholds; the coldest pair
    rebucket  down: long cold, with far more buckets than were needed lately

No rule's change makes another rule undo it: each rule is checked against the layout that its change would leave.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from engine.control.policy.decisions import (
    Action,
    Decision,
    HeldBack,
    Merge,
    Nothing,
    RateAbove,
    Rebucket,
    ScaleReason,
    Split,
)
from engine.control.policy.history import incoming, last_changes, merge_depths
from engine.model.autoscale import RATES, AutoScalePolicy
from engine.model.layout import SegmentLayout
from engine.model.load import ReportedLoad
from engine.model.reshape import merged_buckets
from engine.model.segment import SegmentInfo

_NOBODY: Mapping[str, int] = MappingProxyType({})
_LOWER_FACTOR = 4  # buckets are removed when there are at least this many times those needed ...
_LOWER_TO = 2  # ... down to this many times: need must double before they are raised again

Found = Action | HeldBack | None
Pair = tuple[SegmentInfo, SegmentInfo]


def decide(
    layout: SegmentLayout,
    loads: Mapping[int, ReportedLoad],
    stream_consumers: Mapping[str, int],
    policy: AutoScalePolicy,
    now_ms: int,
    *,
    checkpoint_consumers: Mapping[str, int] = _NOBODY,
    peak_consumers: int | None = None,
    traffic: bool = True,
) -> Decision:
    """The one change that a topic needs now, or the reason for none.

    `loads`: by segment id, sealed ones included. `stream_consumers`, `checkpoint_consumers`: members by subscription or
    group; the latter never share a segment, so buckets do not help them (semantics 29). `peak_consumers`: the largest
    stream subscription within the last merge window; None when unknown. `now_ms`: wall clock. `traffic`: False when
    only consumers changed, and traffic is not to be judged.
    """
    if not policy.enabled:
        return Nothing(ScaleReason.INVALID_POLICY if policy.problem else ScaleReason.DISABLED)
    if layout.change is not None:
        return Nothing(ScaleReason.PENDING)
    case = _Case(layout, loads, stream_consumers, checkpoint_consumers, policy, now_ms)
    rules = [case.split_for_consumers, case.split_for_load, case.raise_buckets, case.merge]
    held: list[HeldBack] = []
    for rule in rules if traffic else [case.split_for_consumers, case.raise_buckets]:
        found = rule()
        if isinstance(found, HeldBack):
            held += [found] if found not in held else []
        elif found is not None:
            return replace(found, held=tuple(held))
    lowered = case.lower_buckets(peak_consumers, held) if traffic else None
    return Nothing.because(held) if lowered is None else replace(lowered, held=tuple(held))


class _Case:
    """The facts of one decision. Each rule returns a change, the guard that held it back, or None."""

    def __init__(
        self,
        layout: SegmentLayout,
        loads: Mapping[int, ReportedLoad],
        stream_consumers: Mapping[str, int],
        checkpoint_consumers: Mapping[str, int],
        policy: AutoScalePolicy,
        now_ms: int,
    ) -> None:
        self.layout = layout
        self.loads = loads
        self.policy = policy
        self.now_ms = now_ms
        self.active = len(layout.active)
        self.sharing = max(stream_consumers.values(), default=0)  # the largest, not the sum (semantics 30)
        self.demand = max(self.sharing, max(checkpoint_consumers.values(), default=0))
        self.last = last_changes(layout)
        self.depths = merge_depths(layout)
        self.incoming = incoming(layout, loads, now_ms)
        warm = [s for s in layout.active if self.incoming[s.segment_id] >= policy.split_floor_msg_rate_in]
        self.warm = bool(warm)
        self.busiest = max(filter(_splittable, warm), key=self._busy, default=None)

    # Split.

    def split_for_consumers(self) -> Found:
        if self.demand <= self.active or not self.warm:
            return None
        return self._split(self.busiest, ScaleReason.CONSUMERS)

    def split_for_load(self) -> Found:
        hot = [s for s in self.layout.active if self._overload(s) > 1]
        if not hot:
            return None
        hottest = max(filter(_splittable, hot), key=self._overload, default=None)
        return self._split(hottest, ScaleReason.LOAD, None if hottest is None else self._worst(hottest))

    def _split(self, segment: SegmentInfo | None, reason: ScaleReason, cause: RateAbove | None = None) -> Found:
        if self.active >= self.policy.max_segments:
            return HeldBack(ScaleReason.MAX_SEGMENTS)
        if segment is None:
            return HeldBack(ScaleReason.ONE_HASH_VALUE)
        if waiting := self._cooling(self.last.split_ms, self.policy.split_cooldown, ScaleReason.SPLIT_COOLDOWN):
            return waiting
        return Split(segment.segment_id, reason, cause=cause)

    def _busy(self, segment: SegmentInfo) -> tuple[float, int, int]:
        return (self.incoming[segment.segment_id], segment.hash_range.width, -segment.hash_range.start)

    def _overload(self, segment: SegmentInfo) -> float:
        """The ratio to the worst threshold; 1 is at it. A segment without a report is never overloaded."""
        report = self.loads.get(segment.segment_id)
        if report is None:
            return 0.0
        return max(report.stats.rate(name) / self.policy.split_threshold(name) for name in RATES)

    def _worst(self, segment: SegmentInfo) -> RateAbove:
        """The rate that is farthest above its threshold."""
        stats, limit = self.loads[segment.segment_id].stats, self.policy.split_threshold
        name = max(RATES, key=lambda name: stats.rate(name) / limit(name))
        return RateAbove(name, stats.rate(name), limit(name))

    # Rebucket.

    def raise_buckets(self) -> Found:
        """On a cold topic, and where the number of segments is at its limit (semantics 31).

        A split that waits for its cooldown is waited for: buckets do not replace it.
        """
        growing = self.busiest is not None and self.active < self.policy.max_segments
        if growing or self.sharing <= self.layout.bucket_total:
            return None
        target = min(self._per_segment(self.sharing), self.policy.max_buckets)
        targets = tuple((s.segment_id, target) for s in self.layout.active if s.bucket_count < target)
        if not targets:
            return HeldBack(ScaleReason.MAX_BUCKETS)
        return self._rebucket(targets, ScaleReason.BUCKETS)

    def lower_buckets(self, peak: int | None, held: list[HeldBack]) -> Rebucket | None:
        """When the topic has settled and has had more buckets than it needs for the whole merge window."""
        merging = {ScaleReason.MERGE_COOLDOWN, ScaleReason.MERGE_WINDOW}
        if peak is None or merging & {h.reason for h in held} or not all(map(self._settled, self.layout.active)):
            return None
        budget = max(1, self.layout.buckets_total // self.active)
        needed = max(budget, self._per_segment(max(peak, self.sharing)))
        large = (s for s in self.layout.active if s.bucket_count >= _LOWER_FACTOR * needed)
        targets = tuple((s.segment_id, _LOWER_TO * needed) for s in large)
        found = self._rebucket(targets, ScaleReason.IDLE_BUCKETS) if targets else None
        return found if isinstance(found, Rebucket) else None

    def _per_segment(self, consumers: int) -> int:
        """The power of two at or above each segment's share."""
        return 1 << max(0, (-(-consumers // self.active) - 1).bit_length())

    def _rebucket(self, targets: tuple[tuple[int, int], ...], reason: ScaleReason) -> Rebucket | HeldBack:
        last, cooldown = self.last.rebucket_ms, self.policy.rebucket_cooldown
        return self._cooling(last, cooldown, ScaleReason.REBUCKET_COOLDOWN) or Rebucket(targets, reason)

    # Merge.

    def merge(self) -> Found:
        pairs = [pair for pair in itertools.pairwise(self.layout.active) if all(map(self._below, pair))]
        cold = [pair for pair in pairs if all(map(self._settled, pair))]
        if not cold:
            return self._why_none_is_cold(pairs)
        if self.active <= self.policy.min_segments:
            return HeldBack(ScaleReason.MIN_SEGMENTS)
        if waiting := self._cooling(self.last.merge_ms, self.policy.merge_cooldown, ScaleReason.MERGE_COOLDOWN):
            return HeldBack(waiting.reason)  # no hurry: the next decision will do
        shallow = [pair for pair in cold if self._depth(pair) < self.policy.max_dag_depth]
        lasting = [pair for pair in shallow if not self._split_again(pair)]
        if not lasting:
            return HeldBack(ScaleReason.SPLIT_AGAIN if shallow else ScaleReason.MAX_DEPTH)
        low, high = min(lasting, key=self._coldness)
        return Merge(low.segment_id, high.segment_id, ScaleReason.COLD, buckets_max=self.policy.max_buckets)

    def _why_none_is_cold(self, pairs: list[Pair]) -> HeldBack | None:
        if pairs:
            return HeldBack(ScaleReason.MERGE_WINDOW)
        unknown = any(s.segment_id not in self.loads for s in self.layout.active)
        return HeldBack(ScaleReason.UNKNOWN_LOAD) if unknown and self.active > 1 else None

    def _below(self, segment: SegmentInfo) -> bool:
        report = self.loads.get(segment.segment_id)
        return report is not None and all(report.stats.rate(rate) < self.policy.merge_threshold(rate) for rate in RATES)

    def _settled(self, segment: SegmentInfo) -> bool:
        """Whether it is below the merge thresholds, and has been for the window (semantics 32)."""
        window_ms = self.policy.merge_window * 1000
        return self._below(segment) and self.now_ms - self.loads[segment.segment_id].modified_ms >= window_ms

    def _depth(self, pair: Pair) -> int:
        return max(self.depths[segment.segment_id] for segment in pair)

    def _split_again(self, pair: Pair) -> bool:
        """Whether the merged segment would call for a split, or for buckets that only the pair has."""
        ids = [segment.segment_id for segment in pair]
        for rate in RATES:
            if sum(self.loads[i].stats.rate(rate) for i in ids) > self.policy.split_threshold(rate):
                return True
        together = sum(self.incoming[i] for i in ids)
        warm = self.warm or together >= self.policy.split_floor_msg_rate_in
        low, high = (segment.bucket_count for segment in pair)
        lost = low + high - merged_buckets(low, high, self.policy.max_buckets)
        short = self.layout.bucket_total - lost < self.sharing <= self.layout.bucket_total
        return short or (warm and self.demand > self.active - 1)

    def _coldness(self, pair: Pair) -> tuple[float, int, int, int]:
        """Sort key: the coldest first. Among about equally cold pairs the one with fewer merges behind it, then the
        narrowest: repeated merges then form a tree instead of a chain, and the depth limit is not used up.
        """
        rates = [(self.loads[s.segment_id].stats.rate(r), self.policy.merge_threshold(r)) for s in pair for r in RATES]
        width = sum(s.hash_range.width for s in pair)
        return (round(sum(rate / low for rate, low in rates), 2), self._depth(pair), width, pair[0].hash_range.start)

    # Small change.

    def _cooling(self, last_ms: int | None, cooldown_s: float, reason: ScaleReason) -> HeldBack | None:
        """A clock that was set back does not end a cooldown early."""
        until_ms = None if last_ms is None else last_ms + round(cooldown_s * 1000)
        return None if until_ms is None or self.now_ms >= until_ms else HeldBack(reason, until_ms)


def _splittable(segment: SegmentInfo) -> bool:
    return segment.hash_range.width > 1
