"""Planning without Spark: options, places, tasks, and how far a micro-batch goes."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark_engine import progress
from pyspark_engine.errors import DataLossError
from pyspark_engine.offsets import TopicOffsets, from_json, full_name, read_place, to_json
from pyspark_engine.options import Place, ReadOptions
from pyspark_engine.partitions import CUT_MESSAGES_MIN, Piece, TopicPartition, Wish, plan

import engine

NAME = "topic://public/default/t"


def options(streaming: bool = False, **given: str) -> ReadOptions:
    return ReadOptions.read({"topic": "t", **given}, streaming=streaming)


# -- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": ""}, "topics must be given in one way"),
        ({"namespace": "a/b"}, "got topic, namespace"),
        ({"startingOfsets": "latest"}, "got 'startingOfsets'"),
        ({"minPartitions": "0"}, "minPartitions must be an int of at least 1, got '0'"),
        ({"minPartitions": "many"}, "an int of at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"maxOffsetsPerTrigger": "5"}, "streaming queries only"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(given: dict[str, str], said: str):
    with pytest.raises(ValueError, match=said):
        options(**given)


def test_options_come_in_any_case_and_secrets_are_not_shown():
    read = options(MINPARTITIONS="3", Token="swordfish", keyaligned="true")
    assert read.min_partitions == 3
    assert read.key_aligned
    assert read.connection.token == "swordfish"
    assert "swordfish" not in repr(read)


def test_streaming_has_limits_and_no_end():
    read = options(streaming=True, maxOffsetsPerTrigger="10", minOffsetsPerTrigger="3", maxTriggerDelay="15m")
    assert (read.max_offsets_per_trigger, read.min_offsets_per_trigger, read.max_trigger_delay_s) == (10, 3, 900.0)
    with pytest.raises(ValueError, match="endingOffsets must be given for batch"):
        options(streaming=True, endingOffsets="latest")
    with pytest.raises(ValueError, match="must be at most maxOffsetsPerTrigger"):
        options(streaming=True, maxOffsetsPerTrigger="1", minOffsetsPerTrigger="2")


def test_topics_of_a_namespace():
    read = ReadOptions.read(
        {"namespace": "a/b", "topicProperties": "color=blue, size=2", "subscribePattern": "x.*"}, streaming=False
    )
    assert (read.topics.namespace, read.topics.pattern) == ("a/b", "x.*")
    assert dict(read.topics.properties) == {"color": "blue", "size": "2"}


# -- places -------------------------------------------------------------------------------------------------------


def test_places_in_all_their_forms():
    kept = engine.Checkpoint({0: 5, 1: 7}, epoch=2, topic=NAME, topic_created_ms=99)
    as_offsets = {NAME: TopicOffsets({0: 5, 1: 7}, 2, 99)}
    assert read_place(Place("o", "earliest")).everywhere == engine.Checkpoint.earliest()
    assert read_place(Place("o", kept.to_bytes().hex())).by_topic == as_offsets
    assert read_place(Place("o", json.dumps(to_json(as_offsets)))).by_topic == as_offsets
    assert read_place(Place("o", '{"t": {"0": -2}}')).by_topic[NAME] == TopicOffsets({0: -2})
    when = engine.Checkpoint.at_timestamp(datetime(2026, 1, 2, tzinfo=UTC))
    assert read_place(Place("o", "2026-01-02T00:00:00Z")).everywhere == when
    assert read_place(Place("o", "1767312000000", times=True)).everywhere == when
    assert as_offsets[NAME].checkpoint(NAME) == kept


@pytest.mark.parametrize("text", ["sometime", "{", '{"t": 3}', '{"t": {"zero": 1}}', '{"t": {"0": "1"}}', "2026-01-02"])
def test_other_places_are_refused(text: str):
    with pytest.raises(ValueError, match="startingOffsets must be"):
        read_place(Place("startingOffsets", text))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.integers(0, 2**40), st.integers(0, 2**60), max_size=6),
    st.integers(0, 1000),
    st.one_of(st.none(), st.integers(1, 2**50)),
)
def test_offsets_survive_their_json(positions: dict[int, int], epoch: int, created: int | None):
    offsets = {NAME: TopicOffsets(positions, epoch, created, frozenset(list(positions)[:2]))}
    text = json.dumps(to_json(offsets))
    assert from_json(json.loads(text)) == offsets
    assert json.dumps(json.loads(text)) == text  # Spark compares the text


def test_topics_have_one_full_name():
    assert full_name("t") == full_name("public/default/t") == full_name(NAME) == NAME


# -- tasks --------------------------------------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> list[Piece]:
    """Segments of a random history of splits, each with its part of the ring and some messages."""
    ranges: list[tuple[int, int]] = [(0, 0xFFFF)]
    pieces: list[Piece] = []
    for segment in range(draw(st.integers(1, 12))):
        start, end = ranges[draw(st.integers(0, len(ranges) - 1))]
        first = draw(st.integers(0, 1000))
        count = draw(st.integers(0, 3 * CUT_MESSAGES_MIN))
        parts = max(1, 4 >> draw(st.integers(0, 2)))
        ends = tuple(0x10000 * (i + 1) // parts - 1 for i in range(parts))
        pieces.append(Piece(NAME, segment, first, first + count, start, end, ends))
        if end - start > 4:
            middle = (start + end) // 2
            ranges += [(start, middle), (middle + 1, end)]
    return pieces


def messages(tasks: list[TopicPartition]) -> list[tuple[int, int, int, tuple[int, int] | None]]:
    return [(i, start, stop, w.buckets) for t in tasks for w in t.work for i, (start, stop) in w.ranges.items()]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(layouts(), st.integers(1, 20))
def test_even_tasks_read_everything_once_and_are_as_many_as_asked_for(pieces: list[Piece], least: int):
    tasks = plan(pieces, Wish(least=least), aligned=False)
    total = sum(p.count for p in pieces)
    assert len(tasks) == min(least, total)
    read = sorted(messages(tasks))
    for piece in pieces:
        cuts = [(start, stop) for i, start, stop, _ in read if i == piece.segment]
        assert sum(stop - start for start, stop in cuts) == piece.count
        assert all(a[1] == b[0] for a, b in itertools.pairwise(cuts))
    sizes = [sum(stop - start for w in t.work for start, stop in w.ranges.values()) for t in tasks]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(layouts(), st.integers(1, 20))
def test_aligned_tasks_keep_overlapping_segments_and_buckets_together(pieces: list[Piece], usual: int):
    tasks = plan(pieces, Wish(usual=usual), aligned=True)
    ranges = {p.segment: p for p in pieces}
    owners: dict[tuple[int, int], list[int]] = {}
    for rank, task in enumerate(tasks):
        for work in task.work:
            low, high = work.buckets or (0, 0xFFFF)
            for i in work.ranges:
                for ring in (ranges[i].hash_start, ranges[i].hash_end):
                    for bucket in (0, 0x3FFF, 0x4000, 0x8000, 0xFFFF):
                        if low <= bucket <= high:
                            owners.setdefault((ring, bucket), []).append(rank)
    assert all(len(set(found)) == 1 for found in owners.values()), "a key would be in two tasks"
    whole = [(i, start, stop) for i, start, stop, buckets in messages(tasks) if buckets is None]
    assert len(whole) == len(set(whole))
    for piece in pieces:
        covered = [buckets for i, *_, buckets in messages(tasks) if i == piece.segment]
        if piece.count and None not in covered:
            assert sorted(b for b in covered if b)[0][0] == 0
            assert sorted(b for b in covered if b)[-1][1] == 0xFFFF


def test_small_reads_are_one_task_and_large_ones_are_cut():
    piece = Piece(NAME, 0, 0, 10 * CUT_MESSAGES_MIN)
    assert len(plan([Piece(NAME, 0, 0, 10)], Wish(usual=8), aligned=False)) == 1
    assert len(plan([piece], Wish(usual=8), aligned=False)) == 8
    assert len(plan([piece], Wish(usual=8, most_messages=CUT_MESSAGES_MIN // 2), aligned=False)) == 20
    assert plan([], Wish(least=5), aligned=False) == []


# -- progress -----------------------------------------------------------------------------------------------------


def segment(i: int, end: int, *, parents: tuple[int, ...] = (), active: bool = True, first: int = 0) -> engine.Segment:
    return engine.Segment(i, 0, 0xFFFF, active, parents, (), (0xFFFF,), first, end, not active)


def topic_of(*segments: engine.Segment, epoch: int = 0, created: int = 1) -> dict[str, engine.TopicSegments]:
    found = {s.segment_id: s for s in segments}
    return {NAME: engine.TopicSegments(NAME, epoch, created, "xxh64", found)}


def stands(**positions: int) -> dict[str, TopicOffsets]:
    return {NAME: TopicOffsets({int(i[1:]): p for i, p in positions.items()}, 0, 1)}


SPLIT = topic_of(segment(0, 100, active=False), segment(1, 30, parents=(0,)), segment(2, 40, parents=(0,)), epoch=1)


def test_a_child_waits_until_its_parent_is_read_to_the_end():
    end = progress.advance(stands(s0=20), SPLIT, most=50)
    assert dict(end[NAME].positions) == {0: 70, 1: 0, 2: 0}
    end = progress.advance(end, SPLIT, most=50)
    assert end[NAME].positions[0] == 100
    assert end[NAME].positions[1] + end[NAME].positions[2] == 20
    assert end[NAME].finished == {0}
    end = progress.advance(end, SPLIT)
    assert dict(end[NAME].positions) == {0: 100, 1: 30, 2: 40}
    assert progress.advance(end, SPLIT)[NAME] is end[NAME]


def test_a_sealed_parent_that_a_transaction_holds_back_holds_its_children_back():
    held = engine.Segment(0, 0, 0xFFFF, False, (), (), (0xFFFF,), 0, 90, False)
    facts = topic_of(held, segment(1, 30, parents=(0,)))
    assert dict(progress.advance(stands(s0=20), facts)[NAME].positions) == {0: 90, 1: 0}


def test_a_merge_waits_for_all_parents():
    merged = topic_of(segment(0, 10, active=False), segment(1, 10, active=False), segment(2, 5, parents=(0, 1)))
    end = progress.advance(stands(s0=10, s1=0), merged, most=4)
    assert dict(end[NAME].positions) == {0: 10, 1: 4, 2: 0}


def test_nothing_beyond_the_target():
    target = progress.ends(topic_of(segment(0, 60)))
    end = progress.advance(stands(s0=20), SPLIT, target=target)
    assert dict(end[NAME].positions) == {0: 60, 1: 0, 2: 0}
    assert progress.advance(end, SPLIT, target=target) == end


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(1, 200), st.lists(st.integers(0, 100), min_size=3, max_size=3))
def test_limits_are_kept_and_everything_is_reached(most: int, sizes: list[int]):
    facts = topic_of(
        segment(0, sizes[0], active=False), segment(1, sizes[1], parents=(0,)), segment(2, sizes[2], parents=(0,))
    )
    at, seen = stands(s0=0), 0
    while (count := progress.available(at, end := progress.advance(at, facts, most=most))) > 0:
        assert count <= most
        at, seen = end, seen + count
    assert seen == sum(sizes)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (topic_of(segment(0, 100, first=50)), "deleted messages 20 to 49 of segment 0"),
        (topic_of(segment(1, 30, parents=(0,))), "deleted segment 0"),
        (topic_of(segment(0, 100), created=2), "an earlier topic of that name"),
    ],
)
def test_loss_is_told_or_accepted(facts: dict[str, engine.TopicSegments], said: str):
    with pytest.raises(DataLossError, match=said):
        progress.begin(stands(s0=20), facts, fail_on_data_loss=True)
    begun = progress.begin(stands(s0=20), facts, fail_on_data_loss=False)
    assert progress.available(begun, progress.advance(begun, facts)) > 0


def test_what_was_finished_is_not_lost_when_retention_takes_it():
    done = {NAME: TopicOffsets({0: 100, 1: 5}, 1, 1, frozenset((0,)))}
    facts = topic_of(segment(1, 30, parents=(0,)))
    assert progress.begin(done, facts, fail_on_data_loss=True) == done
