"""What bench_spark.py measures with: Spark, a broker with a topic, Parquet files of the same rows, other sources."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from processes import server
from support import sized

import engine

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

ROWS = int(os.environ.get("ENGINE_BENCH_SPARK_ROWS", sized(5_000_000, 2_000)))
CONF: dict[str, str] = json.loads(os.environ.get("ENGINE_BENCH_SPARK_CONF", "{}"))
CHUNK = 100_000
VALUE_BYTES = 100
KEYS = 10_000


def columns(start: int, stop: int) -> tuple[pa.Array, pa.Array]:
    """Keys of 8 bytes and incompressible values of 100 bytes."""
    count = stop - start
    values = np.random.default_rng(start).bytes(VALUE_BYTES * count)
    ends = pa.py_buffer(np.arange(0, VALUE_BYTES * (count + 1), VALUE_BYTES, dtype=np.int32))
    keys = pa.array([b"k%07d" % (n % KEYS) for n in range(start, stop)], pa.binary())
    return keys, pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(values)])


class Sample:
    """Spark, a broker with a topic, and Parquet files of the same rows, once for the process."""

    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()
        atexit.register(self.stack.close)
        self.folder = tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("ENGINE_BENCH_DIR"))
        self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.url = self.stack.enter_context(server()).url
        self.spark = start_spark()
        for source in (*other_readers(), *idle_sources()):
            self.spark.dataSource.register(source)
        self._fill()
        self.parquet = str(Path(self.folder, "rows"))
        rows = self.read("key BINARY, value BINARY")
        rows.write.mode("overwrite").option("compression", "none").parquet(self.parquet)

    def _fill(self) -> None:
        with engine.Client(self.url) as client, client.producer("rows") as producer:
            client.admin.create_topic("empty")
            for start in range(0, ROWS, CHUNK):
                keys, values = columns(start, min(start + CHUNK, ROWS))
                producer.send_batch(values, keys=keys)
            producer.flush()

    def read(self, schema: str | None, kind: str = "engine", topic: str = "rows") -> Any:
        """The topic, as a frame."""
        reader = self.spark.read.format(kind).option("url", self.url).option("topic", topic)
        return (reader if schema is None else reader.schema(schema)).load()


def start_spark() -> Any:
    """A session on this interpreter; the one there is, if there is one."""
    java = Path(sys.prefix, "java")
    os.environ.update({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    if java.exists():
        os.environ["JAVA_HOME"] = str(java)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.driver.memory", "2g")
    spark = builder.config("spark.ui.showConsoleProgress", "false").config(map=CONF).getOrCreate()
    spark.createDataFrame([(0,)], "n INT")  # it is the active one in this thread, where Spark looks sinks up
    return spark


@functools.cache
def sample() -> Sample:
    """The one of this process."""
    return Sample()


def other_readers() -> list[type[DataSource]]:
    """The same reader, but it yields rows: a message at a time, or tuples of whole columns; and one that has its Arrow
    batch at hand and yields it again and again, to measure what Spark takes by itself.
    """
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader
    from pyspark_engine import DefaultSource
    from pyspark_engine.connection import shared_client
    from pyspark_engine.options import ReadOptions
    from pyspark_engine.partitions import TopicPartition, Work
    from pyspark_engine.reader import TopicReader
    from pyspark_engine.reading import BATCH_MESSAGES

    class ByMessages(TopicReader):
        def read(self, partition: Any) -> Iterator[Any]:
            names, client = self._schema.fieldNames(), shared_client(self._options.connection)
            for work in partition.work:
                with client.range_reader(work.topic, work.ranges) as reader:
                    for message in reader:
                        yield tuple([getattr(message, name) for name in names])

    class ByColumns(TopicReader):
        def read(self, partition: Any) -> Iterator[Any]:
            for batch in super().read(partition):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    class AtHand(TopicReader):
        def read(self, partition: Any) -> Iterator[Any]:
            left = sum(stop - start for work in partition.work for start, stop in work.ranges.values())
            work = partition.work[0]
            segment, (start, stop) = next(iter(work.ranges.items()))
            one = Work(work.topic, {segment: (start, min(stop, start + BATCH_MESSAGES))})
            (batch,) = super().read(TopicPartition([one]))
            while left > 0:
                batch = batch.slice(0, left)
                left -= len(batch)
                yield pa.RecordBatch.from_arrays(batch.columns, schema=batch.schema)

    def source(kind: str, made: type[TopicReader]) -> type[DataSource]:
        class Source(DefaultSource):
            @classmethod
            def name(cls) -> str:
                return f"engine_{kind}"

            def reader(self, schema: Any) -> DataSourceReader:
                return made(ReadOptions.read(self._options, streaming=False), schema)

        return Source

    return [source("messages", ByMessages), source("columns", ByColumns), source("at_hand", AtHand)]


def idle_sources() -> list[type[DataSource]]:
    """Readers of streams that write down when they are asked, where the option `asked` says. Nothing of this module
    travels to Python's workers, so all is made within functions.
    """

    class Noted:
        def __init__(self, path: str) -> None:
            self.path = path
            self.file: Any = None  # a reader is not called at its end in time

        def note(self) -> None:
            if self.file is None:
                self.file = open(self.path, "ab", buffering=0)  # noqa: SIM115
            self.file.write(struct.pack("d", time.monotonic()))

    return [_idle_topic(Noted), *_idle_rates(Noted)]


def _idle_topic(noted: Any) -> type[DataSource]:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark_engine import DefaultSource
    from pyspark_engine.options import ReadOptions
    from pyspark_engine.streaming import TopicStreamReader

    class Topic(TopicStreamReader):
        def __init__(self, asked: str, options: ReadOptions, schema: Any) -> None:
            super().__init__(options, schema)
            self.noted = noted(asked)

        def latestOffset(self, start: Any, limit: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
            self.noted.note()
            return super().latestOffset(start, limit)

    class IdleTopic(DefaultSource):
        def __init__(self, options: Any) -> None:
            super().__init__(options)
            self.asked = self._options.pop("asked")

        @classmethod
        def name(cls) -> str:
            return "idle_topic"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return Topic(self.asked, ReadOptions.read(self._options, streaming=True), schema)

    return IdleTopic


def _idle_rates(noted: Any) -> list[type[DataSource]]:
    """Spark's rate source: a row in a second, the offset is how many seconds have passed. As PySpark 4.3 describes
    readers, and as before, which Spark asks one question a trigger rather than two.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class RateAskedOnce(DataSourceStreamReader):
        def __init__(self, asked: str) -> None:
            self.noted = noted(asked)
            self.since = time.time()

        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"offset": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
            self.noted.note()
            return {"offset": int(time.time() - self.since)}

        def partitions(self, start: Any, end: Any) -> list[InputPartition]:
            return [InputPartition((start["offset"], end["offset"]))]

        def read(self, partition: Any) -> Iterator[Any]:
            yield from ((b"%d" % n,) for n in range(*partition.value))

    class Rate(RateAskedOnce):
        def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
            return super().latestOffset()

    def source(kind: str, made: type[RateAskedOnce]) -> type[DataSource]:
        class RateSource(DataSource):
            @classmethod
            def name(cls) -> str:
                return kind

            def schema(self) -> str:
                return "value BINARY"

            def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
                return made(self.options["asked"])

        return RateSource

    return [source("idle_rate", Rate), source("idle_rate_asked_once", RateAskedOnce)]
