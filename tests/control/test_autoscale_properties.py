"""What holds for `decide` whatever happens to a topic: random histories of decisions, changes by hand, load, people."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control.policy.autoscale import decide
from engine.control.policy.decisions import Decision, Merge, Nothing, Rebucket, Split
from engine.control.policy.history import merge_depths
from engine.model.autoscale import AutoScalePolicy
from engine.model.layout import SegmentLayout
from engine.model.load import ReportedLoad, SegmentLoadStats
from tests.control.autoscale_cases import LONG_AGO_MS, NOW_MS, act, topic

RATES_IN = st.sampled_from([0.0, 1.0, 400.0, 700.0, 999.0, 1_000.0, 1_900.0, 5_000.0, 10_001.0, 60_000.0])
POLICIES = st.builds(
    AutoScalePolicy,
    max_segments=st.integers(4, 9),
    min_segments=st.integers(1, 4),
    max_dag_depth=st.integers(0, 4),
    split_cooldown=st.sampled_from([0.0, 60.0, 600.0]),
    merge_cooldown=st.sampled_from([0.0, 300.0]),
    merge_window=st.sampled_from([0.0, 300.0]),
    rebucket_cooldown=st.sampled_from([0.0, 60.0]),
    max_buckets=st.sampled_from([1, 6, 1024]),
    split_floor_msg_rate_in=st.sampled_from([0.0, 1_000.0]),
    split_msg_rate_in_threshold=st.sampled_from([1_001.0, 10_000.0]),
)
Loads = dict[int, ReportedLoad]


@st.composite
def reports(draw: st.DrawFn, layout: SegmentLayout, now_ms: int) -> Loads:
    """What some of the segments have reported at some time since they were born."""
    found = {}
    for segment in layout.active:
        if draw(st.integers(0, 4)):
            rate = draw(RATES_IN)
            at_ms = draw(st.sampled_from([segment.created_at_ms, (segment.created_at_ms + now_ms) // 2, now_ms]))
            found[segment.segment_id] = ReportedLoad(SegmentLoadStats(rate, rate * 100, rate * 3, rate * 300), at_ms)
    return found


def carried(before: SegmentLayout, after: SegmentLayout, known: Loads, now_ms: int) -> Loads:
    """What the children report when all goes on as it was: a child's share of its parents' load, since now."""
    loads = dict(known)
    for segment in after.active:
        if segment.segment_id in before.segments:
            continue
        stats = [known[i].stats for i in segment.parent_ids if i in known]
        if len(stats) == len(segment.parent_ids):
            share = [
                min(1.0, segment.hash_range.width / before.segments[i].hash_range.width) for i in segment.parent_ids
            ]
            rate = sum(s.msg_rate_in * part for s, part in zip(stats, share, strict=True))
            loads[segment.segment_id] = ReportedLoad(SegmentLoadStats(rate, rate * 100, rate * 3, rate * 300), now_ms)
    return loads


def undoes(again: Decision, decision: Decision, after: SegmentLayout, before: SegmentLayout) -> bool:
    """Whether `again` takes back what `decision` has just done."""
    born = {i for i in after.segments if i not in before.segments}
    if isinstance(decision, Split):
        return isinstance(again, Merge) and set(again.segment_ids) == born
    if isinstance(decision, Merge):
        return isinstance(again, Split) and set(again.segment_ids) == born
    return isinstance(decision, Rebucket) and isinstance(again, Rebucket) and not born.isdisjoint(again.segment_ids)


@settings(deadline=None)
@given(data=st.data(), policy=POLICIES, segments=st.integers(4, 4), buckets=st.sampled_from([1, 4, 16, 3000]))
def test_any_history(data: st.DataObject, policy: AutoScalePolicy, segments: int, buckets: int) -> None:
    """Within max and min, one change at a time, known segments only, and nothing is undone while all stays the same."""
    layout, now_ms = topic(segments, buckets), NOW_MS
    for _ in range(data.draw(st.integers(1, 6))):
        now_ms += data.draw(st.sampled_from([0, 30_000, 3_600_000]))
        consumers = {"a": data.draw(st.integers(0, 40)), "b": data.draw(st.integers(0, 5))}
        known, peak = data.draw(reports(layout, now_ms)), data.draw(st.sampled_from([None, 0, 40]))
        decision = decide(layout, known, consumers, policy, now_ms, peak_consumers=peak)
        check(decision, layout, policy)
        after = act(layout, decision, now_ms)
        for later_ms in (now_ms, now_ms + 3_600_000):
            loads = carried(layout, after, known, now_ms)
            again = decide(after, loads, consumers, policy, later_ms, peak_consumers=peak)
            assert not undoes(again, decision, after, layout), f"{decision}, then {again}"
        layout = after


def check(decision: Decision, layout: SegmentLayout, policy: AutoScalePolicy) -> None:
    active = {s.segment_id: s for s in layout.active}
    assert set(decision.segment_ids) <= set(active)
    if isinstance(decision, Split):
        assert len(active) < policy.max_segments
    elif isinstance(decision, Merge):
        assert len(active) > policy.min_segments
        assert max(merge_depths(layout)[i] for i in decision.segment_ids) < policy.max_dag_depth
        assert active[decision.first_id].hash_range.end + 1 == active[decision.second_id].hash_range.start
    elif isinstance(decision, Rebucket):
        raised = [count > active[i].bucket_count for i, count in decision.targets]
        assert raised
        assert len(set(raised)) == 1
        assert all(count != active[i].bucket_count for i, count in decision.targets)
    else:
        assert not decision.held or decision.reason is decision.held[0].reason


@given(consumers=st.integers(1, 300), segments=st.integers(1, 8), total=st.integers(1, 64))
def test_semantics_31_one_rebucket_gives_every_consumer_a_place(consumers: int, segments: int, total: int) -> None:
    layout = topic(segments, total)
    decision = decide(layout, {}, {"sub": consumers}, AutoScalePolicy(), NOW_MS)
    after = act(layout, decision, NOW_MS)
    assert after.bucket_total >= consumers
    assert isinstance(decision, Nothing) == (layout.bucket_total >= consumers)
    if not isinstance(decision, Nothing):
        assert all(count & (count - 1) == 0 for _, count in getattr(decision, "targets", ()))


@given(st.lists(st.floats(0, 100_000), min_size=1, max_size=12), st.integers(0, 20))
def test_semantics_15_the_same_facts_give_the_same_decision(rates: list[float], consumers: int) -> None:
    layout = topic(len(rates))
    loads = {i: ReportedLoad(SegmentLoadStats(rate), LONG_AGO_MS) for i, rate in enumerate(rates)}
    shuffled = {i: loads[i] for i in sorted(loads, key=lambda i: rates[i])}
    first = decide(layout, loads, {"a": consumers, "b": 1}, AutoScalePolicy(), NOW_MS)
    assert first == decide(layout, shuffled, {"b": 1, "a": consumers}, AutoScalePolicy(), NOW_MS)
    assert decide(layout, loads, {"a": consumers}, replace(AutoScalePolicy(), enabled=False), NOW_MS).segment_ids == ()
