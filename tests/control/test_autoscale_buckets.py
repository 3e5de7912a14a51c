"""Whether `decide` rebuckets: every rule of PIP-486 with its boundary, as tables (semantics 31)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.control.policy.autoscale import decide
from engine.control.policy.decisions import Decision, HeldBack, Merge, Nothing, Rebucket, ScaleReason, Split
from engine.model.layout import SegmentLayout
from engine.model.reshape import rebucket_segment, split_segment
from tests.control.autoscale_cases import (
    HOUR_MS,
    LONG_AGO_MS,
    MINUTE_MS,
    NOW_MS,
    POLICY,
    Loads,
    act,
    ask,
    load,
    loads,
    nothing,
    reasons,
    said,
    topic,
)

CONSUMERS, BUCKETS, COLD = ScaleReason.CONSUMERS, ScaleReason.BUCKETS, ScaleReason.COLD


# Rebuckets for consumers.


@pytest.mark.parametrize(
    ("segments", "buckets", "consumers", "expected"),
    [
        (1, 4, 4, nothing()),  # enough buckets
        (1, 4, 5, Rebucket(((0, 8),), BUCKETS)),
        (1, 4, 9, Rebucket(((0, 16),), BUCKETS)),
        (1, 1, 2, Rebucket(((0, 2),), BUCKETS)),
        (2, 4, 4, nothing()),
        (2, 4, 5, Rebucket(((0, 4), (1, 4)), BUCKETS)),  # ceil(5 / 2) = 3, then 4
        (3, 3, 4, Rebucket(((0, 2), (1, 2), (2, 2)), BUCKETS)),
        (1, 4, 1_025, Rebucket(((0, 1_024),), BUCKETS)),  # the most there may be
    ],
)
@pytest.mark.parametrize("known", ["cold", "nothing"])
def test_semantics_31_on_a_cold_topic_consumers_get_buckets(
    segments: int, buckets: int, consumers: int, expected: Decision, known: str
) -> None:
    reports = loads(*[900.0 / segments] * segments, since_s=1.0) if known == "cold" else {}
    layout = topic(segments, buckets)
    decision = ask(layout, reports, consumers, traffic=False)
    assert decision == expected
    after = act(layout, decision, NOW_MS)
    assert not isinstance(ask(after, reports, consumers, traffic=False), Rebucket)


def test_semantics_31_only_segments_below_the_target_are_rebucketed() -> None:
    layout = rebucket_segment(topic(2, 4), 0, 8, LONG_AGO_MS)  # 2 with 8 buckets, 1 with 2
    assert said(ask(layout, {}, 10)) == nothing(ScaleReason.UNKNOWN_LOAD)
    assert ask(layout, {}, 11) == Rebucket(((1, 8),), BUCKETS)  # ceil(11 / 2) = 6, then 8


def test_semantics_31_the_floor_is_looked_for_in_the_busiest_segment() -> None:
    assert said(ask(topic(2), loads(999, 999, since_s=1), 5)) == Rebucket(((0, 4), (1, 4)), BUCKETS)
    assert said(ask(topic(2), loads(999, 1_000, since_s=1), 5)) == Split(1, CONSUMERS)


@pytest.mark.parametrize(
    ("consumers", "expected"),
    [
        (4, nothing(ScaleReason.MAX_SEGMENTS)),
        (5, Rebucket(((0, 4), (1, 4)), BUCKETS)),
    ],
)
def test_semantics_31_a_topic_at_its_most_segments_gets_buckets_however_hot_it_is(
    consumers: int, expected: Decision
) -> None:
    decision = ask(topic(2), loads(9_000, 9_000), consumers, replace(POLICY, max_segments=2))
    assert said(decision) == expected
    assert reasons(decision) == [ScaleReason.MAX_SEGMENTS]


def test_64_segments_and_200_consumers_get_4_buckets_each() -> None:
    decision = ask(topic(64), loads(*[5_000.0] * 64), 200)
    assert isinstance(decision, Rebucket)
    assert decision.targets == tuple((i, 4) for i in range(64))


@pytest.mark.parametrize(("age_s", "done"), [(0, False), (59.999, False), (60, True)])
def test_semantics_31_rebuckets_have_a_cooldown_of_their_own(age_s: float, done: bool) -> None:
    born_ms = NOW_MS - round(age_s * 1000)
    layout = rebucket_segment(topic(), 0, 8, born_ms)
    held = HeldBack(ScaleReason.REBUCKET_COOLDOWN, born_ms + 60_000)
    expected = Rebucket(((1, 16),), BUCKETS) if done else Nothing(ScaleReason.REBUCKET_COOLDOWN, (held,))
    assert ask(layout, {}, 9) == expected


def test_semantics_31_a_split_is_no_rebucket_and_does_not_hold_one_back() -> None:
    layout = split_segment(topic(), 0, NOW_MS - 1)
    assert ask(layout, {}, 5) == Rebucket(((1, 4), (2, 4)), BUCKETS)


@pytest.mark.parametrize(
    "reported",
    [
        {0: load(5_000)},  # the children have not reported yet: each has half of what their parent had
        {0: load(5_000), 1: load(80), 2: load(70)},  # or have, and their rates rise still
    ],
)
def test_semantics_31_a_split_inside_its_cooldown_does_not_fall_through_to_a_rebucket(reported: Loads) -> None:
    layout = split_segment(topic(), 0, NOW_MS - 10_000)
    assert reasons(ask(layout, reported, 9, traffic=False)) == [ScaleReason.SPLIT_COOLDOWN]


def test_what_a_young_segment_inherits_is_forgotten_when_it_has_reported_for_a_window() -> None:
    layout = split_segment(topic(), 0, NOW_MS - MINUTE_MS)
    assert said(ask(layout, {0: load(5_000), 1: load(80), 2: load(70)}, 9)) == Rebucket(((1, 8), (2, 8)), BUCKETS)


def test_members_of_checkpoint_groups_never_share_so_they_get_no_buckets() -> None:
    """Semantics 29; and on a cold topic no segments either (semantics 31)."""
    assert decide(topic(), {}, {}, POLICY, NOW_MS, checkpoint_consumers={"g": 50}) == nothing()


def test_no_segment_gets_more_than_max_buckets() -> None:
    policy = replace(POLICY, max_buckets=6)
    layout = topic()
    decision = ask(layout, {}, 99, policy)
    assert decision == Rebucket(((0, 6),), BUCKETS)
    later = ask(act(layout, decision, NOW_MS), {}, 99, policy, now_ms=NOW_MS + HOUR_MS)
    assert later == Nothing(ScaleReason.MAX_BUCKETS, (HeldBack(ScaleReason.MAX_BUCKETS),))


# Fewer buckets.


def wide(buckets: int, age_ms: int = HOUR_MS) -> SegmentLayout:
    return rebucket_segment(topic(), 0, buckets, NOW_MS - age_ms)


@pytest.mark.parametrize(
    ("buckets", "peak", "expected"),
    [
        (16, 1, Rebucket(((1, 8),), ScaleReason.IDLE_BUCKETS)),  # four times the budget: twice the budget
        (15, 1, nothing()),
        (32, 5, Rebucket(((1, 16),), ScaleReason.IDLE_BUCKETS)),  # 5 consumers need 8
        (16, 5, nothing()),
        (64, None, nothing()),  # it is not known how many there were
    ],
)
def test_pip_486_buckets_are_lowered_lazily(buckets: int, peak: int | None, expected: Decision) -> None:
    assert ask(wide(buckets), {1: load(100)}, peak_consumers=peak) == expected


def test_pip_486_buckets_are_not_lowered_where_the_topic_was_given_them() -> None:
    assert ask(topic(1, 64), {0: load(1)}, peak_consumers=0) == nothing()


@pytest.mark.parametrize("known", [load(100, since_s=299), load(1_000), None])
def test_pip_486_buckets_are_lowered_only_when_it_has_been_cold_for_the_window(known: Any) -> None:
    assert ask(wide(64), {} if known is None else {1: known}, peak_consumers=0) == nothing()


def test_pip_486_buckets_are_lowered_after_merges_and_outside_the_cooldown() -> None:
    layout = topic(2)
    for segment_id in (0, 1):
        layout = rebucket_segment(layout, segment_id, 64, LONG_AGO_MS)
    assert said(ask(layout, {2: load(), 3: load()}, peak_consumers=0)) == Merge(2, 3, COLD)
    policy = replace(POLICY, min_segments=2)
    expected = Rebucket(((2, 4), (3, 4)), ScaleReason.IDLE_BUCKETS)
    assert said(ask(layout, {2: load(), 3: load()}, policy=policy, peak_consumers=0)) == expected
    policy = replace(POLICY, rebucket_cooldown=7_200.0, merge_window=10.0)
    assert ask(wide(64), {1: load(0)}, policy=policy, peak_consumers=0) == nothing()
