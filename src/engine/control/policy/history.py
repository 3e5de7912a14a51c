"""What a layout says of its past: when it was last split, merged, rebucketed, and how much its young segments carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.model.layout import SegmentLayout
from engine.model.load import WINDOW_MS, ReportedLoad
from engine.model.segment import SegmentInfo


@dataclass(frozen=True, slots=True)
class LastChanges:
    """Wall-clock ms of the last change of each kind that the DAG remembers, whoever asked for it (SEMANTICS 33)."""

    split_ms: int | None = None
    merge_ms: int | None = None
    rebucket_ms: int | None = None


def last_changes(layout: SegmentLayout) -> LastChanges:
    """From when segments were created, and what their parents were.

    A segment whose parents are pruned does not say how it came to be: it counts as each of the three.
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
    """Of every segment the most merges on any path that leads to it (SEMANTICS 6)."""
    depths: dict[int, int] = {}
    for segment_id, segment in layout.segments.items():  # parents first
        behind = max((depths[i] for i in segment.parent_ids), default=0)
        depths[segment_id] = behind + (len(segment.parent_ids) > 1)
    return depths


def incoming(layout: SegmentLayout, loads: Mapping[int, ReportedLoad], now_ms: int) -> dict[int, float]:
    """Messages per second that each active segment takes, 0 where nothing is known.

    The rates of a young segment still rise, so its share of what its parents took counts where that is more.
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
