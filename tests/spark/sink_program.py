"""A streaming query from topic to topic that is killed where a file says so, and writes down what it does.

usage: python -m tests.spark.sink_program URL SOURCE TARGET

In the folder SINK_FOLDER are the checkpoint, `evidence` and `strikes`. A strike is a file STEP.VICTIM that holds how
often the step is to be passed before: then `driver` kills the JVM, this program and the process that took the step,
`worker` that one alone.

Every value gets a mark of the run of the task that writes it, so that nobody needs to believe the sink in what counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark_engine import DefaultSource
from pyspark_engine.attempts import micro_batch_name
from pyspark_engine.writer import TopicStreamWriter

FOLDER = Path(os.environ["SINK_FOLDER"])  # Spark's Python processes inherit it


def strike(step: str) -> None:
    """Kill who is to be killed at this step."""
    for victim in ("driver", "worker"):
        path = FOLDER / "strikes" / f"{step}.{victim}"
        if path.exists() and _due(path):
            if victim == "driver":
                for pid in json.loads((FOLDER / "pids").read_text()):
                    os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


def _due(path: Path) -> bool:
    """Whether it is this time; then never again."""
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        left = int(file.read())
        file.seek(0)
        file.write(str(left - 1))
        file.truncate()
    return left == 0


def note(**facts: Any) -> None:
    """Write it down."""
    with (FOLDER / "evidence").open("a") as file:
        file.write(json.dumps(facts) + "\n")


class Watched(TopicStreamWriter):
    """The sink itself, between strikes."""

    def write(self, iterator: Iterator[Any]) -> Any:
        mark = uuid.uuid4().hex
        strike("before-write")
        written = super().write(self._marked(iterator, mark))
        note(what="written", mark=mark, attempt=written.attempt)
        strike("behind-write")
        return written

    def _marked(self, batches: Iterator[pa.RecordBatch], mark: str) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = pc.binary_join_element_wise(batch.column("value"), mark, "#")
            keys = batch.column("key")
            facts = {"keys": keys.to_pylist(), "values": values.to_pylist()}
            note(what="send", mark=mark, transaction=micro_batch_name(None), **facts)
            yield pa.RecordBatch.from_arrays([keys, values], ["key", "value"])
            strike("during-write")

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        accepted = [m.attempt for m in messages if m.transaction is not None]
        note(what="commit", batch=batchId, accepted=accepted)
        strike("before-commit")
        super().commit(messages, batchId)
        note(what="committed", batch=batchId)
        strike("behind-commit")


class WatchedSource(DefaultSource):
    """`format("watched")`."""

    @classmethod
    def name(cls) -> str:
        return "watched"

    def streamWriter(self, schema: Any, overwrite: bool) -> Watched:  # noqa: N802 - Spark's name
        return Watched(self._write_options(schema), schema)


def main() -> None:
    """To the end of what there is."""
    url, source, target = sys.argv[1:]
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.codegen.wholeStage", "false")
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "50").config("spark.log.level", "ERROR")
    spark = builder.getOrCreate()
    java = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    (FOLDER / "pids").write_text(json.dumps([java, os.getpid()]))
    spark.dataSource.register(WatchedSource)
    reader = spark.readStream.format("engine").option("url", url).option("topic", source)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 400).option("minPartitions", 2)
    frame = reader.schema("key STRING, value STRING").load()
    writer = frame.writeStream.format("watched").option("url", url).option("topic", target)
    writer = writer.option("checkpointLocation", str(FOLDER / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
