"""Metrics of auto-scale and of shared segments, under the specification's names."""

from __future__ import annotations

import pytest

from engine.broker.metrics.catalogue import metrics_text
from tests.kit.peer import Peer

TOPIC = 'namespace="public/default",topic="topic://public/default/orders"'
AUTO = (
    "auto_splits",
    "auto_merges",
    "auto_rebuckets",
    "auto_failures",
    "split_suppressed_max_segments",
    "merge_suppressed_max_depth",
)


async def led_topic(broker) -> None:
    """Its controller is here, and nothing has happened yet."""
    await broker.admin.create_topic("orders")
    await broker.admin.create_subscription("orders", "s")


@pytest.mark.parametrize("name", [*AUTO, "splits", "merges", "rebuckets"])
async def test_counters_of_a_led_topic_begin_with_a_zero(broker, name):
    await led_topic(broker)
    lines = metrics_text(broker).splitlines()
    assert f"# TYPE engine_scalable_topic_{name}_total counter" in lines
    assert f"engine_scalable_topic_{name}_total{{{TOPIC}}} 0.0" in lines


async def test_changes_are_counted_by_kind_and_stay_beside_zeros(broker):
    await led_topic(broker)
    await broker.admin.split_segment("orders", 0)
    lines = metrics_text(broker).splitlines()
    assert f"engine_scalable_topic_splits_total{{{TOPIC}}} 1.0" in lines
    assert f"engine_scalable_topic_merges_total{{{TOPIC}}} 0.0" in lines
    assert f"engine_scalable_topic_auto_splits_total{{{TOPIC}}} 0.0" in lines  # that one was made by hand
    assert f'engine_scalable_topic_changes_undone_total{{kind="split",{TOPIC}}} 0.0' in lines
    assert f"engine_scalable_topic_active_segments{{{TOPIC}}} 2.0" in lines


async def test_whether_a_topic_scales_is_a_gauge(broker):
    await led_topic(broker)
    name = f"engine_scalable_topic_auto_scale_enabled{{{TOPIC}}}"
    assert f"{name} 1.0" in metrics_text(broker).splitlines()


async def test_shared_segments_have_their_gauges(broker):
    peer = await Peer.connect(broker)
    await peer.consumer(await peer.segment("orders"), "exclusive")
    lines = metrics_text(broker).splitlines()
    namespace, topic = TOPIC.split(",")
    labels = f'{namespace},segment="0",subscription="s",{topic}'
    for name in ("sharers", "bucket_reassignments_total", "withheld_buckets", "drain_mode"):
        assert f"engine_subscription_{name}{{{labels}}} 0.0" in lines
    assert f'engine_segment_buckets{{{namespace},segment="0",{topic}}} 4.0' in lines
