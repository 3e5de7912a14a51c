"""P16: Spark, `local[2]`, reads and writes a topic beside Parquet files; Arrow beside rows; and idle streams.

`python benchmarks/bench_spark.py` prints the table of docs/performance.md, with `read` or `write` a half of it, and
with names (`count`, `messages`, `idle`, `"exactly once"`, …) just these lines. The broker, the JVM and Python's workers
share the machine; Parquet needs the JVM alone.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from processes import server
from support import TINY, sized

import engine

ROWS = int(os.environ.get("ENGINE_BENCH_SPARK_ROWS", sized(5_000_000, 2_000)))
RUNS = 1 if TINY else 3
WARM = 0 if TINY else 2
IDLE_S = 0.5 if TINY else 3.0
CHUNK = 100_000
VALUE_BYTES = 100
KEYS = 10_000

SUMS = {
    "count": ("count(value)", "value BINARY"),
    "value lengths": ("sum(length(value))", "value BINARY"),
    "key and value lengths": ("sum(length(key)), sum(length(value))", "key BINARY, value BINARY"),
    "all columns": ("sum(length(value))", None),
}
COUNTS = {"rows": None, "rows, small": "segment INT"}  # schemas of frames of which Spark needs no column


def columns(start: int, stop: int) -> tuple[pa.Array, pa.Array]:
    """Keys of 8 bytes and values of 100 that nobody can compress."""
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
        self._fill()
        self.parquet = str(Path(self.folder, "rows"))
        rows = self.read("key BINARY, value BINARY")
        rows.write.mode("overwrite").option("compression", "none").parquet(self.parquet)

    def _fill(self) -> None:
        with engine.Client(self.url) as client, client.producer("rows") as producer:
            for start in range(0, ROWS, CHUNK):
                keys, values = columns(start, min(start + CHUNK, ROWS))
                producer.send_batch(values, keys=keys)
            producer.flush()

    def read(self, schema: str | None, kind: str = "engine") -> Any:
        """The topic, as a frame."""
        reader = self.spark.read.format(kind).option("url", self.url).option("topic", "rows")
        return (reader if schema is None else reader.schema(schema)).load()


def start_spark() -> Any:
    """A session on this interpreter; the one there is, if there is one."""
    java = Path(sys.prefix, "java")
    os.environ.update({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
    if java.exists():
        os.environ["JAVA_HOME"] = str(java)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.log.level", "ERROR").config("spark.driver.memory", "2g").getOrCreate()
    spark.createDataFrame([(0,)], "n INT")  # it is the active one in this thread, where Spark looks sinks up
    return spark


@functools.cache
def sample() -> Sample:
    """The one of this process."""
    return Sample()


def seconds(run: Callable[[], object]) -> float:
    """Of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def pairs(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float, float]:
    """(our seconds, theirs, theirs / ours), medians of runs in turn, after two of each that do not count."""
    both = [(seconds(ours), seconds(theirs)) for _ in range(WARM + RUNS)][-RUNS:]
    return (
        statistics.median(a for a, _ in both),
        statistics.median(b for _, b in both),
        statistics.median(b / a for a, b in both),
    )


def read_pair(what: str) -> tuple[float, float, float]:
    """A sum over the topic beside the same over Parquet."""
    here, (sums, schema) = sample(), SUMS[what]
    expressions = sums.split(", ")
    parquet = here.spark.read.parquet(here.parquet)
    return pairs(
        lambda: here.read(schema).selectExpr(*expressions).collect(), lambda: parquet.selectExpr(*expressions).collect()
    )


def count_pair(what: str) -> tuple[float, float, float]:
    """How many rows a frame of the topic has, beside Parquet's count of values: its count of rows reads none."""
    here = sample()
    parquet = here.spark.read.parquet(here.parquet)
    return pairs(lambda: here.read(COUNTS[what]).count(), lambda: parquet.selectExpr("count(value)").collect())


