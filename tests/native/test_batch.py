"""What a consumer receives: decoded blocks, messages, batches and their columns."""

from __future__ import annotations

import gc
import sys
import weakref
import zlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.consume.batch import MessageBatch, decode_block
from engine._native.consume.message import Message, Slice
from engine._native.format.entry import Entry, compress, walk
from engine.errors import CorruptionError, InvalidArgumentError, UnsupportedError
from tests.reference.entry_reference import PlainMessage, Stamp, encode, stamped
from tests.reference.entry_strategies import messages

SALT = 77
DAY_MS = 1_700_000_000_000


def entry_bytes(sent: list[PlainMessage], offset: int, segment: int = 3) -> bytes:
    return encode(sent, stamp=Stamp(segment, offset, DAY_MS + offset, 1, offset, SALT))


def numbered(count: int, offset: int = 0, segment: int = 3) -> Entry:
    """A decoded entry whose values name segment and offset."""
    sent = [PlainMessage(b"%d:%d" % (segment, offset + i), b"k%d" % i, sequence_id=i) for i in range(count)]
    [entry] = decode_block(entry_bytes(sent, offset, segment), SALT, segment)
    return entry


def make_id(segment_id: int, offset: int, positions: dict[int, int]) -> tuple[int, int, dict[int, int]]:
    return segment_id, offset, positions


def batch_of(*slices: Any, base: dict[int, int] | None = None, **more: Any) -> MessageBatch:
    return MessageBatch("topic://public/default/t", slices, base or {}, make_id, **more)


# Decoding a block.


@given(st.lists(messages(max_size=5), max_size=4), st.booleans())
def test_blocks_come_back_as_they_were(sent: list[list[PlainMessage]], copy: bool):
    offset, block = 10, b""
    for one in sent:
        block += entry_bytes(one, offset)
        offset += len(one) + 1  # a gap: entries of buckets that others own
    entries = decode_block(block, SALT, 3, 10, None, copy)
    batch = batch_of(*[(e, 0, e.count) for e in entries])
    whole = [m for one in sent for m in one]
    assert [(m.key, m.value, m.properties, m.event_time_ms, m.sequence_id) for m in batch] == [
        (m.key, m.value, m.properties, m.event_time_ms, m.sequence_id) for m in whole
    ]
    assert batch.values == [m.value for m in whole]
    assert batch.keys == [m.key for m in whole]
    assert len(batch) == len(whole)


def test_every_fault_names_segment_and_offset():
    one, two = [PlainMessage(b"a"), PlainMessage(b"b", sequence_id=1)], [PlainMessage(b"c")]
    block = entry_bytes(one, 10) + entry_bytes(two, 12)
    assert [e.first_offset for e in decode_block(block, SALT, 3, 10)] == [10, 12]
    cases = [
        (block, 78, 3, -1, "segment 3: the entry's stamp fails its checksum"),
        (block, SALT, 4, -1, "segment 4: the entry was stamped for another segment"),
        (block, SALT, 3, 12, "segment 3, offset 12: the entry's offsets are not above"),
        (block[:-8], SALT, 3, -1, "segment 3, offset 12: the bytes end"),
        (block + bytes(128), SALT, 3, -1, "segment 3, offset 13: an entry does not begin here"),
        (entry_bytes(one, 10) + entry_bytes(two, 11), SALT, 3, -1, "segment 3, offset 12: the entry's offsets"),
        (encode(one, stamp=Stamp(3, 2**63, salt=SALT)), SALT, 3, -1, "segment 3: the entry's offsets"),
        (block[:-1] + b"x", SALT, 3, -1, "segment 3, offset 12: the entry's body fails its checksum"),
    ]
    for data, salt, segment, expect, match in cases:
        with pytest.raises(CorruptionError, match=match):
            decode_block(data, salt, segment, expect)


def test_an_entry_that_holds_the_expected_offset_is_taken_whole():
    block = entry_bytes([PlainMessage(b"a"), PlainMessage(b"b", sequence_id=1)], 10)
    assert decode_block(block, SALT, 3, 11)[0].first_offset == 10


