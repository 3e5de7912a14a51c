"""Writing: columns to messages, by topic, of every type that is allowed; and what is refused before a job runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Reads, Writes

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
WAIT_S = 240
POLL_S = 0.05  # of processes that hear nothing of each other


def messages(broker: engine.Engine, topic: str) -> list[engine.Message]:
    """All that may be read."""
    with broker.topic_view(topic) as view:
        segments = view.segments(exact=True).segments
    ranges = {i: (s.first, s.end) for i, s in segments.items()}
    with broker.range_reader(topic, ranges) as reader:
        return list(reader)


def values(broker: engine.Engine, topic: str) -> list[int]:
    """The same, numbers in order."""
    return sorted(int(m.value) for m in messages(broker, topic))


def numbers(spark: SparkSession, count: int, start: int = 0) -> DataFrame:
    """Rows with n as the value."""
    return spark.range(start, start + count, numPartitions=2).selectExpr(
        "CAST(id % 20 AS STRING) key", "CAST(id AS STRING) value"
    )


def test_every_column(broker: engine.Engine, topic: str, spark: SparkSession, writes: Writes):
    rows = [("a", "1", AT, {"color": "blue", "size": "2"}), (None, "2", None, None), ("c", "", AT, {})]
    frame = spark.createDataFrame(
        rows, "key STRING, value STRING, event_time TIMESTAMP, properties MAP<STRING, STRING>"
    )
    writes(frame, topic)
    writes(frame.selectExpr("CAST(key AS BINARY)", "CAST(value AS BINARY)"), topic)
    found = messages(broker, topic)
    ms = int(AT.timestamp() * 1000)
    assert sorted(
        (m.key or b"", m.value, m.event_time_ms or 0, tuple(sorted(m.properties.items()))) for m in found
    ) == [
        (b"", b"2", 0, ()),
        (b"", b"2", 0, ()),
        (b"a", b"1", 0, ()),
        (b"a", b"1", ms, (("color", "blue"), ("size", "2"))),
        (b"c", b"", 0, ()),
        (b"c", b"", ms, ()),
    ]
    assert [m.key for m in found].count(None) == 2


def test_a_topic_for_each_row_in_order(broker: engine.Engine, topic: str, spark: SparkSession, writes: Writes):
    frame = spark.range(0, 3000, numPartitions=1).selectExpr(
        f"concat('{topic}-', id % 3) topic", "'k' key", "CAST(id AS STRING) value"
    )
    writes(frame)
    for i in range(3):
        found = [int(m.value) for m in messages(broker, f"{topic}-{i}")]
        assert found == list(range(i, 3000, 3))


def test_what_was_read_is_written_elsewhere(
    broker: engine.Engine, topic: str, spark: SparkSession, reads: Reads, writes: Writes
):
    writes(numbers(spark, 100), topic)
    writes(reads(topic), f"{topic}-copy")
    assert values(broker, f"{topic}-copy") == list(range(100))


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("1 AS value", {"topic": "t"}, "the column value must be BINARY or STRING, got INT"),
        ("'a' AS key", {"topic": "t"}, "the rows must have a column value, got key"),
        ("'a' AS value, 'b' AS wert", {"topic": "t"}, "got 'wert'"),
        ("'a' AS value, 'b' AS event_time", {"topic": "t"}, "the column event_time must be TIMESTAMP, got STRING"),
        (
            "'a' AS value, map('a', 1) AS properties",
            {"topic": "t"},
            "the column properties must be MAP<STRING,STRING>, got MAP<STRING,INT>",
        ),
        ("'a' AS value", {}, "a topic must be given, as the option topic or as a column topic"),
        ("'a' AS value", {"topic": "t", "tpoic": "u"}, "got 'tpoic'"),
        ("'a' AS value", {"topic": "t", "transactionTimeout": "10ms"}, "must be from 1s to 24h"),
        (
            "'a' AS value",
            {"topic": "t", "exactlyOnce": "false", "transactionName": "n"},
            "exactlyOnce must be true with transactionName",
        ),
    ],
)
def test_what_is_refused_before_the_job(
    spark: SparkSession, writes: Writes, columns: str, options: dict[str, object], said: str
):
    with pytest.raises(Exception, match="Error") as raised:
        writes(spark.sql(f"SELECT {columns}"), **options)
    assert said in str(raised.value)


def test_overwriting_is_refused(
    spark: SparkSession, broker: engine.Engine, topic: str, reads: Reads, writes: Writes, tmp_path: Path
):
    writer = numbers(spark, 1).write.format("engine").option("url", broker.service_url).option("topic", topic)
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        writer.mode("overwrite").save()
    writes(numbers(spark, 1), topic)
    counts = reads.stream(topic, "value STRING", startingOffsets="earliest").groupBy("value").count()
    complete = writes.stream(counts.selectExpr("value"), f"{topic}-counts").outputMode("complete")
    with pytest.raises(Exception, match="would write everything again"):
        complete.option("checkpointLocation", str(tmp_path)).start().awaitTermination(WAIT_S)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("CAST(NULL AS STRING) value, 't' topic", "column value is null"),
        ("'a' value, CAST(NULL AS STRING) topic", "topic is null"),
    ],
)
def test_nulls_that_no_message_can_have(spark: SparkSession, writes: Writes, column: str, said: str):
    with pytest.raises(Exception, match=said):
        writes(spark.sql(f"SELECT {column}"))


def fails_when_written(url: str, topic: str, transaction: str | None) -> Any:
    """The last task fails when something of the job has been written; its rows are passed on before."""

    def is_written(client: engine.Client) -> bool:
        if transaction is None:
            with client.topic_view(topic) as view:
                return any(s.end for s in view.segments().segments.values())
        (own,) = [t for t in client.admin.list_transactions() if t["name"] == transaction] or [None]
        return own is not None and bool(client.admin.get_transaction(own["id"])["operations"])

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if "39999" in batch.column("value").to_pylist():
                with engine.Client(url) as client:
                    while not is_written(client):
                        time.sleep(POLL_S)
                raise RuntimeError("this task fails")

    return run


@pytest.mark.parametrize("once", [True, False])
def test_a_batch_that_fails(broker: engine.Engine, topic: str, spark: SparkSession, writes: Writes, once: bool):
    """Nothing of it is ever there; but with exactlyOnce=false what was written until then."""
    broker.admin.create_topic(topic)
    frame, name = numbers(spark, 40_000), topic if once else None
    failing = frame.mapInArrow(fails_when_written(broker.service_url, topic, name), frame.schema)
    options = {"transactionName": name, "transactionTimeout": "20s"} if once else {"exactlyOnce": "false"}
    with pytest.raises(Exception, match="this task fails"):
        writes(failing, topic, **options)
    # Spark aborts it. A task that has not heard of that yet may begin it anew, and then nobody but its timeout ends it.
    while name is not None and name in [found["name"] for found in broker.admin.list_transactions()]:
        time.sleep(POLL_S)
    assert bool(messages(broker, topic)) is not once


def fails_when_begun(url: str) -> Any:
    """The task fails when the transaction of its micro-batch is open, with most of its rows passed on before."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark_engine.attempts import micro_batch_name

        rows, name = 0, micro_batch_name(None)
        for batch in batches:
            yield batch
            rows += batch.num_rows
            if rows >= 30_000:
                with engine.Client(url) as client:
                    while name not in [found["name"] for found in client.admin.list_transactions()]:
                        time.sleep(POLL_S)
                raise RuntimeError("this task fails")

    return run


