"""Streaming queries: micro-batches over a topic that changes its shape, limits, restarts, and what is gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.conftest import Reads

WAIT_S = 240


def fill(broker: engine.Engine, topic: str, values: range, keys: int = 20) -> None:
    """Values n with the key n % keys."""
    with broker.producer(topic) as producer:
        producer.send_batch([b"%d" % n for n in values], keys=[b"k%d" % (n % keys) for n in values])
        producer.flush()


class Rows:
    """What a query has delivered, micro-batch by micro-batch, each in the order of its tasks."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, int]]] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """For foreachBatch."""
        self.batches.append([(row.key, int(row.value)) for row in frame.collect()])

    @property
    def all(self) -> list[tuple[str, int]]:
        return [row for batch in self.batches for row in batch]

    def check(self, values: range) -> None:
        """Each once, and per key in the order of the sends."""
        assert sorted(value for _, value in self.all) == list(values)
        for key in {key for key, _ in self.all}:
            mine = [value for found, value in self.all if found == key]
            assert mine == sorted(mine), key


@pytest.fixture
def run(reads: Reads, tmp_path: Path) -> Callable[..., Rows]:
    """Runs a query to the end of what there is, from where it stands in its checkpoint."""

    def once(topic: str | None, rows: Rows | None = None, **options: object) -> Rows:
        rows = Rows() if rows is None else rows
        frame = reads.stream(topic, "key STRING, value STRING", **{"startingOffsets": "earliest", **options})
        writer = frame.writeStream.foreachBatch(rows).option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.trigger(availableNow=True).start())
        return rows

    return once


def finish(query: StreamingQuery) -> None:
    """Raises what made it fail."""
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()


def test_a_stream_through_split_merge_and_rebucket(broker: engine.Engine, topic: str, run: Callable[..., Rows]):
    """Between micro-batches, and, as the query is away meanwhile, inside of them. Every restart goes on exactly."""
    broker.admin.create_topic(topic, segments=2)
    fill(broker, topic, range(1000))
    rows = run(topic)
    broker.admin.split_segment(topic, 0)
    fill(broker, topic, range(1000, 1500))
    broker.admin.merge_segments(topic, 1, 3)
    fill(broker, topic, range(1500, 2000))
    run(topic, rows, maxOffsetsPerTrigger=300)
    assert len(rows.batches) >= 5
    assert max(map(len, rows.batches[1:])) <= 300
    broker.admin.rebucket_segment(topic, 2, 4)
    fill(broker, topic, range(2000, 2500))
    run(topic, rows)
    rows.check(range(2500))


def test_a_running_query_follows_the_layout(broker: engine.Engine, topic: str, reads: Reads, spark: SparkSession):
    broker.admin.create_topic(topic, segments=1)
    frame = reads.stream(topic, "value STRING")
    query = frame.writeStream.format("memory").queryName(topic).start()
    try:
        query.processAllAvailable()  # it starts at the latest, and stands there now
        fill(broker, topic, range(100))
        query.processAllAvailable()
        broker.admin.split_segment(topic, 0)
        fill(broker, topic, range(100, 200))
        until(query, lambda: spark.table(topic).count() >= 200)
        assert sorted(int(row.value) for row in spark.table(topic).collect()) == list(range(200))
        idle = query.lastProgress["batchId"]
        broker.admin.split_segment(topic, 1)  # a new layout is nothing to read
        prune(broker, topic, 0)
        query.processAllAvailable()
        assert query.lastProgress["batchId"] == idle
    finally:
        query.stop()


@pytest.mark.parametrize("options", [{}, {"maxOffsetsPerTrigger": 40}], ids=["whole", "limited"])
def test_available_now_is_what_there_is_when_it_starts(
    broker: engine.Engine, topic: str, run: Callable[..., Rows], options: dict[str, int], tmp_path: Path
):
    """What comes while it runs is for the next time; with nothing new there is no micro-batch."""

    class MoreComes(Rows):
        def __call__(self, frame: DataFrame, batch_id: int) -> None:
            super().__call__(frame, batch_id)
            if not batch_id:
                fill(broker, topic, range(100, 130))

    broker.admin.create_topic(topic, segments=2)
    fill(broker, topic, range(100))
    rows = run(topic, MoreComes(), **options)
    rows.check(range(100))
    run(topic, rows, **options).check(range(130))
    made = len(list(committed(tmp_path)))
    run(topic, rows, **options)
    assert len(list(committed(tmp_path))) == made


def until(query: StreamingQuery, reached: Callable[[], bool]) -> None:
    """Another round of the query, until it is there."""
    for _ in range(100):
        query.processAllAvailable()
        if reached():
            return
    raise AssertionError(f"the query does not get there: {query.lastProgress}")


def test_too_little_waits(broker: engine.Engine, topic: str, reads: Reads, spark: SparkSession):
    broker.admin.create_topic(topic, segments=1)
    fill(broker, topic, range(5))
    frame = reads.stream(topic, "value STRING", startingOffsets="earliest", minOffsetsPerTrigger=10)
    query = frame.writeStream.format("memory").queryName(topic).start()
    try:
        query.processAllAvailable()
        assert spark.table(topic).count() == 0
        fill(broker, topic, range(5, 12))
        until(query, lambda: spark.table(topic).count() == 12)
    finally:
        query.stop()


def test_topics_of_a_namespace_come_and_go(broker: engine.Engine, topic: str, run: Callable[..., Rows]):
    namespace = f"public/{topic}"
    broker.admin.create_topic(f"{namespace}/a", properties={"color": "blue"})
    broker.admin.create_topic(f"{namespace}/x", properties={"color": "red"})
    fill(broker, f"{namespace}/a", range(10))
    fill(broker, f"{namespace}/x", range(10))
    rows = run(None, namespace=namespace, topicProperties="color=blue")
    broker.admin.create_topic(f"{namespace}/b", properties={"color": "blue"})
    fill(broker, f"{namespace}/b", range(10, 20))
    run(None, rows, namespace=namespace, topicProperties="color=blue")
    broker.admin.delete_topic(f"{namespace}/a")
    fill(broker, f"{namespace}/b", range(20, 30))
    run(None, rows, namespace=namespace, topicProperties="color=blue")
    assert sorted(value for _, value in rows.all) == list(range(30))


def test_retention_after_reading_is_no_loss_and_before_it_is(
    broker: engine.Engine, topic: str, run: Callable[..., Rows], tmp_path: Path
):
    broker.admin.create_topic(topic, segments=1)
    fill(broker, topic, range(100))
    rows = run(topic)
    broker.admin.split_segment(topic, 0)
    fill(broker, topic, range(100, 200))
    run(topic, rows)
    prune(broker, topic, 0)
    fill(broker, topic, range(200, 300))
    run(topic, rows)
    rows.check(range(300))
    fill(broker, topic, range(300, 400))  # these are lost
    broker.admin.split_segment(topic, 1)
    broker.admin.split_segment(topic, 2)
    fill(broker, topic, range(400, 500))
    prune(broker, topic, 1)
    prune(broker, topic, 2)
    with pytest.raises(Exception, match="DataLossError"):
        run(topic, rows)
    run(topic, rows, failOnDataLoss="false")
    assert sorted(value for _, value in rows.all) == [*range(300), *range(400, 500)]
    assert {name for offsets in committed(tmp_path) for name in offsets[f"topic://public/default/{topic}"]} >= {
        "0",
        "6",
    }


def test_a_topic_made_anew_is_another_one(broker: engine.Engine, topic: str, run: Callable[..., Rows]):
    fill(broker, topic, range(100))
    rows = run(topic)
    broker.admin.delete_topic(topic)
    fill(broker, topic, range(100, 250))
    with pytest.raises(Exception, match="an earlier topic of that name"):
        run(topic, rows)
    run(topic, rows, failOnDataLoss="false")
    assert sorted(value for _, value in rows.all) == list(range(250))


def prune(broker: engine.Engine, topic: str, segment: int) -> None:
    """As retention does with a sealed segment that is old."""
    service = broker._client.broker.service  # type: ignore[attr-defined]
    assert broker._portal.run(service.prune_segment(topic, segment))


def committed(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The offsets of each micro-batch, as Spark keeps them."""
    for path in sorted((tmp_path / "checkpoint" / "offsets").iterdir()):
        if path.name.isdecimal():
            yield json.loads(path.read_text().splitlines()[-1])


def test_where_a_stream_stands_is_a_checkpoint(
    broker: engine.Engine, topic: str, run: Callable[..., Rows], tmp_path: Path
):
    """A checkpoint consumer goes on where the query stands."""
    from pyspark_engine.offsets import from_json

    name = f"topic://public/default/{topic}"
    broker.admin.create_topic(topic, segments=2)
    fill(broker, topic, range(100))
    run(topic)
    fill(broker, topic, range(100, 110))
    offsets = from_json(list(committed(tmp_path))[-1])[name]
    with broker.checkpoint_consumer(topic, start=offsets.checkpoint(name)) as consumer:
        values = [consumer.receive(timeout=10).value for _ in range(10)]  # type: ignore[union-attr]
        assert set(map(int, values)) == set(range(100, 110))
