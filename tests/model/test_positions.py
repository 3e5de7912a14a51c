"""Message ids and checkpoints: order, bytes, and what is refused."""

from __future__ import annotations

import itertools
import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidArgumentError
from engine.model.positions import Checkpoint, MessageId, bucket_position, split_position

NUMBERS = st.integers(0, 2**62)
VECTORS = st.dictionaries(NUMBERS, NUMBERS, max_size=8)
TOPICS = st.none() | st.text(st.characters(codec="utf-8"), max_size=30)
IDS = st.builds(MessageId, NUMBERS, NUMBERS, VECTORS, TOPICS)
PLACES = st.sampled_from([Checkpoint.earliest(), Checkpoint.latest()])
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)).map(Checkpoint.at_timestamp)
CHECKPOINTS = (
    PLACES
    | TIMES
    | st.builds(
        lambda p, e, t, c: Checkpoint(p, epoch=e, topic=t, topic_created_ms=c),
        VECTORS,
        NUMBERS,
        TOPICS,
        st.none() | NUMBERS,
    )
)

# Pinned: users keep these bytes.
GOLDEN_ID = (
    "014d7bf8ce48010000000000000002000000000000000d0002000000746f7069633a2f2f612f622f63"
    "0100000000000000030000000000000002000000000000000400000000000000"
)
GOLDEN_CHECKPOINT = "014301e6f1fc00000000000000000500000000000000ffff0100000007000000000000000900000000000000"
GOLDEN_CHECKPOINT_CREATED = (
    "0243ad06766b000000000000000005000000000000000d0001000000746f7069633a2f2f612f622f63"
    "0700000000000000090000000000000001f451c28c010000"
)


@given(IDS)
def test_message_id_round_trip(mid: MessageId) -> None:
    again = MessageId.from_bytes(mid.to_bytes())
    assert again == mid
    assert hash(again) == hash(mid)
    assert dict(again.positions) == dict(mid.positions)
    assert pickle.loads(pickle.dumps(mid)) == mid


@given(CHECKPOINTS)
def test_checkpoint_round_trip(checkpoint: Checkpoint) -> None:
    again = Checkpoint.from_bytes(checkpoint.to_bytes())
    assert again == checkpoint
    assert hash(again) == hash(checkpoint)
    assert pickle.loads(pickle.dumps(checkpoint)) == checkpoint


def test_golden_bytes() -> None:
    mid = MessageId(1, 2, {2: 4, 1: 3}, "topic://a/b/c")
    assert mid.to_bytes().hex() == GOLDEN_ID
    assert Checkpoint({7: 9}, epoch=5).to_bytes().hex() == GOLDEN_CHECKPOINT
    checkpoint = Checkpoint({7: 9}, epoch=5, topic="topic://a/b/c", topic_created_ms=1704067200001)
    assert checkpoint.to_bytes().hex() == GOLDEN_CHECKPOINT_CREATED


def test_checkpoints_of_the_first_version_are_read() -> None:
    old = Checkpoint.from_bytes(bytes.fromhex(GOLDEN_CHECKPOINT))
    assert old == Checkpoint({7: 9}, epoch=5)
    assert old.topic_created_ms is None
    assert old != Checkpoint({7: 9}, epoch=5, topic_created_ms=1)
    with pytest.raises(InvalidArgumentError, match="must start with"):
        MessageId.from_bytes(b"\x02" + MessageId(1, 2).to_bytes()[1:])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_ids_of_a_topic_are_totally_ordered(places: list[tuple[int, int]]) -> None:
    ids = [MessageId(s, o) for s, o in places]
    assert [(i.segment_id, i.offset) for i in sorted(ids)] == sorted(places)
    for a, b in itertools.pairwise(ids):
        assert (a < b) + (a == b) + (a > b) == 1
        assert (a <= b) == (not a > b)
        assert (a >= b) == (not a < b)


@given(IDS)
def test_earliest_is_below_and_latest_above_all(mid: MessageId) -> None:
    assert MessageId.earliest < mid < MessageId.latest
    assert MessageId.from_bytes(MessageId.earliest.to_bytes()) == MessageId.earliest
    assert MessageId.from_bytes(MessageId.latest.to_bytes()) == MessageId.latest


