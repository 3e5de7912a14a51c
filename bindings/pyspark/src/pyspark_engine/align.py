"""`engine_align`: rows arranged as a topic is, each task with the keys of one segment, or of some of its buckets.

Spark's xxhash64 of a key is the hash that the topic goes by, so that Spark alone finds out which task a row belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

import engine
from pyspark_engine.connection import connect
from pyspark_engine.options import CONNECTION_OPTIONS, Connection, Texts

# A task for each, in the order of the ring: where a stretch of segment hashes ends, and where in it each stretch of
# bucket hashes ends. All ends are inclusive; the last is 65535.
Cells = list[tuple[int, list[int]]]

_MASK = 0xFFFFFFFF


def engine_align(
    df: DataFrame, topic: str, *, partitions: int | None = None, key: str = "key", value: str = "value", **options: str
) -> DataFrame:
    """The same rows, so that each task has those of one segment of the topic as it is now: one shuffle, no Python.

    `partitions`: so many tasks at most, more than one for a segment that has buckets, or several segments for one
    task; by default one for each active segment. `key`, `value`: the names of the columns; rows without a key, which
    may be anywhere, go by the value. `options`: url, token and tls… as in `format("engine")`.

    Raises ValueError; engine.NotFoundError where there is no such topic.
    """
    connection = Connection.read(Texts(options, CONNECTION_OPTIONS))
    with connect(connection) as client, client.topic_view(topic) as view:
        found = view.segments()
    if found.key_hash != "xxh64":
        raise ValueError(
            f"the topic must have the key hash xxh64, which Spark has too, got {found.key_hash} of {topic}"
        )
    if partitions is not None and partitions < 1:
        raise ValueError(f"partitions must be an int of at least 1, got {partitions}")
    cells = plan_cells([s for s in found.segments.values() if s.active], partitions)
    source = f.col(key).cast("binary")
    if key != value and value in df.columns:
        source = f.coalesce(source, f.col(value).cast("binary"))
    return _send_to(df, sum(len(buckets) for _, buckets in cells), f.xxhash64(source), cells)


def plan_cells(segments: Sequence[engine.Segment], partitions: int | None) -> Cells:
    ring = sorted(segments, key=lambda s: s.hash_start)
    wanted = partitions or len(ring)
    if wanted <= len(ring):
        cuts = [ring[len(ring) * (i + 1) // wanted - 1] for i in range(wanted)]
        return [(s.hash_end, [0xFFFF]) for s in cuts]
    shares = [wanted * (i + 1) // len(ring) - wanted * i // len(ring) for i in range(len(ring))]
    return [(s.hash_end, _spread(s.bucket_ends, share)) for s, share in zip(ring, shares, strict=True)]


def _spread(ends: Sequence[int], share: int) -> list[int]:
    """So many of these ends, evenly chosen, the last among them."""
    share = min(share, len(ends))
    return [ends[len(ends) * (i + 1) // share - 1] for i in range(share)]


def _send_to(df: DataFrame, tasks: int, hashed: Column, cells: Cells) -> DataFrame:
    """Each row to the task of its hash, exactly."""
    by_id = hasattr(DataFrame, "repartitionById")  # from 4.1 on
    marks = iter(range(tasks)) if by_id else iter(marks_of(tasks))
    segment, bucket = f.shiftrightunsigned(hashed, 48), f.shiftrightunsigned(hashed, 32).bitwiseAND(f.lit(0xFFFF))
    leaves = [(end, _choose(bucket, [(at, f.lit(next(marks))) for at in buckets])) for end, buckets in cells]
    task = _choose(segment, leaves)
    return df.repartitionById(tasks, task) if by_id else df.repartition(tasks, task)


def _choose(number: Column, ends: Sequence[tuple[int, Column]]) -> Column:
    """The column of the first end that the number does not exceed; by halves."""
    if len(ends) == 1:
        return ends[0][1]
    middle = len(ends) // 2
    low = number <= f.lit(ends[middle - 1][0])
    return f.when(low, _choose(number, ends[:middle])).otherwise(_choose(number, ends[middle:]))


def marks_of(tasks: int) -> list[int]:
    """For each task the smallest number whose hash, by which repartition() goes, leads there."""
    found: dict[int, int] = {}
    for number in count():
        found.setdefault(spark_hash(number) % tasks, number)
        if len(found) == tasks:
            return [found[task] for task in range(tasks)]
    raise AssertionError


def spark_hash(number: int) -> int:
    """Spark's hash of an INT: Murmur3 of its four bytes with the seed 42, signed."""
    mixed = _rotate(number * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    hashed = (_rotate(42 ^ mixed, 13) * 5 + 0xE6546B64 & _MASK) ^ 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        hashed = (hashed ^ hashed >> shift) * factor & _MASK
    return hashed - (hashed >> 31 << 32)


def _rotate(number: int, by: int) -> int:
    return (number << by | number >> (32 - by)) & _MASK


__all__ = ["Cells", "engine_align", "marks_of", "plan_cells", "spark_hash"]