def test_a_micro_batch_that_fails(broker: engine.Engine, topic: str, reads: Reads, writes: Writes, tmp_path: Path):
    """It is given up at once, though no task could tell the driver of its transaction."""
    with broker.producer(topic) as producer:
        producer.send_batch([b"%d" % n for n in range(40_000)])
        producer.flush()
    frame = reads.stream(topic, "value STRING", startingOffsets="earliest", minPartitions=1)
    failing = frame.mapInArrow(fails_when_begun(broker.service_url), frame.schema)
    writer = writes.stream(failing, f"{topic}-copy", transactionTimeout="24h")
    query = writer.option("checkpointLocation", str(tmp_path / "a checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="this task fails"):
        query.awaitTermination(WAIT_S)
    assert not [t for t in broker.admin.list_transactions() if (t["name"] or "").startswith(f"spark-{query.id}")]
    assert not messages(broker, f"{topic}-copy")


def test_a_named_batch_is_written_once(broker: engine.Engine, topic: str, spark: SparkSession, writes: Writes):
    writes(numbers(spark, 100), topic, transactionName=f"{topic}-monday")
    writes(numbers(spark, 100), topic, transactionName=f"{topic}-monday")
    writes(numbers(spark, 100, start=100), topic, transactionName=f"{topic}-tuesday")
    assert values(broker, topic) == list(range(200))


def test_rows_where_spark_gives_no_arrow(spark: SparkSession):
    """Early versions hand rows to the tasks of streams."""
    from pyspark.sql import Row
    from pyspark.sql.types import StructType
    from pyspark_engine.schema import arrow_schema
    from pyspark_engine.writing import record_batches

    schema = StructType.fromDDL("key BINARY, value STRING, event_time TIMESTAMP, properties MAP<STRING, STRING>")
    local = AT.astimezone().replace(tzinfo=None)
    rows = [Row(bytearray(b"k"), "v", local, {"a": "b"}), Row(None, "w", None, None)]
    (batch,) = record_batches(iter(rows), schema)
    assert batch.schema == arrow_schema(schema)
    assert batch.to_pylist() == [
        {"key": b"k", "value": "v", "event_time": AT, "properties": [("a", "b")]},
        {"key": None, "value": "w", "event_time": None, "properties": None},
    ]


def test_from_topic_to_topic_exactly_once(
    broker: engine.Engine, topic: str, spark: SparkSession, reads: Reads, writes: Writes, tmp_path: Path
):
    """A stream; its restart goes on; and a micro-batch that Spark has forgotten to be done is not written again."""
    broker.admin.create_topic(topic, segments=2)
    for start in (0, 500):
        writes(numbers(spark, 500, start), topic)
        copy(reads, writes, topic, tmp_path)
    assert values(broker, f"{topic}-copy") == list(range(1000))
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    copy(reads, writes, topic, tmp_path)
    assert values(broker, f"{topic}-copy") == list(range(1000))


def copy(reads: Reads, writes: Writes, topic: str, tmp_path: Path) -> None:
    """All there is, from where the query stands."""
    frame = reads.stream(topic, "key BINARY, value BINARY", startingOffsets="earliest")
    writer = writes.stream(frame, f"{topic}-copy").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
