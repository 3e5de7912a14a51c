"""P16: Spark, `local[2]`, reads and writes a topic beside Parquet files; Arrow beside rows; and idle streams.

`python benchmarks/bench_spark.py` prints the table of docs/performance.md, with `read` or `write` a half of it, and
with names (`count`, `messages`, `idle`, `"exactly once"`, …) just these lines. The broker, the JVM and Python's workers
share the machine; Parquet needs the JVM alone. ENGINE_BENCH_ROUNDS is how often each side is measured (5), behind two
rounds that do not count (behind one, where it is 3 at most), and
ENGINE_BENCH_SPARK_CONF is JSON of settings for the session.
"""

from __future__ import annotations

import functools
import itertools
import random
import statistics
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from spark_sample import ROWS, sample
from support import ROUNDS, TINY

import engine

T = TypeVar("T")

WARM = 0 if TINY else 2 if ROUNDS > 3 else 1
IDLE_S = 0.5 if TINY else 2.0
IDLE_BATCHES_MIN = 4  # of which the first half is left out: it takes two to measure one
NOT_CONNECTED = "Python worker failed to connect back"

SUMS = {
    "count": ("count(value)", "value BINARY"),
    "value lengths": ("sum(length(value))", "value BINARY"),
    "key and value lengths": ("sum(length(key)), sum(length(value))", "key BINARY, value BINARY"),
    "all columns": ("sum(length(value))", None),
}
IDLE = ("idle_topic", "idle_rate", "idle_rate_asked_once")
COUNTS = {"rows": None, "rows, small": "segment INT"}  # schemas of frames of which Spark needs no column


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def in_turn(*runs: T, measure: Callable[[T], float] = seconds, count: int = ROUNDS) -> list[list[float]]:
    """The measures of each run, round by round, after WARM rounds that do not count. Each round has another order,
    since the order matters.
    """
    rng, rounds = random.Random(1), []
    for _ in range(WARM + count):
        found = {i: measure(runs[i]) for i in rng.sample(range(len(runs)), len(runs))}
        rounds.append([found[i] for i in range(len(runs))])
    return rounds[-count:]


def medians(rounds: list[list[float]]) -> list[float]:
    """Of each over the rounds."""
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def pairs(ours: Callable[[], object], theirs: Callable[[], object], count: int = ROUNDS) -> tuple[float, float, float]:
    """(our seconds, theirs, theirs / ours), medians of runs in turn."""
    rounds = in_turn(ours, theirs, count=count)
    mine, other = medians(rounds)
    return mine, other, statistics.median(b / a for a, b in rounds)


def read_rounds(what: str, count: int = ROUNDS) -> list[list[float]]:
    """Seconds of a sum over the topic, over Parquet, and over a batch at hand. The frames are made before: neither
    files nor offsets are looked up again, all rows are read each time.
    """
    here, (sums, schema) = sample(), SUMS[what]
    frames = [here.read(schema), here.spark.read.parquet(here.parquet), here.read(schema, "engine_at_hand")]
    return in_turn(*(functools.partial(collect, frame, sums) for frame in frames), count=count)


def collect(frame: Any, sums: str) -> list[Any]:
    """The sums of a frame; Spark plans them anew."""
    rows: list[Any] = frame.selectExpr(*sums.split(", ")).collect()
    return rows


def fresh_pair() -> tuple[float, float, float]:
    """A count with all that comes before it: what is there is looked up within the time, on either side."""
    here, (sums, schema) = sample(), SUMS["count"]
    return pairs(lambda: collect(here.read(schema), sums), lambda: collect(here.spark.read.parquet(here.parquet), sums))


def fixed_pair() -> tuple[float, float, float]:
    """(seconds of a query over an empty topic with a frame that is there, and with its load(), ratio)."""
    here, (sums, schema) = sample(), SUMS["count"]
    frame = here.read(schema, topic="empty")
    return pairs(lambda: collect(frame, sums), lambda: collect(here.read(schema, topic="empty"), sums))


