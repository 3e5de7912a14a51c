"""Writing: columns to messages, by topic, of every type that is allowed; and what is refused before a job runs."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import engine

if TYPE_CHECKING:
    from conftest import Reads, Writes
    from pyspark.sql import SparkSession

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def messages(broker: engine.Engine, topic: str) -> list[engine.Message]:
    """All that may be read."""
    with broker.topic_view(topic) as view:
        segments = view.segments(exact=True).segments
    ranges = {i: (s.first, s.end) for i, s in segments.items()}
    with broker.range_reader(topic, ranges) as reader:
        return list(reader)


def test_every_column(broker: engine.Engine, topic: str, spark: SparkSession, writes: Writes):
    rows = [("a", "1", AT, {"color": "blue", "size": "2"}), (None, "2", None, None), ("c", "", AT, {})]
    frame = spark.createDataFrame(
        rows, "key STRING, value STRING, event_time TIMESTAMP, properties MAP<STRING, STRING>"
    )
    writes(frame, topic)
    writes(frame.selectExpr("CAST(key AS BINARY)", "CAST(value AS BINARY)"), topic)
    found = messages(broker, topic)
    ms = int(AT.timestamp() * 1000)
    assert sorted((m.key or b"", m.value, m.event_time_ms or 0, tuple(m.properties.items())) for m in found) == [
        (b"", b"2", 0, ()),
        (b"", b"2", 0, ()),
        (b"a", b"1", 0, ()),
        (b"a", b"1", ms, (("color", "blue"), ("size", "2"))),
        (b"c", b"", 0, ()),
        (b"c", b"", ms, ()),
    ]
    assert [m.key for m in found].count(None) == 2
