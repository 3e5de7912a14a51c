"""Routing the entries of a block to the owners of their buckets."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from entry_reference import PlainMessage, Stamp, encode
from hypothesis import given
from hypothesis import strategies as st

from engine._native.dispatch import route
from engine.errors import CorruptionError, InvalidArgumentError

FOUR = array("H", [0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF])


def entry(low: int, high: int, offset: int, count: int = 1) -> bytes:
    sent = [PlainMessage(b"v", sequence_id=i) for i in range(count)]
    return encode(sent, buckets=(low, high), stamp=Stamp(segment_id=3, first_offset=offset))


def test_rule_20_entries_are_routed_whole_by_their_stamp():
    """Runs of neighbours with one owner; -1 marks what is withheld (rule 17)."""
    entries = [
        entry(0, 0x3FFF, 0, 2),
        entry(0x8000, 0x8000, 2, 3),
        entry(0x4000, 0x7FFF, 5),
        entry(0xFFFF, 0xFFFF, 6, 4),
        entry(0, 0, 10),
    ]
    size = len(entries[0])
    runs = route(b"".join(entries), FOUR, array("i", [7, 8, 7, -1]))
    ends = [sum(map(len, entries[:n])) for n in range(6)]
    assert size == ends[1]
    assert runs == [
        (7, 0, ends[2], 0, 5),
        (8, ends[2], ends[3], 5, 1),
        (-1, ends[3], ends[4], 6, 4),
        (7, ends[4], ends[5], 10, 1),
    ]


SIZE = len(entry(0, 0, 0))


@given(st.data())
def test_routing_agrees_with_a_plain_search(data: st.DataObject):
    inner = data.draw(st.sets(st.integers(0, 0xFFFE), max_size=30))
    ends = [*sorted(inner), 0xFFFF]
    owners = data.draw(st.lists(st.integers(-1, 3), min_size=len(ends), max_size=len(ends)))
    hashes = data.draw(st.lists(st.integers(0, 0xFFFF) | st.sampled_from(ends), max_size=12))
    entries = [entry(h, h, i) for i, h in enumerate(hashes)]
    owner_of = [owners[next(i for i, end in enumerate(ends) if h <= end)] for h in hashes]
    expected: list[tuple[int, int, int, int, int]] = []
    for i, owner in enumerate(owner_of):
        start, stop = i * SIZE, (i + 1) * SIZE
        if expected and expected[-1][0] == owner:
            _, start, _, first, messages = expected.pop()
            expected.append((owner, start, stop, first, messages + 1))
        else:
            expected.append((owner, start, stop, i, 1))
    assert route(b"".join(entries), np.array(ends, np.uint16), np.array(owners, np.int32)) == expected


def test_1024_buckets():
    ends = array("H", [64 * (i + 1) - 1 for i in range(1024)])
    owners = array("i", range(1024))
    for hashed in (0, 63, 64, 65_471, 65_472, 0xFFFF):
        assert [run[0] for run in route(entry(hashed, hashed, 0), ends, owners)] == [hashed // 64]


@pytest.mark.parametrize(("low", "high", "bucket"), [(0, 0x4000, 0), (0x7FFF, 0x8000, 1), (0x8000, 0xFFFF, 2)])
def test_an_entry_of_two_buckets_is_named(low: int, high: int, bucket: int):
    block = entry(0, 0, 0) + entry(low, high, 5)
    with pytest.raises(CorruptionError, match=f"segment 3, offset 5.*{low}..{high} leave bucket {bucket}"):
        route(block, FOUR, array("i", [1, 1, 1, 1]))


def test_a_damaged_block_is_refused():
    block = entry(0, 0, 0)
    for bad in (block[:-8], block + b"garbage!", bytes(200)):
        with pytest.raises(CorruptionError):
            route(bad, FOUR, array("i", [1, 1, 1, 1]))
    assert route(b"", FOUR, array("i", [1, 1, 1, 1])) == []


@pytest.mark.parametrize(
    ("ends", "owners"),
    [([], []), ([0xFFFF], []), ([0xFFFF], [1, 2]), ([0xFFFE], [1]), ([*range(1024), 0xFFFF], [1] * 1025)],
)
def test_a_wrong_table_is_refused(ends: list[int], owners: list[int]):
    with pytest.raises(InvalidArgumentError, match="1 to 1024 buckets"):
        route(b"", array("H", ends), array("i", owners))
