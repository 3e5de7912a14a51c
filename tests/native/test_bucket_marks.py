"""Position vectors of shared segments: one position for each bucket."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.consume.batch import decode_block
from engine._native.consume.bucket_marks import BucketMarks
from engine._native.consume.entry_queue import EntryQueue
from engine._native.format.entry import Entry
from engine.errors import InvalidArgumentError
from engine.model.positions import bucket_position
from tests.reference.entry_reference import PlainMessage, Stamp, encode

SALT = 77
SEGMENT = 3
QUARTERS = (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF)


def entry(bucket: int, offset: int, count: int = 1, segment: int = SEGMENT) -> Entry:
    """Messages of one bucket, their values the offsets."""
    sent = [PlainMessage(b"%d" % (offset + i), b"k", sequence_id=i) for i in range(count)]
    hashes = (QUARTERS[bucket] - 5, QUARTERS[bucket])
    [made] = decode_block(encode(sent, buckets=hashes, stamp=Stamp(segment, offset, 0, 0, 0, SALT)), SALT, segment)
    return made


def make_id(segment_id: int, offset: int, positions: dict[int, int]) -> dict[int, int]:
    return positions


def place(bucket: int) -> int:
    return bucket_position(SEGMENT, bucket)


def marks(*, keyed: bool = True) -> BucketMarks:
    return BucketMarks(SEGMENT, QUARTERS, keyed)


def offsets(waiting: EntryQueue) -> list[int]:
    return [m.offset for m in iter(waiting.pop_message, None)]


def test_a_shared_segment_has_a_position_for_each_bucket() -> None:
    waiting, here = EntryQueue("t", make_id), marks()
    waiting.push([entry(2, 0, 2), entry(0, 2, 3)], marks=here)
    waiting.push([entry(1, 0, 4, segment=1)])
    waiting.push([entry(2, 5, 2)], marks=here)
    first, second = waiting.pop_message(), waiting.pop_message()
    assert first is not None
    assert second is not None
    assert (first.id, second.id) == ({place(2): 1}, {place(2): 2})
    batch = waiting.pop_batch(8)
    assert [m.id for m in batch][-1] == {place(2): 6, place(0): 5, 1: 4}
    assert batch[:2].positions == {place(2): 2, place(0): 4}
    assert batch.positions == waiting.positions == {place(2): 6, place(0): 5, 1: 4}
    assert [here.arrived(bucket) for bucket in range(4)] == [True, False, True, False]


def test_an_exclusive_segment_has_one_position() -> None:
    waiting = EntryQueue("t", make_id)
    waiting.push([entry(2, 0, 2), entry(0, 2, 3)], marks=marks(keyed=False))
    assert waiting.pop_batch(10).positions == {SEGMENT: 5}


@pytest.mark.parametrize("keyed", [True, False])
def test_what_is_acknowledged_in_its_bucket_is_not_queued(keyed: bool) -> None:
    waiting, here = EntryQueue("t", make_id), marks(keyed=keyed)
    here.acknowledge(2, 3)
    here.acknowledge(2, 1)  # never back
    assert (here.acknowledged(2), here.acknowledged(1), len(here)) == (3, 0, 4)
    entries = [entry(2, 0, 2), entry(2, 2, 3), entry(1, 5, 2)]
    assert waiting.push(entries, marks=here) == 4
    assert waiting.take_credit() == {SEGMENT: (3, entries[0].size)}
    assert offsets(waiting) == [3, 4, 5, 6]


@pytest.mark.parametrize("keyed", [True, False])
def test_what_was_acknowledged_unread_in_its_bucket_can_be_forgotten(keyed: bool) -> None:
    waiting, here = EntryQueue("t", make_id), marks(keyed=keyed)
    waiting.push([entry(2, 0, 4), entry(1, 4, 2)], marks=here)
    waiting.push([entry(2, 0, 4, segment=1)])
    waiting.pop_message()
    here.acknowledge(2, 3)
    assert waiting.forget(SEGMENT, [], here) == 2
    assert waiting.forget(SEGMENT, [(4, 4)], here) == 1
    assert offsets(waiting) == [3, 5, 0, 1, 2, 3]


def test_only_what_stands_no_higher_is_forgotten() -> None:
    waiting, here = EntryQueue("t", make_id), marks()
    waiting.push([entry(0, 0, 3), entry(1, 3, 3)], marks=here)
    waiting.pop_batch(5)
    waiting.forget_positions({place(0): 3, place(1): 4, 9: 9})
    assert waiting.positions == {place(1): 5}


def test_a_place_stays_with_what_is_put_aside() -> None:
    waiting, aside, here = EntryQueue("t", make_id), EntryQueue("t", make_id), marks()
    waiting.push([entry(1, 0, 4)], marks=here)
    waiting.pop_message()
    waiting.move(SEGMENT, aside)
    aside.move(SEGMENT, waiting)
    assert waiting.pop_batch(10).positions == {place(1): 4}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12), st.lists(st.integers(1, 9)))
def test_a_vector_covers_what_was_delivered_and_nothing_else(
    sent: Sequence[tuple[int, int]], takes: Sequence[int]
) -> None:
    waiting, here, offset = EntryQueue("t", make_id), marks(), 0
    expected: list[tuple[int, int]] = []  # (bucket, offset) of each message
    for bucket, count in sent:
        waiting.push([entry(bucket, offset, count)], marks=here)
        expected += [(bucket, offset + i) for i in range(count)]
        offset += count
    for take in takes:
        waiting.pop_batch(take) if take > 1 else waiting.pop_message()
        delivered, expected = expected[:take], expected[take:]
        positions = waiting.positions
        assert all(positions[place(bucket)] > at for bucket, at in delivered)
        assert all(positions.get(place(bucket), 0) <= at for bucket, at in expected)


@pytest.mark.parametrize("ends", [(), (5,), (5, 5, 0xFFFF), tuple(range(1025))])
def test_wrong_ends_are_refused(ends: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError):
        BucketMarks(SEGMENT, ends, True)


def test_a_bucket_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="below 4, got 4"):
        marks().acknowledge(4, 1)