def test_large_blocks_are_checked_too():
    block = bytearray(entry_bytes([PlainMessage(bytes(50_000))], 0) + entry_bytes([PlainMessage(bytes(50_000))], 1))
    assert len(decode_block(bytes(block), SALT, 3)) == 2
    block[-20_000] ^= 1
    with pytest.raises(CorruptionError, match="segment 3, offset 1: the entry's body"):
        decode_block(bytes(block), SALT, 3)


def test_compressed_entries_are_opened_by_the_given_function():
    data = encode([PlainMessage(b"v" * 200, b"k", {"a": "b"})] * 3)
    # Stamped after it was compressed, as a broker would.
    packed = compress(data, 2, lambda body: zlib.compress(body))
    block = stamped(packed, Stamp(3, 5, 0, 0, 0, SALT))
    with pytest.raises(UnsupportedError, match="segment 3, offset 5: the entry is compressed"):
        decode_block(block, SALT, 3)
    [entry] = decode_block(block, SALT, 3, -1, lambda codec, body, size: zlib.decompress(body))
    batch = batch_of(Slice(entry))
    assert batch.values == [b"v" * 200] * 3
    assert batch.to_arrow().to_pylist()[0]["properties"] == [("a", "b")]


def test_the_payload_lives_as_long_as_a_message_of_it():
    class Chunk(bytearray):
        pass

    chunk = Chunk(entry_bytes([PlainMessage(b"a" * 100)], 0))
    gone = weakref.ref(chunk)
    message = batch_of(Slice(decode_block(memoryview(chunk), SALT, 3)[0]))[0]
    del chunk
    assert gone() is not None
    assert message.value == b"a" * 100
    del message
    gc.collect()
    assert gone() is None


def test_a_copied_payload_is_let_go():
    chunk = bytearray(entry_bytes([PlainMessage(b"a" * 100)], 0))
    entries = decode_block(chunk, SALT, 3, -1, None, True)
    chunk[:] = bytes(len(chunk))  # nobody holds its buffer
    chunk.clear()
    assert entries[0].messages()[0].value == b"a" * 100


# Messages.


def test_a_message_says_everything():
    sent = [PlainMessage(b"value", b"key", {"a": "ü"}, 1_600_000_000_001, 41), PlainMessage(b"", b"", sequence_id=43)]
    [entry] = decode_block(entry_bytes(sent, 10), SALT, 3)
    first, second = batch_of((entry, 0, 2), base={9: 1}, redelivered={3: [(11, 11, 2)]})
    assert (first.value, first.key, first.properties, first.size) == (b"value", b"key", {"a": "ü"}, 8)
    assert (second.value, second.key, second.properties, second.size) == (b"", b"", {}, 0)
    assert first.topic == "topic://public/default/t"
    assert first.publish_time == datetime(2023, 11, 14, 22, 13, 20, 10_000, tzinfo=UTC)
    assert first.event_time == datetime(2020, 9, 13, 12, 26, 40, 1_000, tzinfo=UTC)
    assert second.event_time is None
    assert (first.sequence_id, second.sequence_id) == (41, 43)
    assert first.producer_name == "producer"
    assert (first.redelivery_count, second.redelivery_count) == (0, 2)
    assert (first.segment_id, first.offset, second.offset) == (3, 10, 11)
    assert first.id == (3, 10, {9: 1, 3: 11})
    assert second.id == (3, 11, {9: 1, 3: 12})
    place = "<Message topic='topic://public/default/t' segment=3 offset=10"
    assert repr(first) == f"{place} key=b'key' value=b'value' properties={{'a': 'ü'}}>"


def test_a_keyless_message_has_no_key():
    [entry] = decode_block(entry_bytes([PlainMessage(b"v")], 0), SALT, 3)
    assert batch_of((entry, 0, 1))[0].key is None


def test_a_time_beyond_datetime_is_named():
    [entry] = decode_block(entry_bytes([PlainMessage(b"v", event_time_ms=2**60)], 0), SALT, 3)
    [message] = batch_of((entry, 0, 1))
    assert message.event_time_ms == 2**60
    with pytest.raises(UnsupportedError, match=str(2**60)):
        _ = message.event_time


