"""Ranges of a ring against binary search, and what does not tile a ring."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.format.ranges import RangeTable, Routes
from engine.errors import InvalidArgumentError

RING = np.arange(0x10000, dtype=np.uint16)
CUTS = st.lists(st.integers(1, 0xFFFF), unique=True, max_size=100).map(sorted)


@given(CUTS)
def test_lookup_agrees_with_binary_search(cuts: list[int]) -> None:
    starts = [0, *cuts]
    table = RangeTable(starts, [7 * i for i in range(len(starts))])
    expected = 7 * (np.searchsorted(starts, RING, side="right") - 1)
    assert (table.lookup_many(RING) == expected).all()
    for hashed in {0, 0xFFFF, *cuts, *(cut - 1 for cut in cuts)}:
        assert table.lookup(hashed) == expected[hashed]


@pytest.mark.parametrize("cuts", [[], [0xFFFF], [*range(64, 0x10000, 64)], [*range(1, 1024)], [*range(1, 0x10000)]])
def test_extreme_tables(cuts: list[int]) -> None:
    table = RangeTable([0, *cuts], range(len(cuts) + 1))
    assert len(table) == len(cuts) + 1
    assert (table.lookup_many(RING) == np.searchsorted([0, *cuts], RING, side="right") - 1).all()


def test_values_may_be_anything() -> None:
    table = RangeTable([0, 100], ["low", None])
    assert (table.lookup(99), table.lookup(100)) == ("low", None)


@pytest.mark.parametrize("starts", [[], [1], [0, 0], [0, 5, 5], [0, 5, 4], [0, 0x10000], [-1, 5], [0, 70_000]])
def test_what_does_not_tile_the_ring_is_refused(starts: list[int]) -> None:
    with pytest.raises(InvalidArgumentError):
        RangeTable(starts, starts)


def test_values_must_be_as_many_as_ranges() -> None:
    with pytest.raises(InvalidArgumentError, match="2 ranges need as many values, got 1"):
        RangeTable([0, 5], [1])


@given(CUTS, st.data())
def test_routes_agree_with_binary_search(cuts: list[int], data: st.DataObject) -> None:
    starts = [0, *cuts]
    ends = [[*data.draw(st.lists(st.integers(0, 0xFFFE), unique=True, max_size=5).map(sorted)), 0xFFFF] for _ in starts]
    routes = Routes(starts, range(100, 100 + len(starts)), ends)
    assert routes.builders == sum(map(len, ends))
    hashes = data.draw(st.lists(st.integers(0, 2**32 - 1), max_size=50))
    for hashed in hashes + [start << 16 | end for start, own in zip(starts, ends, strict=True) for end in own]:
        segment = bisect_right(starts, hashed >> 16) - 1
        assert routes.find(hashed) == (100 + segment, bisect_left(ends[segment], hashed & 0xFFFF))


@pytest.mark.parametrize(
    ("starts", "ids", "ends"),
    [
        ([], [], []),
        ([0], [1, 2], [[0xFFFF]]),
        ([0], [1], []),
        ([0], [1], [[]]),
        ([0], [1], [[0xFFFE]]),
        ([0], [1], [[5, 5, 0xFFFF]]),
        ([0], [1], [[-1, 0xFFFF]]),
        ([0, 9], [1, 1], [[0xFFFF], [0xFFFF]]),
        ([1], [1], [[0xFFFF]]),
        ([0], [1], [[*range(1024), 0xFFFF]]),
        (list(range(1025)), list(range(1025)), [[0xFFFF]] * 1025),
    ],
)
def test_a_layout_that_is_none_is_refused(starts: list[int], ids: list[int], ends: list[list[int]]) -> None:
    with pytest.raises(InvalidArgumentError):
        Routes(starts, ids, ends)


def test_keyless_entries_take_segments_in_turn_and_buckets_evenly() -> None:
    routes = Routes([0, 0x4000], [3, 8], [[0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF]] * 2)
    turns = [routes.turn_keyless() for _ in range(800)]
    assert [segment for segment, _, _ in turns] == [3, 8] * 400
    for wanted, low, high in ((3, 0, 0x3FFF), (8, 0x4000, 0xFFFF)):
        own = [(bucket, hashed) for segment, bucket, hashed in turns if segment == wanted]
        counts = np.bincount([bucket for bucket, _ in own])
        assert counts.min() >= 98
        assert counts.max() <= 102
        assert all(low <= hashed >> 16 <= high and (hashed & 0xFFFF) >> 14 == bucket for bucket, hashed in own)
