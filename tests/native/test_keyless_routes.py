"""Keyless messages of many producers, each of few messages, spread over the segments."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from engine._native.produce.batcher import Batcher

STARTS = [0, 0x4000, 0x8000, 0xC000]
BUCKETS = [[0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF]] * 4


def routes(name: str, count: int, *, steady: bool, first: int = 0) -> list[tuple[int, int]]:
    """The (segment, bucket) of each of a producer's messages, which are sent one by one."""
    batcher = Batcher(name.encode(), first_sequence=first, steady=steady)
    batcher.set_layout(STARTS, [0, 1, 2, 3], BUCKETS)
    for _ in range(count):
        batcher.add(b"v", None)
        batcher.seal_all()
    return [(entry.segment_id, entry.bucket) for entry in batcher.take()]


@pytest.mark.parametrize(("producers", "count", "steady"), [(40, 5, True), (30, 1, False)])
def test_producers_of_few_messages_spread_over_segments_and_buckets(producers: int, count: int, steady: bool) -> None:
    found = [route for i in range(producers) for route in routes(f"producer-{i}", count, steady=steady)]
    segments = Counter(segment for segment, _ in found)
    assert len(segments) == 4
    assert max(segments.values()) <= 2 * producers * count / 4
    assert len(Counter(bucket for _, bucket in found)) == 4


def test_a_named_producer_that_resumes_sends_a_message_where_it_was_sent_before() -> None:
    before = routes("orders-7", 3000, steady=True)
    assert routes("orders-7", 1500, steady=True, first=1500) == before[1500:]
    assert len({segment for segment, _ in before}) == 4


def test_an_unnamed_producer_takes_the_segments_in_turn() -> None:
    segments = [segment for segment, _ in routes("x", 400, steady=False)]
    assert Counter(segments) == {0: 100, 1: 100, 2: 100, 3: 100}
    assert len(set(itertools.pairwise(segments))) == 4
