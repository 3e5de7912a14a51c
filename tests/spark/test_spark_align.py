"""Rows arranged as a topic is: exactly, in one shuffle, without Python."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_engine import engine_align
from pyspark_engine.align import marks_of, plan_cells, spark_hash

import engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Reads, Writes


def segment(number: int, start: int, end: int, buckets: tuple[int, ...] = (0xFFFF,)) -> engine.Segment:
    """An active one."""
    return engine.Segment(number, start, end, True, (), (), buckets, 0, 0, False)


@given(
    cuts=st.sets(st.integers(0, 0xFFFE), max_size=8),
    buckets=st.integers(1, 4),
    partitions=st.none() | st.integers(1, 40),
)
def test_cells_tile_the_ring(cuts: set[int], buckets: int, partitions: int | None):
    ends = [*sorted(cuts), 0xFFFF]
    share = tuple((0x10000 * (i + 1) // buckets) - 1 for i in range(buckets))
    segments = [segment(i, start + 1, end, share) for i, (start, end) in enumerate(pairwise([-1, *ends]))]
    cells = plan_cells(segments, partitions)
    assert [end for end, _ in cells] == sorted({end for end, _ in cells})
    assert {end for end, _ in cells} <= set(ends)
    assert cells[-1][0] == 0xFFFF
    assert all(inner[-1] == 0xFFFF and inner == sorted(set(inner)) and set(inner) <= set(share) for _, inner in cells)
    tasks = sum(len(inner) for _, inner in cells)
    wanted = partitions or len(segments)
    assert tasks == min(wanted, len(segments) * buckets) or wanted > len(segments)
    assert tasks <= wanted


def test_the_hash_of_spark(spark: SparkSession):
    numbers = [0, 1, 2, 41, 42, 1000, 2**31 - 1]
    (row,) = spark.sql("SELECT " + ", ".join(f"hash({n})" for n in numbers)).collect()
    assert list(row) == [spark_hash(n) for n in numbers]
    assert [spark_hash(mark) % 13 for mark in marks_of(13)] == list(range(13))


def tasks(frame: DataFrame) -> dict[int, set[str]]:
    """The keys, or values where there is none, of each task."""
    found = defaultdict(set)
    for row in frame.selectExpr("spark_partition_id() task", "coalesce(key, value) what").distinct().collect():
        found[row.task].add(row.what)
    return found


def plan(frame: DataFrame) -> str:
    """What Spark would do, without the part of a writer."""
    return frame._jdf.queryExecution().executedPlan().toString()  # type: ignore[attr-defined]


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(2000).selectExpr(
        "CASE WHEN id % 10 = 0 THEN NULL ELSE concat('schlüssel-', id % 300) END key", "CAST(id AS STRING) value"
    )


@pytest.mark.parametrize("by_id", [True, False], ids=["repartitionById", "repartition"])
def test_a_task_holds_a_segment(
    broker: engine.Engine, topic: str, rows: DataFrame, by_id: bool, monkeypatch: pytest.MonkeyPatch
):
    from pyspark.sql import DataFrame as AnyFrame

    if not by_id:
        monkeypatch.delattr(AnyFrame, "repartitionById")
    broker.admin.create_topic(topic, segments=3)
    aligned = engine_align(rows, topic, url=broker.service_url)
    assert aligned.columns == ["key", "value"]
    with broker.topic_view(topic) as view:
        facts = view.segments()
    found = tasks(aligned)
    assert sorted(found) == [0, 1, 2]
    for task, keys in found.items():
        assert {facts.holding(key)[0] for key in keys} == {task}  # in the order of the ring, as they were made
    text = plan(aligned)
    assert text.count("Exchange") == 1, text
    assert not any(word in text for word in ("Python", "Arrow", "UDF"))


def test_buckets_make_more_tasks_and_few_tasks_have_several_segments(
    broker: engine.Engine, topic: str, rows: DataFrame
):
    broker.admin.create_topic(topic, segments=2, entry_buckets=8)
    url = broker.service_url
    assert len(tasks(engine_align(rows, topic, partitions=6, url=url))) == 6
    assert len(tasks(engine_align(rows, topic, partitions=100, url=url))) == 8
    assert len(tasks(engine_align(rows, topic, partitions=1, url=url))) == 1


def test_aligned_tasks_write_to_their_segments_and_keep_the_order(
    broker: engine.Engine, topic: str, spark: SparkSession, reads: Reads, writes: Writes
):
    """What is aligned is written as everything else; the columns' names may be others until then."""
    broker.admin.create_topic(topic, segments=2)
    frame = spark.range(0, 1000, numPartitions=1).selectExpr("CAST(id % 7 AS STRING) k", "CAST(id AS STRING) v")
    aligned = engine_align(frame, topic, key="k", value="v", url=broker.service_url)
    writes(aligned.selectExpr("k key", "v value"), topic)
    found = reads(topic, "key STRING, value STRING, segment INT", keyAligned="true").collect()
    assert sorted(int(row.value) for row in found) == list(range(1000))
    for key in {row.key for row in found}:
        mine = [int(row.value) for row in found if row.key == key]
        assert mine == sorted(mine)
        assert len({row.segment for row in found if row.key == key}) == 1


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"partitions": 0}, ValueError, "an int of at least 1"),
        ({"ulr": "x"}, ValueError, "got 'ulr'"),
    ],
)
def test_what_alignment_refuses(
    broker: engine.Engine, topic: str, rows: DataFrame, options: dict[str, Any], error: type[Exception], said: str
):
    broker.admin.create_topic(topic, segments=1)
    with pytest.raises(error, match=said):
        engine_align(rows, topic, **{"url": broker.service_url, **options})


def test_only_topics_that_go_by_xxh64_and_are_there(broker: engine.Engine, topic: str, rows: DataFrame):
    with pytest.raises(engine.NotFoundError):
        engine_align(rows, topic, url=broker.service_url)
    broker.admin.create_topic(topic, segments=1, key_hash="murmur3")
    with pytest.raises(ValueError, match="got murmur3"):
        engine_align(rows, topic, url=broker.service_url)
