"""Auto-scale policies: fields, overrides, how they resolve (semantics 34), and where they are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import CorruptionError, InvalidArgumentError
from engine.model.autoscale import NAMES, AutoScalePolicy, AutoScalePolicyOverride, resolve
from engine.model.layout import SegmentLayout
from engine.model.reshape import merge_segments, prune_segment, rebucket_segment, split_segment

of = AutoScalePolicyOverride.of


def test_the_defaults_are_the_specification_s() -> None:
    policy = AutoScalePolicy()
    assert (policy.enabled, policy.max_segments, policy.min_segments, policy.max_dag_depth) == (True, 64, 1, 10)
    assert (policy.split_cooldown, policy.merge_cooldown, policy.merge_window) == (60, 300, 300)
    assert policy.split_threshold("msg_rate_in") == 10_000
    assert policy.split_threshold("bytes_rate_in") == 50 * 1024**2
    assert policy.split_threshold("msg_rate_out") == 50_000
    assert policy.split_threshold("bytes_rate_out") == 250 * 1024**2
    assert policy.merge_threshold("msg_rate_in") == 1_000
    assert policy.merge_threshold("bytes_rate_in") == 5 * 1024**2
    assert policy.merge_threshold("msg_rate_out") == 5_000
    assert policy.merge_threshold("bytes_rate_out") == 25 * 1024**2
    assert resolve(policy) == policy


def test_semantics_34_fields_resolve_one_by_one_topic_before_namespace_before_broker() -> None:
    broker = AutoScalePolicy(max_segments=8, min_segments=2, split_cooldown=1)
    namespace, topic = of({"max_segments": 16, "merge_cooldown": 5}), of({"max_segments": 32, "enabled": False})
    policy = resolve(broker, namespace, topic)
    chosen = (policy.max_segments, policy.min_segments, policy.split_cooldown, policy.merge_cooldown, policy.enabled)
    assert chosen == (32, 2, 1, 5, False)
    assert resolve(broker, namespace).max_segments == 16
    assert resolve(broker, None, of({})) == broker
    assert resolve(AutoScalePolicy(enabled=False), of({"enabled": True})).enabled


@pytest.mark.parametrize(
    ("namespace", "topic", "problem"),
    [
        ({"min_segments": 9}, {"max_segments": 8}, "min_segments is 9, above max_segments, 8"),
        ({"merge_msg_rate_out_threshold": 60}, {"split_msg_rate_out_threshold": 60}, "merge_msg_rate_out_threshold"),
        ({}, {"merge_bytes_rate_in_threshold": 1e12}, "merge_bytes_rate_in_threshold"),
    ],
)
def test_semantics_34_what_is_wrong_only_together_disables_and_raises_nothing(
    namespace: dict[str, Any], topic: dict[str, Any], problem: str
) -> None:
    policy = resolve(AutoScalePolicy(), of(namespace), of(topic))
    assert not policy.enabled
    assert policy.problem.startswith(problem)


@pytest.mark.parametrize(
    "wrong",
    [
        {"enabled": 1},
        {"max_segments": 0},
        {"max_segments": 1025},
        {"min_segments": 2.0},
        {"max_dag_depth": -1},
        {"max_buckets": True},
        {"split_cooldown": -1},
        {"merge_window": "5x"},
        {"max_segments": "5"},
        {"split_msg_rate_in_threshold": "5k"},
        {"merge_cooldown": float("nan")},
        {"split_msg_rate_in_threshold": float("inf")},
        {"merge_msg_rate_in_threshold": 10**400},
        {"segments": 3},
    ],
)
def test_what_is_wrong_alone_is_refused_and_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        of(wrong)
    if "segments" not in wrong:
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            AutoScalePolicy(**wrong)


def test_what_is_no_mapping_is_refused() -> None:
    for form in (of, AutoScalePolicyOverride.of_json):
        with pytest.raises(InvalidArgumentError, match="auto-scale policy"):
            form([("enabled", True)])  # type: ignore[arg-type]


def test_an_override_in_json() -> None:
    override = of({"max_segments": 3, "split_msg_rate_in_threshold": 5, "enabled": None})
    assert override.to_json() == {"maxSegments": 3, "splitMsgRateInThreshold": 5}
    assert AutoScalePolicyOverride.of_json(override.to_json()) == override
    assert of(override.to_mapping()) == override
    assert not of({})
    assert list(AutoScalePolicy().to_mapping()) == list(NAMES)


def test_fields_of_a_newer_version_are_kept() -> None:
    stored = {"maxSegments": 3, "splitByMoon": "full"}
    assert AutoScalePolicyOverride.of_json(stored).to_json() == stored


def test_semantics_3_every_change_of_the_layout_carries_the_policy_and_the_budget_along() -> None:
    layout = SegmentLayout.create(2, now_ms=1, buckets_total=6)
    fields = {**layout.to_metadata(), "autoScalePolicy": {"maxSegments": 3}}
    layout = SegmentLayout.from_json(json.dumps(fields).encode())
    layout = split_segment(layout, 0, 2)
    layout = rebucket_segment(layout, 2, 7, 3)
    layout = merge_segments(layout, 3, 1, 4)
    layout = prune_segment(layout, 0)
    again = SegmentLayout.from_json(layout.to_json())
    for known in (layout, again):
        assert known.auto_scale_policy == of({"max_segments": 3})
        assert known.buckets_total == 6


def test_records_of_older_versions_have_neither() -> None:
    fields = SegmentLayout.create(now_ms=1).to_metadata()
    del fields["entryBuckets"]
    layout = SegmentLayout.from_metadata(fields)
    assert (layout.auto_scale_policy, layout.buckets_total) == (None, 4)


def test_a_damaged_policy_in_a_record_is_named() -> None:
    fields = {**SegmentLayout.create(now_ms=1).to_metadata(), "autoScalePolicy": {"maxSegments": "many"}}
    with pytest.raises(CorruptionError, match=r"autoScalePolicy.*max_segments must be .*, got 'many'"):
        SegmentLayout.from_metadata(fields)


def test_times_and_sizes_may_be_text_with_a_unit() -> None:
    override = AutoScalePolicyOverride.of_json({"mergeWindow": "5m", "splitBytesRateInThreshold": "50MB"})
    assert override.to_mapping() == {"merge_window": 300.0, "split_bytes_rate_in_threshold": 50.0 * 2**20}
    assert override.to_json() == {"mergeWindow": 300.0, "splitBytesRateInThreshold": 50.0 * 2**20}
    with pytest.raises(InvalidArgumentError, match='merge_window must be a number of seconds, or text as "5m", from 0'):
        AutoScalePolicyOverride.of({"merge_window": "soon"})
