"""Sets of offsets and the ranges that stand for them, against plain Python sets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from engine._native.format.offsets import offset_set, pack, range_set, runs
from engine.errors import InvalidArgumentError

END = 1 << 40
OFFSETS = st.integers(0, 300) | st.integers(END - 200, END - 1)
PAIRS = st.lists(st.tuples(OFFSETS, st.integers(0, 70)).map(lambda p: [p[0], min(p[0] + p[1], END - 1)]), max_size=60)


@given(PAIRS)
def test_ranges_may_touch_and_overlap(pairs: list[list[int]]):
    wanted = {o for first, last in pairs for o in range(first, last + 1)}
    assert set(offset_set(pairs, END)) == wanted
    assert set(offset_set([tuple(p) for p in pairs], END)) == wanted
    assert set(offset_set(pack(pairs), END)) == wanted


@given(st.sets(OFFSETS, max_size=200))
def test_runs_are_maximal_and_in_order(offsets: set[int]):
    found = runs(BitMap64(offsets))
    assert {o for first, last in found for o in range(first, last + 1)} == offsets
    assert all(a[1] + 1 < b[0] for a, b in pairwise(found))
    assert offset_set(found, END) == BitMap64(offsets)


def test_many_ranges_are_packed_and_few_are_not():
    few, many = [[1, 2]], [[i, i] for i in range(0, 100, 2)]
    assert pack(few) is few
    assert pack(many) == b"".join(i.to_bytes(8, "little") * 2 for i in range(0, 100, 2))


def test_a_range_set_has_both_ends():
    assert list(range_set(3, 5)) == [3, 4, 5]


@pytest.mark.parametrize(
    "wrong",
    [[1], [[1]], [[1, 2, 3]], [[1, 2.0]], [[True, 2]], [[-1, 2]], [[2, 1]], [[0, 10]], [[0, 1 << 70]], [None], [{1: 2}],
     b"short", (9).to_bytes(8, "little") + (11).to_bytes(8, "little"), None, "text", ((1, 2),)],
)  # fmt: skip
def test_what_is_malformed_or_elsewhere_is_refused(wrong: object):
    with pytest.raises(InvalidArgumentError):
        offset_set(wrong, 10)  # type: ignore[arg-type]
    if isinstance(wrong, list) and wrong not in ([[2, 1]], [[0, 10]]):
        with pytest.raises(InvalidArgumentError):
            pack(wrong * 20)  # type: ignore[arg-type]
