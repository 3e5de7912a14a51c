"""How the tests of auto-scale write down a topic and what is reported of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.control.policy.autoscale import decide
from engine.control.policy.decisions import Decision, Merge, Nothing, Rebucket, ScaleReason, Split
from engine.model.autoscale import AutoScalePolicy
from engine.model.layout import SegmentLayout
from engine.model.load import ReportedLoad, SegmentLoadStats
from engine.model.reshape import merge_segments, rebucket_segment, split_segment

NOW_MS = 1_750_000_000_000
MINUTE_MS = 60_000
LONG_AGO_MS = NOW_MS - 1000 * MINUTE_MS
HOUR_MS = 60 * MINUTE_MS
POLICY = AutoScalePolicy()

Loads = Mapping[int, ReportedLoad]


def topic(segments: int = 1, buckets_total: int = 4) -> SegmentLayout:
    """A topic as it was created long ago."""
    return SegmentLayout.create(segments, now_ms=LONG_AGO_MS, buckets_total=buckets_total)


def load(
    msg_in: float = 0.0,
    *,
    bytes_in: float = 0.0,
    msg_out: float = 0.0,
    bytes_out: float = 0.0,
    since_s: float = 10_000.0,
) -> ReportedLoad:
    """A report that was written `since_s` seconds before NOW_MS."""
    return ReportedLoad(SegmentLoadStats(msg_in, bytes_in, msg_out, bytes_out), NOW_MS - round(since_s * 1000))


def loads(*msg_in: float, since_s: float = 10_000.0) -> dict[int, ReportedLoad]:
    """Segments 0, 1, … take so many messages per second."""
    return {i: load(rate, since_s=since_s) for i, rate in enumerate(msg_in)}


def ask(
    layout: SegmentLayout, known: Loads, consumers: int = 0, policy: AutoScalePolicy = POLICY, **more: Any
) -> Decision:
    """What is decided when one subscription has so many consumers."""
    return decide(layout, known, {"sub": consumers} if consumers else {}, policy, more.pop("now_ms", NOW_MS), **more)


def act(layout: SegmentLayout, decision: Decision, now_ms: int) -> SegmentLayout:
    """The layout after the decision."""
    match decision:
        case Split():
            return split_segment(layout, decision.segment_id, now_ms)
        case Merge():
            return merge_segments(layout, decision.first_id, decision.second_id, now_ms)
        case Rebucket():
            for segment_id, buckets in decision.targets:
                layout = rebucket_segment(layout, segment_id, buckets, now_ms)
    return layout


def said(decision: Decision) -> object:
    """A decision without what was held back beside it."""
    return replace(decision, held=())


def reasons(decision: Decision) -> list[ScaleReason]:
    """What was held back."""
    return [held.reason for held in decision.held]


def nothing(reason: ScaleReason = ScaleReason.SETTLED) -> Nothing:
    """Nothing, for this reason."""
    return Nothing(reason)
