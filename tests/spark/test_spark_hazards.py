"""What happens while something is read: transactions stay open and end, the layout changes, workers are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import engine
from tests.spark.spark_queries import started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Reads

KEYS = [b"k%d" % n for n in range(10)]
OPEN_S = 600.0  # transactions stay open while Spark takes its time


class Sender:
    """Sends a message of every key, with rising values, inside of transactions or not."""

    def __init__(self, producer: engine.Producer) -> None:
        self._producer = producer
        self._next = 0

    def __call__(self, transaction: engine.Transaction | None = None) -> list[int]:
        begun, self._next = self._next, self._next + len(KEYS)
        values = [b"%d" % n for n in range(begun, self._next)]
        self._producer.send_batch(values, keys=KEYS, transaction=transaction)
        self._producer.flush()
        return list(range(begun, self._next))


@pytest.fixture
def send(broker: engine.Engine, topic: str) -> Iterator[Sender]:
    """To a topic of one segment."""
    broker.admin.create_topic(topic, segments=1)
    with broker.producer(topic) as producer:
        yield Sender(producer)


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.select("value").collect())


def test_a_batch_is_what_was_committed(broker: engine.Engine, topic: str, reads: Reads, send: Sender):
    """What an open transaction holds back comes in later queries, what is aborted in none."""
    seen = send()
    kept, dropped = broker.transaction(timeout=OPEN_S), broker.transaction(timeout=OPEN_S)
    undecided = send(kept)
    send(dropped)
    behind = send()
    snapshot = reads(topic)
    assert values(snapshot) == seen
    broker.admin.split_segment(topic, 0)
    child = send()
    assert values(reads(topic)) == [*seen, *child]
    kept.commit()
    dropped.abort()
    assert values(snapshot) == seen
    assert values(reads(topic)) == [*seen, *undecided, *behind, *child]
    assert values(reads(topic, minPartitions=3)) == [*seen, *undecided, *behind, *child]


class Order:
    """The rows of a stream, in the order of its micro-batches and tasks."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """For foreachBatch."""
        self.rows += [(row.key, int(row.value)) for row in frame.collect()]

    def check(self, expected: list[int]) -> None:
        """Each once, and every key's in order."""
        assert sorted(value for _, value in self.rows) == expected
        for key in {key for key, _ in self.rows}:
            mine = [value for found, value in self.rows if found == key]
            assert mine == sorted(mine)


def test_a_stream_waits_for_what_is_undecided_and_loses_none(
    broker: engine.Engine, topic: str, reads: Reads, send: Sender, tmp_path: Path
):
    """Children come after all of their parents; what was acknowledged before processAllAvailable() is there then."""
    found = Order()
    frame = reads.stream(topic, "key STRING, value STRING", startingOffsets="earliest")
    writer = frame.writeStream.foreachBatch(found).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = started(writer.start)
    try:
        seen = send()
        kept, dropped = broker.transaction(timeout=OPEN_S), broker.transaction(timeout=OPEN_S)
        rest = [*send(kept), *send()]
        send(dropped)
        query.processAllAvailable()
        found.check(seen)
        broker.admin.split_segment(topic, 0)
        rest += send()
        query.processAllAvailable()
        found.check(seen)
        kept.commit()
        query.processAllAvailable()
        assert len(found.rows) == 3 * len(KEYS)
        dropped.abort()
        until = time.monotonic() + 60
        while len(found.rows) < len(seen) + len(rest) and time.monotonic() < until:
            query.processAllAvailable()  # the segments' owners hear of the end a moment later
        found.check([*seen, *rest])
        broker.admin.merge_segments(topic, 1, 2)
        more = send()
        query.processAllAvailable()
        found.check([*seen, *rest, *more])
    finally:
        query.stop()


def test_a_planned_read_outlives_the_layout(broker: engine.Engine, topic: str, reads: Reads, send: Sender):
    """Tasks were planned for a segment that is split, and split again, before they run."""
    sent = send()
    frame = reads(topic, minPartitions=2)
    assert frame.rdd.getNumPartitions() == 2
    broker.admin.split_segment(topic, 0)
    broker.admin.split_segment(topic, 1)
    send()
    assert values(frame) == sent


def dying_source() -> type[Any]:
    """The real one, but the first attempt of every task is killed when it has delivered something.

    Workers get it as it is here: they cannot import this module.
    """
    from pyspark_engine import DefaultSource
    from pyspark_engine.options import ReadOptions
    from pyspark_engine.reader import TopicReader

    class DyingReader(TopicReader):
        def read(self, partition: Any) -> Iterator[Any]:
            from pyspark import TaskContext

            context = TaskContext.get()
            for batch in super().read(partition):
                yield batch.slice(0, 1)
                if context is not None and context.attemptNumber() == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch.slice(1)

    class DyingSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def reader(self, schema: Any) -> DyingReader:
            return DyingReader(ReadOptions.read(self._options, streaming=False), schema)

    return DyingSource


def test_a_killed_worker_is_replaced_and_nothing_comes_twice(
    broker: engine.Engine, topic: str, send: Sender, spark: SparkSession
):
    sent = [value for _ in range(5) for value in send()]
    spark.dataSource.register(dying_source())
    reader = spark.read.format("dying").option("url", broker.service_url).option("topic", topic)
    assert values(reader.option("minPartitions", 2).load()) == sent
