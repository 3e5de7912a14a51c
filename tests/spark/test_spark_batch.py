"""Batch queries: what is read, from where to where, in how many tasks, and what filters spare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest
from pyspark_engine import reading
from pyspark_engine.offsets import full_name
from pyspark_engine.schema import converter, table_schema

import engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Reads


def fill(broker: engine.Engine, topic: str, values: range, keys: int = 20) -> None:
    """Values n with the key n % keys, and the same as a property of the first."""
    with broker.producer(topic) as producer:
        producer.send_batch([b"%d" % n for n in values], keys=[b"k%d" % (n % keys) for n in values])
        producer.flush()


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


@pytest.fixture
def reshaped(broker: engine.Engine, topic: str) -> str:
    """3,000 messages through a split, a merge and a rebucket: six segments, two of them active."""
    broker.admin.create_topic(topic, segments=2, entry_buckets=16)
    fill(broker, topic, range(1000))
    broker.admin.split_segment(topic, 0)
    fill(broker, topic, range(1000, 2000))
    broker.admin.merge_segments(topic, 2, 3)
    broker.admin.rebucket_segment(topic, 1, 16)
    fill(broker, topic, range(2000, 3000))
    return topic


def test_every_column(broker: engine.Engine, topic: str, reads: Reads):
    when = datetime(2026, 3, 1, 12, tzinfo=UTC)
    with broker.producer(topic) as producer:
        sent = producer.send(b"\x00\xff", key=b"k", properties={"a": "1", "b": "ü"}, event_time=when)
        producer.send(b"", key=None)
    first, second = reads(topic).orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic) == (b"k", b"\x00\xff", f"topic://public/default/{topic}")
    assert (first.segment, first.offset) == (sent.segment_id, sent.offset)
    assert first.event_time == when.replace(tzinfo=None)
    assert abs(first.publish_time.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds() < 300
    assert first.properties == {"a": "1", "b": "ü"}
    assert (second.key, bytes(second.value), second.event_time, second.properties) == (None, b"", None, {})
    assert "properties" not in reads(topic, includeHeaders="false").columns


def test_a_schema_of_ones_own_chooses_columns_and_text(broker: engine.Engine, topic: str, reads: Reads):
    fill(broker, topic, range(10))
    frame = reads(topic, schema="value STRING, offset BIGINT, key STRING")
    assert frame.columns == ["value", "offset", "key"]
    assert {(row.value, row.key) for row in frame.collect()} == {(str(n), f"k{n}") for n in range(10)}
    assert {row.topic for row in reads(topic, schema="topic STRING").collect()} == {full_name(topic)}
    assert sorted(row.value for row in reads(topic, schema="value BINARY").collect()) == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("color STRING", {}, "got 'color'"),
        ("offset INT", {}, "the column offset must be BIGINT, got INT"),
        (None, {"startingOffsets": "soon"}, "startingOffsets must be earliest"),
        (None, {"startingOffsets": "latest"}, "a batch query finds nothing"),
        (None, {"startingOffsets": '{"another": {"0": 1}}'}, "startingOffsets must name the topic"),
        (None, {"startingOffsets": '{"%s": {"7": 1}}'}, "has no segment 7"),
    ],
)
def test_what_is_wrong_is_said(broker: engine.Engine, topic: str, reads: Reads, schema: Any, options: Any, said: str):
    broker.admin.create_topic(topic)
    options = {name: value.replace("%s", topic) for name, value in options.items()}
    with pytest.raises(Exception, match=said):
        reads(topic, schema, **options).collect()


def test_a_topic_that_is_not_there(topic: str, reads: Reads):
    with pytest.raises(Exception, match="NotFoundError"):
        reads(topic).collect()


def test_nothing_to_read(broker: engine.Engine, topic: str, reads: Reads):
    broker.admin.create_topic(topic)
    assert reads(topic).collect() == []


def test_a_loaded_frame_is_a_snapshot(broker: engine.Engine, topic: str, reads: Reads):
    fill(broker, topic, range(10))
    frame = reads(topic)
    assert frame.count() == 10
    fill(broker, topic, range(10, 20))
    assert frame.count() == 10
    assert reads(topic).count() == 20


def test_from_where_to_where(broker: engine.Engine, topic: str, reads: Reads):
    broker.admin.create_topic(topic, segments=1)
    fill(broker, topic, range(100))
    with broker.topic_view(topic) as view:
        kept = view.segments().latest
    between = datetime.now(UTC)
    broker.admin.split_segment(topic, 0)
    fill(broker, topic, range(100, 200))
    name, text = f"topic://public/default/{topic}", kept.to_bytes().hex()
    assert values(reads(topic)) == list(range(200))
    assert values(reads(topic, startingOffsets=text)) == list(range(100, 200))
    assert values(reads(topic, endingOffsets=text)) == list(range(100))
    assert reads(topic, endingOffsets=json.dumps({name: {"0": 7}})).count() == 7
    assert len(values(reads(topic, startingOffsets=json.dumps({topic: {"0": -1, "1": -2, "2": -1}})))) < 100
    milliseconds = str(int(between.timestamp() * 1000) + 1)
    assert values(reads(topic, startingTimestamp=milliseconds)) in (list(range(100, 200)), [])
    assert values(reads(topic, endingTimestamp="2020-01-01T00:00:00Z")) == []
    assert values(reads(topic, startingOffsets="2020-01-01T00:00:00Z")) == list(range(200))
    by_segment = json.dumps({topic: {"0": 0, "1": 4102444800000, "2": 4102444800000}})
    assert values(reads(topic, startingOffsetsByTimestamp=by_segment)) == list(range(100))


def test_several_topics_and_namespaces(broker: engine.Engine, topic: str, reads: Reads):
    namespace = f"public/{topic}"
    for name, color in (("a", "blue"), ("b", "blue"), ("c", "red")):
        broker.admin.create_topic(f"{namespace}/{name}", properties={"color": color})
        fill(broker, f"{namespace}/{name}", range(10))

    def found(**options: object) -> dict[str, int]:
        rows = reads(None, **options).groupBy("topic").count().collect()
        return {row.topic.rsplit("/")[-1]: row["count"] for row in rows}

    assert found(subscribe=f"{namespace}/a, {namespace}/c") == {"a": 10, "c": 10}
    assert found(namespace=namespace) == {"a": 10, "b": 10, "c": 10}
    assert found(namespace=namespace, topicProperties="color=blue") == {"a": 10, "b": 10}
    assert found(namespace=namespace, subscribePattern="[bc]") == {"b": 10, "c": 10}


def test_as_many_tasks_as_asked_for(reshaped: str, reads: Reads):
    assert reads(reshaped).rdd.getNumPartitions() == 1
    cut = reads(reshaped, minPartitions=7)
    assert cut.rdd.getNumPartitions() == 7
    assert values(cut) == list(range(3000))
    assert reads(reshaped, maxRecordsPerPartition=250).rdd.getNumPartitions() == 12


def test_aligned_tasks_hold_whole_keys_in_order(reshaped: str, reads: Reads):
    """Through a split, a merge and a rebucket."""
    from pyspark.sql.functions import spark_partition_id

    frame = reads(reshaped, minPartitions=4, keyAligned="true", schema="key STRING, value STRING")
    rows = frame.withColumn("task", spark_partition_id()).collect()
    assert len(rows) == 3000
    tasks: dict[str, set[int]] = {}
    last: dict[str, int] = {}
    for row in rows:
        tasks.setdefault(row.key, set()).add(row.task)
        assert last.get(row.key, -1) < int(row.value)
        last[row.key] = int(row.value)
    assert all(len(found) == 1 for found in tasks.values())
    assert len(set.union(*tasks.values())) == 4


class SmallReads:
    """A reader that has few messages at a time."""

    def __init__(self, reader: engine.RangeReader) -> None:
        self._reader = reader

    def next_batch(self, most: int) -> engine.MessageBatch | None:
        return self._reader.next_batch(min(most, 64))


@pytest.mark.parametrize(
    ("messages", "size", "sizes"), [(300, 10**6, [300, 300, 300, 100]), (1000, 1, [64] * 15 + [40])]
)
def test_several_small_reads_make_one_record_batch(
    broker: engine.Engine, topic: str, monkeypatch: pytest.MonkeyPatch, messages: int, size: int, sizes: list[int]
):
    monkeypatch.setattr(reading, "BATCH_MESSAGES", messages)
    monkeypatch.setattr(reading, "BATCH_BYTES", size)
    broker.admin.create_topic(topic, segments=1)
    fill(broker, topic, range(1000))
    convert, found = converter(table_schema(include_headers=True, include_sequence_ids=False)), []
    with broker.range_reader(topic, {0: (0, 1000)}) as reader:
        while batches := reading.gather(cast(engine.RangeReader, SmallReads(reader))):
            found.append(convert(batches))
    assert [len(batch) for batch in found] == sizes
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(1000))
    assert sorted(int(value) for batch in found for value in batch.column("value").to_pylist()) == list(range(1000))
    assert {topic for batch in found for topic in batch.column("topic").to_pylist()} == {full_name(topic)}


def test_what_a_worker_has_imported_is_frozen_once(monkeypatch: pytest.MonkeyPatch):
    collector = Mock()
    monkeypatch.setattr(reading, "gc", collector)
    reading._settle.cache_clear()
    reading._settle()
    reading._settle()
    collector.freeze.assert_called_once_with()


# -- filters ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    """Spark tells sources of filters only where that is switched on."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    yield
    spark.conf.set(setting, "false")