def count_pair(what: str) -> tuple[float, float, float]:
    """How many rows a frame of the topic has, beside Parquet's count of values: its count of rows reads none."""
    here = sample()
    frame, parquet = here.read(COUNTS[what]), here.spark.read.parquet(here.parquet)
    return pairs(frame.count, lambda: collect(parquet, "count(value)"))


OTHERS = ("messages", "columns")


def arrow_pair(other: str, count: int = ROUNDS) -> tuple[float, float, float]:
    """Arrow beside another reader of the same."""
    here, (sums, schema) = sample(), SUMS["key and value lengths"]
    ours, theirs = here.read(schema), here.read(schema, f"engine_{other}")
    return pairs(lambda: collect(ours, sums), lambda: collect(theirs, sums), count)


def aligned(frame: Any, topic: str) -> Any:
    """Rows arranged as the topic is."""
    from pyspark_engine import engine_align

    return engine_align(frame, topic, url=sample().url)


WRITES: dict[str, tuple[dict[str, str], bool]] = {
    "exactly once": ({}, False),
    "at least once": ({"exactlyOnce": "false"}, False),
    "aligned, exactly once": ({}, True),
}


def write_pair(what: str, count: int = ROUNDS) -> tuple[float, float, float]:
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

    return pairs(to_topic, to_parquet, count)