def test_equality_looks_at_segment_offset_and_topic() -> None:
    assert MessageId(1, 2, {1: 3}, "t") == MessageId(1, 2, {}, "t")
    assert MessageId(1, 2, {}, "t") != MessageId(1, 2, {}, "u")
    assert MessageId(1, 2) != (1, 2)
    assert len({MessageId(1, 2), MessageId(1, 2, {1: 3}), MessageId(1, 3)}) == 2


def test_ids_of_different_topics_have_no_order() -> None:
    with pytest.raises(InvalidArgumentError, match="order"):
        sorted([MessageId(0, 1, topic="a"), MessageId(0, 2, topic="b")])
    with pytest.raises(TypeError):
        MessageId(0, 1) < 5  # noqa: B015


@given(IDS | CHECKPOINTS, st.data())
def test_a_flipped_bit_is_noticed(place: MessageId | Checkpoint, data: st.DataObject) -> None:
    whole = bytearray(place.to_bytes())
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidArgumentError):
        type(place).from_bytes(bytes(whole))


@given(st.binary(max_size=100))
def test_garbage_is_refused(garbage: bytes) -> None:
    for kind in (MessageId, Checkpoint):
        with pytest.raises(InvalidArgumentError):
            kind.from_bytes(garbage)


@pytest.mark.parametrize("cut", [0, 1, 5, 27, -1])
def test_cut_or_mixed_up_bytes_are_refused(cut: int) -> None:
    whole = MessageId(1, 2, {1: 3}, "t").to_bytes()
    with pytest.raises(InvalidArgumentError):
        MessageId.from_bytes(whole[:cut])
    with pytest.raises(InvalidArgumentError):
        Checkpoint.from_bytes(whole)
    with pytest.raises(InvalidArgumentError):
        MessageId.from_bytes("text")  # type: ignore[arg-type]


def test_numbers_beyond_64_bits_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="64 bits"):
        MessageId(1 << 70, 0).to_bytes()


def test_timestamps_need_a_zone_and_round_up_to_milliseconds() -> None:
    with pytest.raises(InvalidArgumentError, match="time zone"):
        Checkpoint.at_timestamp(datetime(2024, 1, 1))
    with pytest.raises(InvalidArgumentError, match="must be an aware datetime"):
        Checkpoint.at_timestamp(5)  # type: ignore[arg-type]
    moment = datetime(2024, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert Checkpoint.at_timestamp(moment).timestamp_ms == 1704067200000
    assert Checkpoint.at_timestamp(moment + timedelta(microseconds=1)).timestamp_ms == 1704067200001


def test_representations_can_be_read() -> None:
    assert repr(MessageId(3, 4, topic="t")) == "MessageId(3:4 of t)"
    assert repr(MessageId.latest) == "MessageId.latest"
    assert repr(Checkpoint.earliest()) == "Checkpoint.earliest()"
    assert repr(Checkpoint({1: 2}, epoch=3)) == "Checkpoint({1: 2}, epoch=3)"
    assert "2024" in repr(Checkpoint.at_timestamp(datetime(2024, 1, 1, tzinfo=UTC)))


def test_a_checkpoint_keeps_its_positions_to_itself() -> None:
    positions = {1: 2}
    checkpoint = Checkpoint(positions, epoch=0)
    positions[1] = 9
    assert checkpoint.positions == {1: 2}
    with pytest.raises(TypeError):
        checkpoint.positions[1] = 3  # type: ignore[index]


@given(st.integers(0, (1 << 31) - 1), st.none() | st.integers(0, 1023))
def test_a_place_is_a_segment_or_one_bucket_of_it(segment_id: int, bucket: int | None) -> None:
    place = segment_id if bucket is None else bucket_position(segment_id, bucket)
    assert split_position(place) == (segment_id, bucket)
    ident = MessageId(segment_id, 6, {place: 7})
    assert MessageId.from_bytes(ident.to_bytes()).positions == {place: 7}


def test_the_ends_of_all_messages_are_no_buckets() -> None:
    for end in (MessageId.earliest, MessageId.latest):
        assert split_position(end.segment_id) == (end.segment_id, None)