def test_messages_are_not_made_by_hand():
    with pytest.raises(TypeError, match="received"):
        Message()


def test_messages_leak_nothing():
    entry = numbered(100)
    batch = batch_of((entry, 0, 100))
    before = sys.getrefcount(entry)
    kept = [(m, m.value, m.id, m.key) for m in batch]
    del kept
    assert sys.getrefcount(entry) == before


# Rule 11: a cumulative acknowledgement is a position vector captured at delivery.


def test_semantics_11_an_id_holds_what_was_delivered_up_to_it():
    a, b = numbered(3, 10, segment=1), numbered(2, 50, segment=2)
    batch = batch_of((a, 1, 3), (b, 0, 2), (numbered(1, 13, segment=1), 0, 1), base={1: 11, 7: 99})
    assert [m.id for m in batch] == [
        (1, 11, {1: 12, 7: 99}),
        (1, 12, {1: 13, 7: 99}),
        (2, 50, {1: 13, 7: 99, 2: 51}),
        (2, 51, {1: 13, 7: 99, 2: 52}),
        (1, 13, {1: 14, 7: 99, 2: 52}),
    ]
    assert batch[3].id == (2, 51, {1: 13, 7: 99, 2: 52})  # asked for out of order
    assert batch[0].id == (1, 11, {1: 12, 7: 99})
    assert batch.last_id == batch[-1].id
    assert batch.positions == {1: 14, 7: 99, 2: 52}


def test_semantics_11_a_slice_of_a_batch_keeps_the_ids():
    batch = batch_of((numbered(3, 10, 1), 0, 3), (numbered(2, 50, 2), 0, 2), (numbered(4, 13, 1), 1, 4), base={5: 5})
    ids = [m.id for m in batch]
    for start in range(-1, 9):
        for stop in range(-1, 10):
            part = batch[start:stop]
            assert isinstance(part, MessageBatch)
            assert [m.id for m in part] == ids[start:stop]
            assert part.last_id == (ids[start:stop] or [None])[-1]
            assert part.values == batch.values[start:stop]


def test_a_change_of_base_does_not_reach_the_batch():
    base = {1: 1}
    batch = batch_of((numbered(1, 10, 1), 0, 1), base=base)
    base[1] = 100
    batch.positions[1] = 100
    assert batch[0].id == (1, 10, {1: 11})


# Batches.


def test_a_batch_is_a_sequence():
    batch = batch_of((numbered(3), 1, 3), (numbered(2, 3), 0, 2))
    assert [m.offset for m in batch] == [1, 2, 3, 4]
    assert [batch[i].offset for i in range(-4, 4)] == [1, 2, 3, 4] * 2
    for index in (4, -5):
        with pytest.raises(IndexError, match="batch of 4"):
            batch[index]
    with pytest.raises(InvalidArgumentError, match="step 1"):
        batch[::2]
    assert (batch.topic, batch.segments, batch.size) == ("topic://public/default/t", [3], 4 * 5)
    assert [(s.start, s.stop, len(s)) for s in batch.slices] == [(1, 3, 2), (0, 2, 2)]
    assert [m.offset for m in batch] == [m.offset for m in iter(batch)]


def test_an_empty_batch():
    for batch in (batch_of(), batch_of((numbered(3), 1, 1)), batch_of((numbered(3), 0, 3))[3:]):
        assert (len(batch), list(batch), batch.values, batch.keys, batch.last_id) == (0, [], [], [], None)
        assert batch.to_arrow().num_rows == 0
        assert batch.to_arrow().schema == batch_of((numbered(3), 0, 3)).to_arrow().schema
        assert len(batch[0:5]) == 0


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (2, 1), (4, 4)])
def test_slices_stay_inside_their_entry(start: int, stop: int):
    with pytest.raises(InvalidArgumentError, match="of an entry of 3"):
        batch_of((numbered(3), start, stop))


def test_a_walked_entry_can_be_sliced():
    [entry] = walk(entry_bytes([PlainMessage(b"v")], 0))
    assert batch_of(Slice(entry)).values == [b"v"]