def other_readers() -> list[type[Any]]:
    """The same reader, but it yields rows: a message at a time, or tuples of whole columns; and one that has its Arrow
    batch already and yields it again and again, to tell what Spark takes by itself.
    """
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader
    from pyspark_engine import DefaultSource
    from pyspark_engine.connection import shared_client
    from pyspark_engine.options import ReadOptions
    from pyspark_engine.reader import TopicReader

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
            batches = super().read(partition)
            batch = max(islice(batches, 8), key=len)
            batches.close()
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


OTHERS = ("messages", "columns", "at_hand")


def arrow_pair(other: str) -> tuple[float, float, float]:
    """Arrow beside another reader of the same."""
    here = sample()
    for source in other_readers():
        here.spark.dataSource.register(source)
    schema, sums = "key BINARY, value BINARY", ("sum(length(key))", "sum(length(value))")
    return pairs(
        lambda: here.read(schema).selectExpr(*sums).collect(),
        lambda: here.read(schema, f"engine_{other}").selectExpr(*sums).collect(),
    )


def aligned(frame: Any, topic: str) -> Any:
    """Rows arranged as the topic is."""
    from pyspark_engine import engine_align

    return engine_align(frame, topic, url=sample().url)


WRITES: dict[str, tuple[dict[str, str], bool]] = {
    "exactly once": ({}, False),
    "at least once": ({"exactlyOnce": "false"}, False),
    "aligned, exactly once": ({}, True),
}


def write_pair(what: str) -> tuple[float, float, float]:
    """All rows from Parquet to a new topic, beside the same to Parquet, not compressed, aligned there as well."""
    here, (options, arranged) = sample(), WRITES[what]
    rows = here.spark.read.parquet(here.parquet)

    def to_topic() -> None:
        topic = f"written-{uuid.uuid4().hex}"
        with engine.Client(here.url) as client:
            client.admin.create_topic(topic)
            frame = aligned(rows, topic) if arranged else rows
            frame.write.format("engine").options(url=here.url, topic=topic, **options).mode("append").save()
            client.admin.delete_topic(topic)

    def to_parquet() -> None:
        frame = aligned(rows, "rows") if arranged else rows
        frame.write.mode("overwrite").option("compression", "none").parquet(f"{here.parquet}-again")

    return pairs(to_topic, to_parquet)


