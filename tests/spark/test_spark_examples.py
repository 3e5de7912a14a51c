"""What the package is for: flights from topic to topic, a topic beside a table, and folds that need no shuffle."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark_engine import engine_align

import engine
from engine.cli.flights import Flights, load

if TYPE_CHECKING:
    from conftest import Reads, Writes
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

FLIGHTS = 20_000
WAIT_S = 240


@pytest.fixture(scope="module")
def flights() -> Flights:
    """The first of 2013; every aircraft is known."""
    found = load()
    return Flights(
        found.keys[:FLIGHTS], found.values[:FLIGHTS], found.carriers[:FLIGHTS], found.delays[:FLIGHTS], found.names
    )


def finish(query: StreamingQuery) -> None:
    """Raises what made it fail."""
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()


def per_day(frame: DataFrame) -> DataFrame:
    """How many flights, and the number of the last one, by aircraft and day."""
    fields = "split(value, ',')"
    day = f"to_timestamp(concat_ws('-', {fields}[1], {fields}[2], {fields}[3]), 'yyyy-M-d')"
    rows = frame.selectExpr("key", f"{day} AS day", f"CAST({fields}[0] AS INT) AS number").where("key IS NOT NULL")
    return rows.groupBy("key", "day").agg({"*": "count", "number": "max"}).toDF("key", "day", "count", "last")


def test_flights_are_counted_from_topic_to_topic_while_the_topic_splits(
    broker: engine.Engine, topic: str, flights: Flights, reads: Reads, writes: Writes, tmp_path: Path
):
    """Counts by aircraft and day, told again whenever they have grown: the last word on each is the total, and no word
    is taken back, since what is told of an aircraft comes in order.
    """
    days = f"{topic}-days"
    broker.admin.create_topic(topic, segments=1)
    broker.admin.create_topic(days, segments=1)
    frame = per_day(reads.stream(topic, "key STRING, value STRING", startingOffsets="earliest"))
    told = frame.selectExpr("key", "to_json(struct(day, count, last)) AS value", "day AS event_time")
    for part in range(3):
        first, count = part * FLIGHTS // 3, FLIGHTS // 3
        with broker.producer(topic) as producer:
            producer.send_batch(flights.values.slice(first, count), flights.keys.slice(first, count))
        query = (
            writes.stream(told, days).outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        finish(query.trigger(availableNow=True).start())
        for changing in (topic, days) if part < 2 else ():
            broker.admin.split_segment(changing, 2 * part)
    check_days(flights, reads(days, "key STRING, value STRING", keyAligned="true"))


def check_days(flights: Flights, found: DataFrame) -> None:
    """Against the flights themselves."""
    expected: Counter[tuple[str, str]] = Counter()
    for key, value in zip(flights.keys.to_pylist()[: FLIGHTS // 3 * 3], flights.values.to_pylist(), strict=False):
        if key is not None:
            _, year, month, day, *_ = value.decode().split(",")
            expected[key, f"{year}-{int(month):02}-{int(day):02}"] += 1
    last: dict[tuple[str, str], int] = defaultdict(int)
    for row in found.collect():
        word = json.loads(row.value)
        name = (row.key, word["day"][:10])
        assert word["count"] > last[name], "what is told of one aircraft comes in order"
        last[name] = word["count"]
    assert last == expected


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


def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The longest row of values that rise, of each key: it depends on their order."""
    runs: dict[bytes, tuple[int, int, int]] = {}  # the last value, how long the row is, the longest
    for batch in batches:
        for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True):
            last, length, longest = runs.get(key, (-1, 0, 0))
            length = length + 1 if int(value) > last else 1
            runs[key] = (int(value), length, max(length, longest))
    keys, rows = list(runs), list(runs.values())
    yield pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), pa.array([r[2] for r in rows])], ["key", "longest"])


def test_a_fold_of_every_key_needs_no_shuffle(
    broker: engine.Engine, topic: str, spark: SparkSession, reads: Reads, writes: Writes
):
    """Two topics of one shape: what is aligned is written, and read as it lies; each key is folded where it is."""
    broker.admin.create_topic(topic, segments=4)
    rows = spark.range(0, 5000, numPartitions=1).selectExpr("concat('k', id % 50) key", "CAST(id AS STRING) value")
    writes(engine_align(rows, topic, url=broker.service_url), topic)
    frame = reads(topic, "key STRING, value STRING", keyAligned="true", minPartitions=4)
    folded = frame.mapInArrow(fold, "key STRING, longest BIGINT")
    plan: Any = folded._jdf.queryExecution().executedPlan().toString()  # type: ignore[attr-defined]
    assert "Exchange" not in plan
    assert folded.rdd.getNumPartitions() == 4
    found = [(row.key, row.longest) for row in folded.collect()]
    assert sorted(found) == sorted((f"k{n}", 100) for n in range(50))  # each key in one task, in order
