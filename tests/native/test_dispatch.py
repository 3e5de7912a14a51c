"""The ledger of a shared segment: which entry goes to whom, and what of each bucket is not acknowledged."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.format.offsets import offset_set, runs
from engine._native.serve.dispatch import BucketLedger
from engine.errors import CorruptionError, InvalidArgumentError
from tests.reference.entry_reference import PlainMessage, Stamp, encode

FOUR = array("H", [0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF])
MUCH = 1 << 40


def entry(low: int, high: int, offset: int, count: int = 1) -> bytes:
    sent = [PlainMessage(b"v", sequence_id=i) for i in range(count)]
    return encode(sent, buckets=(low, high), stamp=Stamp(segment_id=3, first_offset=offset))


def ledger_of(owners: list[int], start: int = 0, ends: Any = FOUR) -> BucketLedger:
    ledger = BucketLedger(ends, start)
    ledger.assign(array("i", owners))
    return ledger


def credit(*messages: int) -> tuple[array[int], array[int]]:
    return array("q", messages), array("q", [MUCH] * len(messages))


def acknowledge(ledger: BucketLedger, sharer: int, positions: list[tuple[int, int]]) -> tuple[int, Any, list[int]]:
    """What the ledger says, its ranges as a list of inclusive pairs."""
    floor, ranges, refused = ledger.acknowledge(sharer, positions)
    return floor, runs(offset_set(ranges, MUCH)), refused


def joined(payload: Any) -> bytes:
    return b"".join(payload) if isinstance(payload, list) else bytes(payload)


def sent(parcels: list[Any]) -> dict[int, bytes]:
    return {sharer: joined(payload) for sharer, payload, _, _ in parcels}


def test_semantics_20_entries_are_routed_whole_by_their_stamp():
    """Each sharer gets its entries in one payload; what has no owner is due."""
    a, b, c = entry(0, 0x3FFF, 0, 2), entry(0x8000, 0x8000, 2, 3), entry(0x4000, 0x7FFF, 5)
    d, e = entry(0xFFFF, 0xFFFF, 6, 4), entry(0, 0, 10)
    ledger = ledger_of([0, 1, 0, -1])
    parcels = ledger.route(b"".join([a, b, c, d, e]), *credit(MUCH, MUCH))
    assert sent(parcels) == {0: a + b + e, 1: c}
    assert [(sharer, messages, skip) for sharer, _, messages, skip in parcels] == [(0, 6, None), (1, 1, None)]
    assert (ledger.next_offset, ledger.due_runs, ledger.held(0), ledger.held(1)) == (11, 1, 6, 1)
    assert ledger.floor == 0


def test_semantics_17_a_moving_bucket_is_withheld_until_all_of_it_is_acknowledged():
    ledger = ledger_of([0, 0, 0, 0])
    first, second = entry(0, 0, 0, 5), entry(1, 1, 5, 5)
    assert sent(ledger.route(first, *credit(MUCH, MUCH))) == {0: first}
    ledger.assign(array("i", [1, 0, 0, 0]))
    assert ledger.route(second, *credit(MUCH, MUCH)) == []
    assert (ledger.withheld, ledger.active(0), ledger.first_due(*credit(MUCH, MUCH))) == (1, 0, -1)
    assert acknowledge(ledger, 0, [(0, 4)]) == (4, [], [])
    assert acknowledge(ledger, 1, [(0, 5)]) == (4, [], [0])  # it holds nothing of it yet
    assert ledger.withheld == 1
    assert acknowledge(ledger, 0, [(0, 5)]) == (5, [], [])
    assert (ledger.withheld, ledger.active(0), ledger.first_due(*credit(MUCH, MUCH))) == (0, 1, 5)
    assert sent(ledger.route(second, *credit(MUCH, MUCH))) == {1: second}


def test_what_a_sharer_held_that_is_gone_goes_to_the_next_owner_first_and_in_order():
    ledger = ledger_of([0, 0, 0, 0])
    block = b"".join(entry(0, 0, i) for i in range(4))
    ledger.route(block, *credit(2, MUCH))
    assert (ledger.held(0), ledger.first_due(*credit(MUCH, MUCH))) == (2, 2)
    ledger.release(0)
    ledger.assign(array("i", [1, 1, 1, 1]))
    assert ledger.first_due(*credit(0, MUCH)) == 0
    assert sent(ledger.route(block, *credit(0, MUCH))) == {1: block}
    assert ledger.due_runs == 0


def test_a_bucket_is_not_sent_past_what_is_due_of_it():
    """Without credit at an entry, the next of its bucket waits too; other buckets do not."""
    entries = [entry(0, 0, 0), entry(0x4000, 0x4000, 1), entry(0, 0, 2)]
    ledger = ledger_of([0, 1, 1, 1])
    assert sent(ledger.route(b"".join(entries), *credit(0, MUCH))) == {1: entries[1]}
    assert ledger.route(entries[2], *credit(MUCH, MUCH)) == []
    assert ledger.first_due(*credit(MUCH, MUCH)) == 0
    assert sent(ledger.route(b"".join(entries), *credit(MUCH, MUCH))) == {0: entries[0] + entries[2]}


def test_credit_is_taken_off_and_the_last_entry_may_overshoot():
    block = b"".join(entry(0, 0, 3 * i, 3) for i in range(5))
    ledger = ledger_of([0, 0, 0, 0])
    messages, sizes = credit(4)
    ((_, payload, count, _),) = ledger.route(block, messages, sizes)
    assert (count, messages[0], MUCH - sizes[0]) == (6, -2, len(joined(payload)))
    assert ledger.first_due(*credit(1)) == 6


def test_skipped_are_the_messages_that_are_acknowledged():
    ledger = ledger_of([0, 0, 0, 0], start=2)
    block = entry(0, 0, 0, 10) + entry(0, 0, 10, 2) + entry(0, 0, 12, 2)
    parcels = ledger.route(block, *credit(MUCH), [(3, 5), (7, 8), (12, 13)])
    whole, last = entry(0, 0, 0, 10), entry(0, 0, 12, 2)
    assert parcels[0][2:] == (4, [[0, 2], [5, 6], [8, 9], [13, 13]])
    assert sent(parcels) == {0: whole + last}
    assert acknowledge(ledger, 0, [(0, 13)]) == (14, [], [])
    assert ledger.floor == 14


def test_semantics_19_a_position_acknowledges_what_is_at_or_before_it():
    ledger = ledger_of([0, 0, 0, 0])
    ledger.route(b"".join(entry(0x4000 * (i % 4), 0x4000 * (i % 4), i) for i in range(8)), *credit(MUCH))
    assert acknowledge(ledger, 0, [(bucket, 6) for bucket in (1, 2, 0)]) == (3, [[4, 5]], [])
    assert acknowledge(ledger, 0, [(3, 4)]) == (6, [], [])
    assert (ledger.floor, ledger.held(0)) == (6, 2)
    assert acknowledge(ledger, 0, [(bucket, 5) for bucket in range(4)]) == (6, [], [])
    assert acknowledge(ledger, 0, [(3, 8)]) == (6, [[7, 7]], [])


def test_neighbours_of_a_bucket_are_one_run():
    ledger = ledger_of([0, 0, 0, 0])
    ledger.route(b"".join(entry(0, 0, i) for i in range(100)), *credit(MUCH))
    assert ledger.runs == 1
    assert acknowledge(ledger, 0, [(0, 40)]) == (40, [], [])
    assert acknowledge(ledger, 0, [(0, 100)]) == (100, [], [])
    assert ledger.runs == 0


def test_what_retention_took_is_not_waited_for():
    ledger = ledger_of([0, 1, -1, -1])
    ledger.route(b"".join(entry(0x4000 * (i % 3), 0x4000 * (i % 3), i) for i in range(9)), *credit(MUCH, 0))
    ledger.forget(5)
    assert (ledger.floor, ledger.due_runs, ledger.held(0)) == (5, 3, 1)
    ledger.forget(20)
    assert (ledger.next_offset, ledger.floor, ledger.runs) == (20, 20, 0)
    block = entry(0, 0, 20)
    assert sent(ledger.route(block, *credit(MUCH, 0))) == {0: block}


def test_offsets_that_are_missing_are_named():
    ledger = ledger_of([0, 0, 0, 0])
    ledger.route(entry(0, 0, 0, 3), *credit(MUCH))
    with pytest.raises(CorruptionError, match="offsets 3 to 4 are missing"):
        ledger.route(entry(0, 0, 5), *credit(MUCH))


def test_what_a_block_has_of_each_bucket():
    ledger = BucketLedger(FOUR, 0)
    block = entry(0, 0, 0, 3) + entry(0x4000, 0x4000, 3, 4) + entry(0, 0, 7, 3) + entry(0xFFFF, 0xFFFF, 10)
    assert ledger.unacknowledged(block, array("Q", [9, 6, 0, 11]), 1) == [(0, 1, 3), (1, 3, 6), (0, 7, 9), (3, 10, 11)]


@given(st.data())
def test_routing_agrees_with_a_plain_search(data: st.DataObject):
    inner = data.draw(st.sets(st.integers(0, 0xFFFE), max_size=30))
    ends = [*sorted(inner), 0xFFFF]
    owners = data.draw(st.lists(st.integers(-1, 3), min_size=len(ends), max_size=len(ends)))
    hashes = data.draw(st.lists(st.integers(0, 0xFFFF) | st.sampled_from(ends), max_size=12))
    entries = [entry(h, h, i) for i, h in enumerate(hashes)]
    expected: dict[int, bytes] = {}
    for one, h in zip(entries, hashes, strict=True):
        owner = owners[next(i for i, end in enumerate(ends) if h <= end)]
        if owner >= 0:
            expected[owner] = expected.get(owner, b"") + one
    ledger = BucketLedger(np.array(ends, np.uint16), 0)
    ledger.assign(np.array(owners, np.int32))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(entries)), max_size=4)) | {0, len(entries)})
    blocks = [b"".join(entries[start:stop]) for start, stop in itertools.pairwise(cuts)]
    assert sent(ledger.route(blocks, *credit(*[MUCH] * 4))) == expected, "as if it were one block"


def test_what_is_acknowledged_is_left_out_across_blocks():
    ledger = ledger_of([0, 1, 0, 0])
    a, b, c, d = entry(0, 0, 0, 5), entry(0x4000, 0x4000, 5, 3), entry(0, 0, 8, 2), entry(0x4000, 0x4000, 10, 4)
    blocks = [a + b, c, d]
    parcels = ledger.route(blocks, *credit(MUCH, MUCH), [(3, 6), (9, 12)])
    assert [(sharer, messages, skip) for sharer, _, messages, skip in parcels] == [
        (0, 3, [[0, 2], [8, 8]]),
        (1, 3, [[6, 7], [12, 13]]),
    ]
    assert sent(parcels) == {
        0: blocks[0][: len(entry(0, 0, 0, 5))] + blocks[1],
        1: blocks[0][len(entry(0, 0, 0, 5)) :] + blocks[2],
    }
    with pytest.raises(InvalidArgumentError, match="contiguous bytes"):
        ledger.route([entry(0, 0, 14), 3], *credit(MUCH, MUCH))


def test_1024_buckets():
    ends = array("H", [64 * (i + 1) - 1 for i in range(1024)])
    ledger = ledger_of(list(range(1024)), ends=ends)
    hashes = (0, 63, 64, 65_471, 65_472, 0xFFFF)
    parcels = ledger.route(b"".join(entry(h, h, i) for i, h in enumerate(hashes)), *credit(*[MUCH] * 1024))
    assert [(sharer, messages) for sharer, _, messages, _ in parcels] == [(0, 2), (1, 1), (1022, 1), (1023, 2)]


def test_few_large_pieces_are_not_copied():
    large = encode([PlainMessage(bytes(40_000), sequence_id=0)], buckets=(0, 0), stamp=Stamp(3, 0))
    other = encode([PlainMessage(b"v", sequence_id=0)], buckets=(0xFFFF, 0xFFFF), stamp=Stamp(3, 1))
    third = encode([PlainMessage(bytes(40_000), sequence_id=0)], buckets=(0, 0), stamp=Stamp(3, 2))
    parcels = ledger_of([0, 0, 0, 1]).route(large + other + third, *credit(MUCH, MUCH))
    assert isinstance(parcels[0][1], list)
    assert sent(parcels) == {0: large + third, 1: other}


@pytest.mark.parametrize(("low", "high", "bucket"), [(0, 0x4000, 0), (0x7FFF, 0x8000, 1), (0x8000, 0xFFFF, 2)])
def test_an_entry_of_two_buckets_is_named(low: int, high: int, bucket: int):
    block = entry(0, 0, 0) + entry(low, high, 1)
    with pytest.raises(CorruptionError, match=f"segment 3, offset 1.*{low}..{high} leave bucket {bucket}"):
        ledger_of([1, 1, 1, 1]).route(block, *credit(0, MUCH))


def test_a_damaged_block_is_refused():
    block = entry(0, 0, 0)
    for bad in (block[:-8], block + b"garbage!", bytes(200)):
        with pytest.raises(CorruptionError):
            ledger_of([0, 0, 0, 0]).route(bad, *credit(MUCH))
    assert ledger_of([0, 0, 0, 0]).route(b"", *credit(MUCH)) == []


@pytest.mark.parametrize("ends", [[], [0xFFFE], [5, 5, 0xFFFF], [9, 5, 0xFFFF], [*range(1024), 0xFFFF]])
def test_wrong_ends_are_refused(ends: list[int]):
    with pytest.raises(InvalidArgumentError, match="1 to 1024 buckets"):
        BucketLedger(array("H", ends), 0)


def test_wrong_arguments_are_refused():
    ledger = BucketLedger(FOUR, 0)
    with pytest.raises(InvalidArgumentError, match="4 buckets need as many owners, got 2"):
        ledger.assign(array("i", [1, 2]))
    with pytest.raises(InvalidArgumentError, match="below 4, got 4"):
        ledger.acknowledge(0, [(4, 1)])
    with pytest.raises(InvalidArgumentError, match="below 4, got 9"):
        ledger.active(9)
    with pytest.raises(InvalidArgumentError, match="as many sharers for messages as for bytes, got 1 and 2"):
        ledger.route(b"", array("q", [1]), array("q", [1, 1]))
