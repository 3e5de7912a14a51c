"""Whether `decide` splits, and what holds it back: every rule of PIP-483 with its boundary, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.control.policy.autoscale import decide
from engine.control.policy.decisions import Decision, HeldBack, Nothing, RateAbove, ScaleReason, Split
from engine.control.shape.topic_scaling import in_json
from engine.limits import MIB
from engine.model.autoscale import AutoScalePolicyOverride, resolve
from engine.model.layout import PendingChange
from engine.model.reshape import merge_segments, prune_segment, rebucket_segment, split_segment
from tests.control.autoscale_cases import (
    HOUR_MS,
    LONG_AGO_MS,
    NOW_MS,
    POLICY,
    Loads,
    ask,
    load,
    loads,
    nothing,
    reasons,
    said,
    topic,
)

CONSUMERS, LOAD, COLD = ScaleReason.CONSUMERS, ScaleReason.LOAD, ScaleReason.COLD


# The policies.


def test_a_topic_that_is_disabled_is_left_alone() -> None:
    hot = loads(99_999)
    assert ask(topic(), hot, 9, replace(POLICY, enabled=False)) == nothing(ScaleReason.DISABLED)


def test_semantics_34_a_policy_that_contradicts_itself_disables_and_raises_nothing() -> None:
    policy = resolve(POLICY, AutoScalePolicyOverride.of({"min_segments": 65}))
    assert ask(topic(), loads(99_999), 9, policy) == nothing(ScaleReason.INVALID_POLICY)


def test_nothing_is_decided_while_a_change_is_pending() -> None:
    layout = replace(topic(), change=PendingChange("split", "children"))
    assert ask(layout, loads(99_999), 9) == nothing(ScaleReason.PENDING)


# Splits for consumers.


@pytest.mark.parametrize(
    ("segments", "rates", "consumers", "expected"),
    [
        (1, [5_000], 1, nothing()),
        (1, [5_000], 2, Split(0, CONSUMERS)),
        (2, [3_000, 4_000], 3, Split(1, CONSUMERS)),
        (2, [4_000, 4_000], 3, Split(0, CONSUMERS)),  # equally busy: the lower range
        (3, [3_000, 2_000, 1_000], 3, nothing()),
        (1, [1_000], 2, Split(0, CONSUMERS)),  # at the floor
        (1, [999.9], 2, nothing()),  # below it
    ],
)
def test_semantics_30_more_consumers_than_segments_split_the_busiest(
    segments: int, rates: list[float], consumers: int, expected: Decision
) -> None:
    assert ask(topic(segments), loads(*rates), consumers) == expected


def test_semantics_30_demand_is_the_largest_subscription_and_not_the_sum() -> None:
    layout, known = topic(3), loads(2_001, 2_000, 2_000)
    assert decide(layout, known, {"a": 3, "b": 3, "c": 2}, POLICY, NOW_MS) == nothing()
    assert decide(layout, known, {"a": 1, "b": 4}, POLICY, NOW_MS) == Split(0, CONSUMERS)


def test_the_members_of_checkpoint_groups_count_too() -> None:
    layout, known = topic(2), loads(2_000, 2_000)
    assert decide(layout, known, {"a": 1}, POLICY, NOW_MS, checkpoint_consumers={"g": 3}) == Split(0, CONSUMERS)


def test_of_equal_rates_the_widest_is_the_busiest() -> None:
    layout = split_segment(topic(2), 0, LONG_AGO_MS)  # 2 and 3 are quarters, 1 is a half
    assert ask(layout, {i: load(2_000) for i in (1, 2, 3)}, 4) == Split(1, CONSUMERS)


# Splits for load.


@pytest.mark.parametrize(
    ("rate", "at"),
    [("msg_in", 10_000), ("bytes_in", 50 * MIB), ("msg_out", 50_000), ("bytes_out", 250 * MIB)],
)
def test_a_segment_above_any_threshold_is_split(rate: str, at: float) -> None:
    cold = load(1_500)
    assert ask(topic(2), {0: cold, 1: load(**{rate: at})}) == nothing()
    assert ask(topic(2), {0: cold, 1: load(**{rate: at * 1.001})}) == Split(1, LOAD)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({0: load(12_000), 1: load(11_000)}, 0),
        ({0: load(12_000), 1: load(msg_out=90_000)}, 1),  # 1.2 times its threshold against 1.8 times
        ({0: load(12_000, bytes_in=10), 1: load(12_000)}, 0),  # as much overloaded: the lower range
    ],
)
def test_the_most_overloaded_is_split(known: Loads, expected: int) -> None:
    assert ask(topic(2), known) == Split(expected, LOAD)


def test_what_queue_consumers_are_sent_counts_as_load_and_they_do_not_count_as_consumers() -> None:
    """They are not among the stream subscriptions: 50 of them change nothing, their traffic does."""
    assert decide(topic(), {0: load(900, msg_out=45_000)}, {}, POLICY, NOW_MS) == nothing()
    assert decide(topic(), {0: load(900, msg_out=51_000)}, {}, POLICY, NOW_MS) == Split(0, LOAD)


def test_consumers_come_before_load() -> None:
    assert ask(topic(2), {0: load(2_000), 1: load(1_500, msg_out=99_999)}, 3) == Split(0, CONSUMERS)


def test_when_consumers_came_traffic_is_not_judged() -> None:
    assert ask(topic(), loads(99_999), 1, traffic=False) == nothing()
    assert ask(topic(2), loads(0, 0), 1, traffic=False) == nothing()
    assert ask(topic(), loads(99_999), 2, traffic=False) == Split(0, CONSUMERS)


def test_a_segment_that_has_not_reported_is_never_overloaded() -> None:
    assert said(ask(topic(2), {0: load(9_000)})) == nothing(ScaleReason.UNKNOWN_LOAD)


# What holds a split back.


@pytest.mark.parametrize(("limit", "expected"), [(3, Split(0, LOAD)), (2, nothing(ScaleReason.MAX_SEGMENTS))])
def test_there_are_never_more_than_max_segments(limit: int, expected: Decision) -> None:
    decision = ask(topic(2), loads(20_000, 5_000), policy=replace(POLICY, max_segments=limit))
    assert said(decision) == said(expected)
    assert reasons(decision) == ([] if isinstance(expected, Split) else [ScaleReason.MAX_SEGMENTS])


@pytest.mark.parametrize("consumers", [0, 3])
@pytest.mark.parametrize(("age_s", "done"), [(0, False), (59.999, False), (60, True)])
def test_a_split_waits_for_the_cooldown_of_the_last_one(consumers: int, age_s: float, done: bool) -> None:
    born_ms = NOW_MS - round(age_s * 1000)
    layout = split_segment(topic(), 0, born_ms)
    decision = ask(layout, {1: load(20_000), 2: load(5_000)}, consumers)
    if done:
        assert decision == Split(1, CONSUMERS if consumers else LOAD)
    else:
        assert decision == Nothing(
            ScaleReason.SPLIT_COOLDOWN, (HeldBack(ScaleReason.SPLIT_COOLDOWN, born_ms + 60_000),)
        )
        assert isinstance(decision, Nothing)
        assert decision.again_ms == born_ms + 60_000


def test_semantics_33_neither_a_merge_nor_a_rebucket_starts_the_cooldown_of_splits() -> None:
    merged = merge_segments(topic(2), 0, 1, NOW_MS - 1)
    rebucketed = rebucket_segment(topic(), 0, 8, NOW_MS - 1)
    assert ask(merged, {2: load(20_000)}) == Split(2, LOAD)
    assert ask(rebucketed, {1: load(20_000)}) == Split(1, LOAD)


def test_semantics_33_a_split_of_what_has_been_split_again_or_merged_since_still_counts() -> None:
    layout = split_segment(topic(2), 0, NOW_MS - 30_000)
    layout = merge_segments(layout, 2, 3, NOW_MS - 10_000)  # no active segment is a split's child now
    assert reasons(ask(layout, {4: load(20_000), 1: load(2_000)})) == [ScaleReason.SPLIT_COOLDOWN]


def test_what_does_not_say_how_it_came_to_be_starts_every_cooldown() -> None:
    layout = prune_segment(split_segment(topic(), 0, NOW_MS - 30_000), 0)
    assert reasons(ask(layout, {1: load(20_000), 2: load(0)})) == [ScaleReason.SPLIT_COOLDOWN]
    assert ask(layout, {1: load(20_000), 2: load(0)}, now_ms=NOW_MS + 30_000) == Split(1, LOAD)


def test_a_clock_that_was_set_back_ends_no_cooldown() -> None:
    layout = split_segment(topic(), 0, NOW_MS + HOUR_MS)
    assert reasons(ask(layout, {1: load(20_000), 2: load(9_000)})) == [ScaleReason.SPLIT_COOLDOWN]


def test_one_hash_value_is_not_split_the_next_one_is() -> None:
    layout, now = topic(), LONG_AGO_MS
    while layout.active[0].hash_range.width > 1:
        layout = split_segment(layout, layout.active[0].segment_id, now)
    narrow, other = layout.active[0].segment_id, layout.active[-1].segment_id
    assert said(ask(layout, {narrow: load(50_000)})) == nothing(ScaleReason.ONE_HASH_VALUE)
    assert ask(layout, {narrow: load(50_000), other: load(12_000)}) == Split(other, LOAD)
    assert ask(layout, {narrow: load(5_000), other: load(2_000)}, 99) == Split(other, CONSUMERS)


def test_a_split_for_load_names_the_rate_that_is_farthest_above_its_threshold() -> None:
    decision = ask(topic(2), {0: load(11_000, msg_out=60_000), 1: load()})
    assert isinstance(decision, Split)
    assert decision.cause == RateAbove("msg_rate_out", 60_000, 50_000)
    assert in_json(decision, NOW_MS)["cause"] == {"rate": "msg_rate_out", "value": 60_000, "threshold": 50_000}
    assert in_json(nothing(), NOW_MS)["cause"] is None