def rate_sources() -> list[type[Any]]:
    """Spark's rate source as a Python reader: a row in a second, the offset is how many seconds have passed. Written
    as PySpark 4.3 describes readers, and as before, which Spark asks one question a trigger rather than two.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    class RateAskedOnce(DataSourceStreamReader):
        def __init__(self) -> None:
            self.since = time.time()

        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"offset": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
            return {"offset": int(time.time() - self.since)}

        def partitions(self, start: Any, end: Any) -> list[InputPartition]:
            return [InputPartition((start["offset"], end["offset"]))]

        def read(self, partition: Any) -> Iterator[Any]:
            yield from ((b"%d" % n,) for n in range(*partition.value))

    class Rate(RateAskedOnce):
        def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
            return super().latestOffset()

    def source(kind: str, made: type[DataSourceStreamReader]) -> type[DataSource]:
        class RateSource(DataSource):
            @classmethod
            def name(cls) -> str:
                return kind

            def schema(self) -> str:
                return "value BINARY"

            def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
                return made()

        return RateSource

    return [source("rate_in_python", Rate), source("rate_asked_once", RateAskedOnce)]


def micro_batches(kind: str) -> float:
    """Milliseconds of one without rows, as the query reports them: a mean, as Spark counts whole ones."""
    here = sample()
    for source in rate_sources():
        here.spark.dataSource.register(source)
    here.spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "1ms")
    here.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    reader = here.spark.readStream.format(kind)
    if kind == "engine":
        reader = reader.option("url", here.url).option("topic", "rows")
    writer = reader.load().writeStream.format("noop")
    query = writer.option("checkpointLocation", tempfile.mkdtemp(dir=here.folder)).start()
    try:
        query.awaitTermination(IDLE_S)
        warm = len(query.recentProgress)
        query.awaitTermination(IDLE_S)
        found = query.recentProgress[warm:]
    finally:
        query.stop()
    times = [p["durationMs"].get("triggerExecution", 0) for p in found if not p["numInputRows"]]
    return statistics.fmean(times or [0])


def idle_trio() -> tuple[float, float, float, float, float]:
    """(our milliseconds, the rate source's, those of one asked once; ours / either), medians of runs in turn."""
    kinds = ("engine", "rate_in_python", "rate_asked_once")
    runs = [[micro_batches(kind) for kind in kinds] for _ in range(WARM + RUNS)][-RUNS:]
    ours, theirs, once = (statistics.median(run[i] for run in runs) for i in range(3))
    ratios = [statistics.median(run[0] / run[i] for run in runs) for i in (1, 2)] if theirs and once else [0.0, 0.0]
    return ours, theirs, once, ratios[0], ratios[1]


class ReadTopic:
    """P16, reading: seconds of Parquet / seconds of the topic; ≥ 0.5 is asked for."""

    params: ClassVar = list(SUMS)
    param_names = ("what",)
    unit = "× Parquet"
    timeout = 1200

    def track_read(self, what: str) -> float:
        return read_pair(what)[2]


class CountTopic:
    """P16: rows that are only counted, beside values that Parquet counts; nothing is asked for."""

    params: ClassVar = list(COUNTS)
    param_names = ("what",)
    unit = "× Parquet's count(value)"
    timeout = 1200

    def track_count(self, what: str) -> float:
        return count_pair(what)[2]


class WriteTopic:
    """P16, writing: seconds to Parquet / seconds to a topic; ≥ 0.5 is asked for."""

    params: ClassVar = list(WRITES)
    param_names = ("how",)
    unit = "× Parquet"
    timeout = 1200

    def track_write(self, how: str) -> float:
        return write_pair(how)[2]


class ArrowAndRows:
    """P16: the reader beside itself yielding rows (≥ 3 is asked for), and beside one that has nothing to do."""

    params: ClassVar = list(OTHERS)
    param_names = ("other",)
    unit = "× the other"
    timeout = 1200

    def track_arrow(self, other: str) -> float:
        return arrow_pair(other)[2]


class Idle:
    """P16: a micro-batch without data beside that of Spark's rate source as a Python reader; ≤ 1 is asked for."""

    unit = "× rate source"
    timeout = 1200

    def track_idle(self) -> float:
        return idle_trio()[3]


def show(what: str, ours: float, theirs: float, ratio: float, other: str = "Parquet") -> None:
    """A line of it."""
    rates = f"{ROWS / ours / 1e6:6.2f} M/s  {other:8} {ROWS / theirs / 1e6:6.2f} M/s"
    print(f"{what:30} {rates}  ratio {ratio:.2f}", flush=True)


def show_idle() -> None:
    """Micro-batches without data."""
    ours, theirs, once, ratio, ratio_once = idle_trio()
    rates = f"rate source {theirs:6.2f} ms  ratio {ratio:.2f}   asked once {once:6.2f} ms  ratio {ratio_once:.2f}"
    print(f"{'idle micro-batch':30} {ours:6.2f} ms   {rates}", flush=True)


def lines() -> dict[str, Callable[[], None]]:
    """What prints each line, by its name."""
    reads = {what: functools.partial(lambda what: show(what, *read_pair(what)), what) for what in SUMS}
    counts = {what: functools.partial(lambda what: show(what, *count_pair(what)), what) for what in COUNTS}
    others = {
        other: functools.partial(lambda other: show("Arrow", *arrow_pair(other), other), other) for other in OTHERS
    }
    writes = {what: functools.partial(lambda what: show(f"write, {what}", *write_pair(what)), what) for what in WRITES}
    return {**writes, **reads, **counts, **others, "idle": show_idle}


def main() -> None:
    """The table, or what was asked for."""
    halves = {"write": list(WRITES), "read": [*SUMS, *COUNTS, *OTHERS, "idle"]}
    asked = [name for word in sys.argv[1:] for name in halves.get(word, [word])]
    found = lines()
    for name in asked or found:
        found[name]()


if __name__ == "__main__":
    main()
