"""A layout's past: its last split, merge and rebucket, and the load that young segments took over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.model.layout import SegmentLayout
from engine.model.load import WINDOW_MS, ReportedLoad
from engine.model.segment import SegmentInfo

_AGREES_MS = 1_000


@dataclass(frozen=True, slots=True)
class LastChanges:
    """Wall-clock ms of the last change of each kind in the DAG, automatic or requested (semantics 33)."""

    split_ms: int | None = None
    merge_ms: int | None = None
    rebucket_ms: int | None = None


def redated(
    layout: SegmentLayout,
    loads: Mapping[int, ReportedLoad],
    created_s: Mapping[int, float],
    reported_s: Mapping[int, float],
    now_ms: int,
) -> tuple[SegmentLayout, Mapping[int, ReportedLoad]]:
    """The same facts with dates relative to `now_ms`, as a clock that was never set would show them.

    `created_s`, `reported_s`: ages of segments and reports in seconds, by segment id. A date that agrees to a second
    stays.
    """
    dates = {i: _dated(s.created_at_ms, created_s[i], now_ms) for i, s in layout.segments.items()}
    if any(dates[i] != s.created_at_ms for i, s in layout.segments.items()):
        layout = replace(layout, segments={i: _moved(s, dates[i]) for i, s in layout.segments.items()})
    times = {i: _dated(report.modified_ms, reported_s[i], now_ms) for i, report in loads.items()}
    return layout, {i: replace(report, modified_ms=times[i]) for i, report in loads.items()}


def _dated(said_ms: int, age_s: float, now_ms: int) -> int:
    at_ms = now_ms - round(age_s * 1000)
    return said_ms if abs(at_ms - said_ms) < _AGREES_MS else at_ms


def _moved(segment: SegmentInfo, created_at_ms: int) -> SegmentInfo:
    sealed_ms = segment.sealed_at_ms
    if sealed_ms is not None:
        sealed_ms += created_at_ms - segment.created_at_ms
    return replace(segment, created_at_ms=created_at_ms, sealed_at_ms=sealed_ms)


def last_changes(layout: SegmentLayout) -> LastChanges:
    """Derived from the creation of segments and the kind of their parents.

    A segment whose parents are pruned does not tell its origin: it counts as each of the three kinds.
    """
    moments: dict[str, list[int]] = {"split": [], "merge": [], "rebucket": []}
    for segment in layout.segments.values():
        if segment.created_at_epoch:
            for kind in _kinds(layout, segment):
                moments[kind].append(segment.created_at_ms)
    return LastChanges(*(max(times, default=None) for times in moments.values()))


def _kinds(layout: SegmentLayout, segment: SegmentInfo) -> tuple[str, ...]:
    if not segment.parent_ids:
        return ("split", "merge", "rebucket")
    width, own = layout.segments[segment.parent_ids[0]].hash_range.width, segment.hash_range.width
    return ("split",) if own < width else ("merge",) if own > width else ("rebucket",)


def merge_depths(layout: SegmentLayout) -> dict[int, int]:
    """{segment id: the most merges on any path to it} (semantics 6)."""
    depths: dict[int, int] = {}
    for segment_id, segment in layout.segments.items():  # parents first
        behind = max((depths[i] for i in segment.parent_ids), default=0)
        depths[segment_id] = behind + (len(segment.parent_ids) > 1)
    return depths


def incoming(layout: SegmentLayout, loads: Mapping[int, ReportedLoad], now_ms: int) -> dict[int, float]:
    """{active segment id: messages per second that it takes}, 0 where unknown.

    The rates of a young segment are still rising, so its share of its parents' rates counts where that is larger.
    """
    rates: dict[int, float] = {}
    for segment_id, segment in layout.segments.items():  # parents first
        report = loads.get(segment_id)
        rate = 0.0 if report is None else report.stats.msg_rate_in
        end = now_ms if segment.sealed_at_ms is None else segment.sealed_at_ms
        if end - segment.created_at_ms < WINDOW_MS:
            rate = max(rate, sum(rates[i] * _share(layout.segments[i], segment) for i in segment.parent_ids))
        rates[segment_id] = rate
    return {s.segment_id: rates[s.segment_id] for s in layout.active}


def _share(parent: SegmentInfo, child: SegmentInfo) -> float:
    return min(1.0, child.hash_range.width / parent.hash_range.width)
