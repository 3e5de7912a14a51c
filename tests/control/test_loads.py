"""What the reports of a topic's segments say when they are read together."""

from __future__ import annotations

import pytest

from engine.control.base.loads import read_loads
from engine.metadata import keys
from engine.metadata.memory import MemoryMetadataStore
from engine.model.load import SegmentLoadStats
from engine.model.names import SegmentName, TopicName
from engine.testing.clock import FakeClock

TOPIC = TopicName.parse("orders")


async def test_a_report_that_cannot_be_read_leaves_the_others(caplog: pytest.LogCaptureFixture):
    store = MemoryMetadataStore(FakeClock())
    stats = SegmentLoadStats(1.0, 2.0, 3.0, 4.0)
    for segment_id, value in ((0, b"\xff"), (1, stats.to_json())):
        name = SegmentName.parse(f"segment://public/default/orders/0000-ffff-{segment_id}")
        await store.put(keys.load(name), value)
    found = await read_loads(store, TOPIC)
    assert {segment_id: report.stats for segment_id, report in found.items()} == {1: stats}
    assert "segment 0: its load is unknown" in caplog.text
    await store.close()