def micro_batch(kind: str) -> float:
    """Milliseconds from one to the next, none of them with rows, when Spark does not rest between them: the median."""
    here, asked = sample(), tempfile.mktemp(dir=sample().folder)
    here.spark.conf.set("spark.sql.streaming.pollingDelay", "0ms")
    reader = here.spark.readStream.format(kind).option("asked", asked)
    if kind == "idle_topic":
        reader = reader.option("url", here.url).option("topic", "rows")
    writer = reader.load().writeStream.format("noop")
    query = _begun(writer.option("checkpointLocation", tempfile.mkdtemp(dir=here.folder)), asked)
    try:
        query.awaitTermination(2 * IDLE_S)
        while len(_moments(asked)) < IDLE_BATCHES_MIN:  # beside others it may take longer
            query.awaitTermination(0.1)
    finally:
        query.stop()
    times = _moments(asked)
    times = times[len(times) // 2 :]
    return 1000 * statistics.median(after - before for before, after in itertools.pairwise(times))


def _begun(writer: Any, asked: str) -> Any:
    """The query, once its source was asked. The first one of all takes some seconds to begin."""
    from pyspark.errors import StreamingQueryException

    query = writer.start()
    while not _moments(asked):
        try:
            query.awaitTermination(0.1)
        except StreamingQueryException as e:  # Spark gives the source's process ten seconds to connect
            if NOT_CONNECTED not in str(e):
                raise
            query = writer.start()
    return query


def _moments(path: str) -> list[float]:
    """When a source was asked, so far."""
    written = Path(path).read_bytes() if Path(path).exists() else b""
    return [moment for (moment,) in struct.iter_unpack("d", written[: len(written) // 8 * 8])]


def idle_trio(count: int = ROUNDS) -> tuple[float, float, float, float, float]:
    """(our milliseconds, the rate source's, those of one asked once; ours / either), medians of rounds."""
    rounds = in_turn(*IDLE, measure=micro_batch, count=count)
    ours, theirs, once = medians(rounds)
    return ours, theirs, once, *(statistics.median(times[0] / times[i] for times in rounds) for i in (1, 2))


Figures = dict[str, dict[str, float]]


class Measured:
    """The ratios of all classes, each by its parameter: in one process, since they need a session, topics and files."""

    def setup_cache(self) -> Figures:
        reads = {what: [parquet / ours for ours, parquet, _ in read_rounds(what)] for what in SUMS}
        return {
            "read": {what: statistics.median(ratios) for what, ratios in reads.items()},
            "count": {what: count_pair(what)[2] for what in COUNTS},
            "write": {how: write_pair(how)[2] for how in WRITES},
            "arrow": {other: arrow_pair(other, 1)[2] for other in OTHERS},  # most of a minute each time
            "idle": {"rate": idle_trio()[3]},
        }

    setup_cache.timeout = 1800  # type: ignore[attr-defined]


class ReadTopic(Measured):
    """P16, reading: seconds of Parquet / seconds of the topic; ≥ 0.5 is asked for."""

    params: ClassVar = list(SUMS)
    param_names = ("what",)
    unit = "× Parquet"

    def track_read(self, figures: Figures, what: str) -> float:
        return figures["read"][what]


class CountTopic(Measured):
    """P16: rows that are only counted, beside values that Parquet counts; nothing is asked for."""

    params: ClassVar = list(COUNTS)
    param_names = ("what",)
    unit = "× Parquet's count(value)"

    def track_count(self, figures: Figures, what: str) -> float:
        return figures["count"][what]


class WriteTopic(Measured):
    """P16, writing: seconds to Parquet / seconds to a topic; ≥ 0.5 is asked for."""

    params: ClassVar = list(WRITES)
    param_names = ("how",)
    unit = "× Parquet"

    def track_write(self, figures: Figures, how: str) -> float:
        return figures["write"][how]


class ArrowAndRows(Measured):
    """P16: the reader beside itself yielding rows; ≥ 3 is asked for."""

    params: ClassVar = list(OTHERS)
    param_names = ("other",)
    unit = "× the other"

    def track_arrow(self, figures: Figures, other: str) -> float:
        return figures["arrow"][other]


class Idle(Measured):
    """P16: a micro-batch without data beside that of Spark's rate source as a Python reader; ≤ 1 is asked for."""

    unit = "× rate source"

    def track_idle(self, figures: Figures) -> float:
        return figures["idle"]["rate"]


def show(what: str, ours: float, theirs: float, ratio: float, other: str = "Parquet") -> None:
    rates = f"{ROWS / ours / 1e6:6.2f} M/s  {other:8} {ROWS / theirs / 1e6:6.2f} M/s"
    print(f"{what:30} {rates}  ratio {ratio:.2f}", flush=True)


def show_read(what: str) -> None:
    """A line of a read: rates, and ratios of the same rounds."""
    rounds = read_rounds(what)
    ours, parquet, hand = (f"{ROWS / s / 1e6:6.2f} M/s" for s in medians(rounds))
    of_parquet, hands, of_hand = (statistics.median(r[a] / r[b] for r in rounds) for a, b in ((1, 0), (1, 2), (2, 0)))
    print(
        f"{what:30} {ours}  Parquet {parquet}  ratio {of_parquet:.2f}   "
        f"at hand {hand}, {hands:.2f} of Parquet; the topic {of_hand:.2f} of it",
        flush=True,
    )


def show_fixed() -> None:
    """What a query costs before its first row."""
    frame, load, _ = fixed_pair()
    print(f"{'empty topic':30} {frame:6.3f} s, with load() {load:6.3f} s", flush=True)


def show_idle() -> None:
    ours, theirs, once, ratio, ratio_once = idle_trio()
    rates = f"rate source {theirs:6.2f} ms  ratio {ratio:.2f}   asked once {once:6.2f} ms  ratio {ratio_once:.2f}"
    print(f"{'idle micro-batch':30} {ours:6.2f} ms   {rates}", flush=True)


def lines() -> dict[str, Callable[[], None]]:
    """What prints each line, by its name."""
    reads = {what: functools.partial(show_read, what) for what in SUMS}
    counts = {what: functools.partial(lambda what: show(what, *count_pair(what)), what) for what in COUNTS}
    others = {
        other: functools.partial(lambda other: show("Arrow", *arrow_pair(other), other), other) for other in OTHERS
    }
    writes = {what: functools.partial(lambda what: show(f"write, {what}", *write_pair(what)), what) for what in WRITES}
    fresh = {"fresh": lambda: show("count, frames made anew", *fresh_pair()), "fixed": show_fixed}
    return {**writes, **reads, **fresh, **counts, **others, "idle": show_idle}


def main() -> None:
    """The table, or what was asked for."""
    halves = {"write": list(WRITES), "read": [*SUMS, "fresh", "fixed", *COUNTS, *OTHERS, "idle"]}
    asked = [name for word in sys.argv[1:] for name in halves.get(word, [word])]
    found = lines()
    for name in asked or found:
        found[name]()


if __name__ == "__main__":
    main()
