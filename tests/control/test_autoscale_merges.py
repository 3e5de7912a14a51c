"""Whether `decide` merges, and undoes nothing by it: every rule of PIP-483 with its boundary, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.control.policy.decisions import Decision, Merge, Nothing, ScaleReason, Split
from engine.limits import BUCKETS_PER_SEGMENT_MAX, MIB
from engine.model.layout import SegmentLayout
from engine.model.reshape import merge_segments, plan_merge, rebucket_segment, split_segment
from tests.control.autoscale_cases import (
    HOUR_MS,
    LONG_AGO_MS,
    NOW_MS,
    POLICY,
    act,
    ask,
    load,
    loads,
    nothing,
    reasons,
    said,
    topic,
)

COLD, LOAD = ScaleReason.COLD, ScaleReason.LOAD


# Merges.


@pytest.mark.parametrize(
    ("rate", "at"),
    [("msg_in", 1_000), ("bytes_in", 5 * MIB), ("msg_out", 5_000), ("bytes_out", 25 * MIB)],
)
def test_neighbours_below_all_thresholds_are_merged(rate: str, at: float) -> None:
    assert ask(topic(2), {0: load(), 1: load(**{rate: at * 0.999})}) == Merge(0, 1, COLD)
    assert ask(topic(2), {0: load(), 1: load(**{rate: at})}) == nothing()


@pytest.mark.parametrize(
    ("since_s", "expected"), [(300, Merge(0, 1, COLD)), (299.999, nothing(ScaleReason.MERGE_WINDOW))]
)
def test_semantics_32_both_must_have_been_cold_for_the_window(since_s: float, expected: Decision) -> None:
    assert said(ask(topic(2), {0: load(5, since_s=since_s), 1: load(7)})) == expected
    assert said(ask(topic(2), {0: load(5), 1: load(7, since_s=since_s)})) == expected


def test_semantics_32_what_has_not_reported_is_unknown_and_never_cold() -> None:
    assert said(ask(topic(2), {0: load()})) == nothing(ScaleReason.UNKNOWN_LOAD)
    assert said(ask(topic(2), {})) == nothing(ScaleReason.UNKNOWN_LOAD)
    assert said(ask(topic(3), {0: load(), 2: load()})) == nothing(ScaleReason.UNKNOWN_LOAD)  # no neighbours
    assert ask(topic(1), {}) == nothing()


def test_a_merged_segment_does_not_inherit_that_its_parents_were_cold() -> None:
    layout = merge_segments(topic(3), 0, 1, NOW_MS - HOUR_MS)
    assert said(ask(layout, loads(0, 0, 0))) == nothing(ScaleReason.UNKNOWN_LOAD)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([500, 400, 100, 50], (2, 3)),
        ([50, 100, 400, 500], (0, 1)),
        ([500, 10, 10, 500], (1, 2)),
        ([0, 0, 0, 0], (0, 1)),
        ([2_000, 0, 2_000, 0], None),  # not adjacent
        ([0, 2_000, 300, 200], (2, 3)),
    ],
)
def test_the_coldest_adjacent_pair_is_merged(rates: list[float], expected: tuple[int, int] | None) -> None:
    decision = ask(topic(4), loads(*rates))
    assert decision == (nothing() if expected is None else Merge(*expected, COLD))


def test_of_equally_cold_pairs_the_one_with_the_fewest_merges_goes_first() -> None:
    """So that 8 segments become one at depth 3, not at depth 7."""
    layout, now = topic(8), NOW_MS
    for _ in range(7):
        known = {s.segment_id: load() for s in layout.active}
        layout = act(layout, ask(layout, known, now_ms=now), now)
        now += HOUR_MS
    (last,) = layout.active
    assert layout.merge_depth(last.segment_id) == 3


@pytest.mark.parametrize(("age_s", "done"), [(0, False), (299.999, False), (300, True)])
def test_a_merge_waits_for_the_cooldown_of_the_last_one(age_s: float, done: bool) -> None:
    layout = merge_segments(topic(3), 0, 1, NOW_MS - round(age_s * 1000))
    decision = ask(layout, {2: load(), 3: load()})
    assert said(decision) == (Merge(3, 2, COLD) if done else nothing(ScaleReason.MERGE_COOLDOWN))
    if isinstance(decision, Nothing):
        assert decision.again_ms is None  # merges are lazy: the tick will do


def test_a_split_does_not_start_the_cooldown_of_merges() -> None:
    layout = split_segment(topic(2), 0, NOW_MS - 1)
    assert said(ask(layout, {i: load() for i in (1, 2, 3)})) == Merge(2, 3, COLD)


def test_there_are_never_fewer_than_min_segments() -> None:
    known = loads(0, 0, 0)
    assert ask(topic(3), known, policy=replace(POLICY, min_segments=2)) == Merge(0, 1, COLD)
    assert said(ask(topic(3), known, policy=replace(POLICY, min_segments=3))) == nothing(ScaleReason.MIN_SEGMENTS)


def deep(merges: int) -> SegmentLayout:
    """Two segments; the first has so many merges behind it."""
    layout = topic(2)
    for _ in range(merges):
        first = layout.active[0].segment_id
        layout = split_segment(layout, first, LONG_AGO_MS)
        low, high = (s.segment_id for s in layout.active[:2])
        layout = merge_segments(layout, low, high, LONG_AGO_MS)
    return layout


@pytest.mark.parametrize(("merges", "done"), [(9, True), (10, False), (11, False)])
def test_semantics_6_a_lineage_with_the_most_merges_is_merged_no_more(merges: int, done: bool) -> None:
    layout = deep(merges)
    first, second = (s.segment_id for s in layout.active)
    decision = ask(layout, {first: load(), second: load()})
    assert said(decision) == (Merge(first, second, COLD) if done else nothing(ScaleReason.MAX_DEPTH))
    assert said(ask(layout, {first: load(20_000), second: load()})) == Split(first, LOAD)  # it is still split


def test_what_lies_beside_a_deep_lineage_is_merged_all_the_same() -> None:
    layout = split_segment(deep(10), 1, LONG_AGO_MS)
    first, low, high = (s.segment_id for s in layout.active)
    assert ask(layout, {i: load() for i in (first, low, high)}) == Merge(low, high, COLD)


def test_a_split_that_is_held_back_does_not_hold_merges_back() -> None:
    layout = split_segment(topic(3), 0, NOW_MS - 1)  # 3, 4, 1, 2
    decision = ask(layout, {3: load(20_000), 4: load(2_000), 1: load(), 2: load()})
    assert said(decision) == Merge(1, 2, COLD)
    assert reasons(decision) == [ScaleReason.SPLIT_COOLDOWN]


# What one rule does the other does not undo.


@pytest.mark.parametrize(
    ("rates", "consumers", "expected"),
    [
        ([750, 750], 1, Merge(0, 1, COLD)),
        ([750, 750], 2, nothing(ScaleReason.SPLIT_AGAIN)),  # together above the floor: two consumers would split it
        ([450, 450], 2, Merge(0, 1, COLD)),  # together below it: they share its buckets
        ([450, 450, 5_000], 3, nothing(ScaleReason.SPLIT_AGAIN)),
        ([450, 450, 5_000], 2, Merge(0, 1, COLD)),
    ],
)
def test_a_merge_leaves_consumers_what_they_would_split_for(
    rates: list[float], consumers: int, expected: Decision
) -> None:
    assert said(ask(topic(len(rates)), loads(*rates), consumers)) == expected


def test_a_merge_makes_nothing_that_is_overloaded() -> None:
    policy = replace(POLICY, split_msg_rate_in_threshold=1_500.0)
    assert ask(topic(2), loads(700, 700), policy=policy) == Merge(0, 1, COLD)
    assert said(ask(topic(2), loads(800, 800), policy=policy)) == nothing(ScaleReason.SPLIT_AGAIN)


def test_a_merge_takes_no_buckets_that_consumers_need() -> None:
    most = BUCKETS_PER_SEGMENT_MAX
    layout = topic(2, 2 * most)
    assert said(ask(layout, loads(1, 1), most + 1)) == nothing(ScaleReason.SPLIT_AGAIN)
    assert said(ask(layout, loads(1, 1), most)) == Merge(0, 1, COLD)


@pytest.mark.parametrize(
    ("buckets", "most", "merged"), [((4, 4), 4, 4), ((4, 4), 6, 6), ((4, 4), 64, 8), ((16, 2), 4, 16)]
)
def test_a_merge_keeps_to_the_ceiling_of_buckets_and_lowers_none(
    buckets: tuple[int, int], most: int, merged: int
) -> None:
    layout = topic(2, 8)
    for segment, count in zip((0, 1), buckets, strict=True):
        if layout.segment(segment).bucket_count != count:
            layout = rebucket_segment(layout, segment, count, LONG_AGO_MS)
    ids = [segment.segment_id for segment in layout.active]
    decision = ask(layout, {i: load() for i in ids}, policy=replace(POLICY, max_buckets=most))
    assert isinstance(decision, Merge)
    (child,) = plan_merge(layout, decision.first_id, decision.second_id, decision.buckets_max).children
    assert child.bucket_count == merged


def test_buckets_that_the_ceiling_would_take_from_consumers_hold_a_merge_back() -> None:
    policy = replace(POLICY, max_buckets=4)
    assert said(ask(topic(2, 8), loads(1, 1), 5, policy=policy)) == nothing(ScaleReason.SPLIT_AGAIN)
    assert said(ask(topic(2, 8), loads(1, 1), 4, policy=policy)) == Merge(0, 1, COLD)
