"""What the package is for: flights from topic to topic, a topic beside a table, and folds that need no shuffle."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.functions import collect_list, window
from pyspark_engine import engine_align

import engine
from engine.cli.flights import Flights, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.conftest import Reads, Writes

FLIGHTS = 20_000
WAIT_S = 240


@pytest.fixture(scope="module")
def flights() -> Flights:
    """The first of 2013; every aircraft is known."""
    found = load()
    return Flights(
        found.keys[:FLIGHTS], found.values[:FLIGHTS], found.carriers[:FLIGHTS], found.delays[:FLIGHTS], found.names
    )


@pytest.fixture
def keeps_order(spark: SparkSession) -> Iterator[None]:
    """With more groups than this Spark sorts what collect_list is to collect, and not by when it came."""
    name = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
    spark.conf.set(name, FLIGHTS)
    yield
    spark.conf.unset(name)


def finish(query: StreamingQuery) -> None:
    """Raises what made it fail."""
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()


def per_day(frame: DataFrame) -> DataFrame:
    """The numbers of the flights of an aircraft on a day, in the order in which they came, once the day is over."""
    day = "to_timestamp(concat_ws('-', fields[1], fields[2], fields[3]), 'yyyy-M-d') AS day"
    rows = frame.where("key IS NOT NULL").selectExpr("key", "split(value, ',') AS fields")
    rows = rows.selectExpr("key", day, "CAST(fields[0] AS INT) AS number").withWatermark("day", "1 day")
    days = rows.groupBy("key", window("day", "1 day")).agg(collect_list("number").alias("numbers"))
    return days.selectExpr(
        "key", "to_json(struct(window.start AS day, numbers)) AS value", "window.start AS event_time"
    )


def test_flights_by_day_from_topic_to_topic_while_both_split(
    broker: engine.Engine, topic: str, flights: Flights, reads: Reads, writes: Writes, tmp_path: Path, keeps_order: None
):
    """Each day of each aircraft is told once, with its flights in order, whatever shape the topics take meanwhile."""
    days = f"{topic}-days"
    broker.admin.create_topic(topic, segments=1)
    broker.admin.create_topic(days, segments=1)
    frame = per_day(reads.stream(topic, "key STRING, value STRING", startingOffsets="earliest"))
    query = writes.stream(frame, days).option("checkpointLocation", str(tmp_path / "checkpoint"))
    for part in range(2):
        with broker.producer(topic) as producer:
            first, count = part * FLIGHTS // 2, FLIGHTS // 2
            producer.send_batch(flights.values.slice(first, count), flights.keys.slice(first, count))
            if part:
                producer.send(b"0,2014,1,1", key="the last one")  # so that every day before is over
        finish(query.trigger(availableNow=True).start())
        broker.admin.split_segment(topic, 2 * part)
        broker.admin.split_segment(days, 2 * part)
    expected: dict[tuple[str, str], list[int]] = defaultdict(list)
    for key, value in zip(flights.keys.to_pylist(), flights.values.to_pylist(), strict=True):
        if key is not None:
            number, year, month, day, *_ = value.decode().split(",")
            expected[key, f"{year}-{int(month):02}-{int(day):02}"].append(int(number))
    words = [(row.key, json.loads(row.value)) for row in reads(days, "key STRING, value STRING").collect()]
    assert len(words) == len(expected)
    assert {(key, word["day"][:10]): word["numbers"] for key, word in words} == expected


def test_a_topic_beside_a_table(
    broker: engine.Engine, topic: str, flights: Flights, spark: SparkSession, reads: Reads, tmp_path: Path
):
    """Flights with the names of their airlines, which are in Parquet files."""
    with broker.producer(topic) as producer:
        producer.send_batch(flights.values, flights.carriers)
    table = spark.createDataFrame(list(flights.names.items()), "carrier STRING, airline STRING")
    table.write.parquet(str(tmp_path / "airlines"))
    airlines = spark.read.parquet(str(tmp_path / "airlines"))
    frame = reads(topic, "key STRING")
    joined = frame.join(airlines, frame.key == airlines.carrier)
    found = {row.airline: row["count"] for row in joined.groupBy("airline").count().collect()}
    expected = Counter(flights.names[carrier] for carrier in flights.carriers.to_pylist())
    assert found == expected


def longest_rise() -> Any:
    """For mapInArrow: the longest row of values that rise, of each key. It depends on their order."""

    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        runs: dict[str, tuple[int, int, int]] = {}  # the last value, how long the row is, the longest
        for batch in batches:
            for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
                last, length, longest = runs.get(key, (-1, 0, 0))
                length = length + 1 if int(value) > last else 1
                runs[key] = (int(value), length, max(length, longest))
        columns = [pa.array(list(runs), pa.string()), pa.array([run[2] for run in runs.values()], pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, ["key", "longest"])

    return fold


def test_a_fold_of_every_key_needs_no_shuffle(
    broker: engine.Engine, topic: str, spark: SparkSession, reads: Reads, writes: Writes
):
    """Two topics of one shape: what is aligned is written, and read as it lies; each key is folded where it is."""
    broker.admin.create_topic(topic, segments=4)
    rows = spark.range(0, 5000, numPartitions=1).selectExpr("concat('k', id % 50) key", "CAST(id AS STRING) value")
    writes(engine_align(rows, topic, url=broker.service_url), topic)
    frame = reads(topic, "key STRING, value STRING", keyAligned="true", minPartitions=4)
    folded = frame.mapInArrow(longest_rise(), "key STRING, longest BIGINT")
    plan: Any = folded._jdf.queryExecution().executedPlan().toString()  # type: ignore[attr-defined]
    assert "Exchange" not in plan
    assert folded.rdd.getNumPartitions() == 4
    found = [(row.key, row.longest) for row in folded.collect()]
    assert sorted(found) == sorted((f"k{n}", 100) for n in range(50))  # each key in one task, in order