FILTERS = [
    "segment = 2",
    "segment in (0, 2) and offset >= 10 and offset < 50",
    "key = 'k7'",
    "key in ('k1', 'k2') and segment > 0",
    "offset = 3",
    "topic = 'topic://public/default/nowhere'",
    "publish_time > timestamp'2020-01-01 00:00:00'",
    "publish_time <= timestamp'2020-01-01 00:00:00'",
    "key = 'k7' and value like '1%'",
    "segment = 1 or offset = 0",
]


@pytest.mark.usefixtures("pushing")
def test_filters_change_what_is_read_and_not_what_is_found(reshaped: str, reads: Reads, spark: SparkSession):
    setting = "spark.sql.python.filterPushdown.enabled"
    for text in FILTERS:
        spark.conf.set(setting, "true")
        pushed = values(reads(reshaped).where(text))
        spark.conf.set(setting, "false")
        assert pushed == values(reads(reshaped).where(text)), text


@pytest.mark.usefixtures("pushing")
def test_filters_are_taken_and_prune(reshaped: str, reads: Reads):
    def tasks(text: str) -> int:
        return reads(reshaped, maxRecordsPerPartition=100).where(text).rdd.getNumPartitions()

    assert tasks("offset < 100000") == 30
    assert tasks("segment = 0 and offset < 100") == 1
    assert tasks("key = 'k7'") < 20
    plan = reads(reshaped).where("segment = 0 and offset < 100")._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan


# -- what is gone -------------------------------------------------------------------------------------------------


def test_what_retention_deleted_is_told_or_left_out(broker: engine.Engine, topic: str, reads: Reads):
    broker.admin.create_topic(topic, segments=1)
    fill(broker, topic, range(100))
    with broker.topic_view(topic) as view:
        start = view.resolve(engine.Checkpoint.earliest()).to_bytes().hex()
    broker.admin.split_segment(topic, 0)
    fill(broker, topic, range(100, 200))
    assert values(reads(topic, startingOffsets=start)) == list(range(200))
    prune(broker, topic)
    assert values(reads(topic)) == list(range(100, 200))
    kept = json.dumps({topic: {"0": 50}})
    with pytest.raises(Exception, match="DataLossError"):
        reads(topic, startingOffsets=start, endingOffsets=kept).collect()
    rest = reads(topic, startingOffsets=start, endingOffsets=kept, failOnDataLoss="false")
    assert rest.collect() == []


def prune(broker: engine.Engine, topic: str) -> None:
    """As retention does with a sealed segment that is old."""
    service = broker._client.broker.service  # type: ignore[attr-defined]
    assert broker._portal.run(service.prune_segment(topic, 0))
