"""A real cluster in small: a task that hangs is run a second time elsewhere, and what it wrote is never read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

import engine

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
ROWS = 80_000
WAIT_S = 120
POLL_S = 0.1  # of log files

# The first run of the first task of each job hangs behind its rows. Spark runs it a second time on another machine.
PROGRAM = """
import sys, time
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import SparkSession

master, url = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
builder = builder.config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1")
builder = builder.config("spark.speculation", "true").config("spark.speculation.interval", "100ms")
builder = builder.config("spark.speculation.quantile", "0.5").config("spark.speculation.multiplier", "1.1")
spark = builder.getOrCreate()

def hang(batches):
    import pyarrow
    context = TaskContext.get()
    for batch in batches:
        values = pc.binary_join_element_wise(batch.column("value"), str(context.attemptNumber()), "#")
        yield pyarrow.RecordBatch.from_arrays([batch.column("key"), values], ["key", "value"])
    while context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(1)

schema = "key STRING, value STRING"
rows = spark.range(0, 80000, numPartitions=2).selectExpr("CAST(id % 20 AS STRING) key", "CAST(id AS STRING) value")
rows.mapInArrow(hang, schema).write.format("engine").options(url=url, topic="batch").mode("append").save()
reader = spark.readStream.format("engine").options(url=url, topic="batch", startingOffsets="earliest", minPartitions=2)
writer = reader.schema(schema).load().mapInArrow(hang, schema).writeStream.format("engine")
writer = writer.options(url=url, topic="stream", checkpointLocation="checkpoint").trigger(availableNow=True)
writer.start().awaitTermination()
"""


class Cluster:
    """Spark's own: a master, and workers with addresses of their own, as on two machines."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder, self._environment = folder, {**os.environ, **environment}
        self._environment.pop("SPARK_LOCAL_IP", None)
        self.stack = ExitStack()

    def start(self) -> str:
        """The master's URL."""
        log = self._run("master", "deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = found_in(log, r"Starting Spark master at (spark://\S+)")
        for host in ("127.0.0.2", "127.0.0.3"):
            size = ("-c", "1", "-m", "1g", "--webui-port", "0", "-d", str(self._folder / host))
            log = self._run(host, "deploy.worker.Worker", "--host", host, *size, master)
            found_in(log, r"(Successfully registered) with master")
        return master

    def _run(self, name: str, what: str, *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        call = [str(SPARK_CLASS), f"org.apache.spark.{what}", *arguments]
        with log.open("wb") as out:
            process = subprocess.Popen(call, env=self._environment, stdout=out, stderr=out)
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        return log


def found_in(log: Path, pattern: str) -> str:
    """What a process says of itself, once it does."""
    deadline = time.monotonic() + WAIT_S
    while not (match := re.search(pattern, log.read_text())):
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(POLL_S)
    return match[1]


@pytest.fixture
def cluster(tmp_path: Path, spark_environment: dict[str, str]) -> Iterator[str]:
    """Its master."""
    made = Cluster(tmp_path, spark_environment)
    with made.stack:
        yield made.start()


def visible_and_all(broker: engine.Engine, topic: str) -> tuple[list[bytes], int]:
    """The values that may be read, and how many messages were written, whether they count or not."""
    with broker.topic_view(topic) as view:
        ranges = {i: (s.first, s.end) for i, s in view.segments(exact=True).segments.items()}
    with broker.range_reader(topic, ranges) as reader:
        return [message.value for message in reader], sum(end - first for first, end in ranges.values())


@pytest.mark.fuzz
def test_what_a_hanging_task_has_written_is_never_read(
    cluster: str, broker: engine.Engine, tmp_path: Path, spark_environment: dict[str, str]
):
    """In a batch, and in a stream of what the batch has written."""
    (tmp_path / "program.py").write_text(PROGRAM)
    call = [sys.executable, "program.py", cluster, broker.service_url]
    environment = {**os.environ, **spark_environment}
    done = subprocess.run(
        call, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    batch, written = visible_and_all(broker, "batch")
    assert sorted(int(value.split(b"#")[0]) for value in batch) == list(range(ROWS))
    assert {value.split(b"#")[1] for value in batch} == {b"0", b"1"}
    assert written > ROWS
    stream, written = visible_and_all(broker, "stream")
    assert sorted(int(value.split(b"#")[0]) for value in stream) == list(range(ROWS))
    assert {value.split(b"#")[2] for value in stream} == {b"0", b"1"}
    assert written > ROWS
