"""Entries read and checked natively, against the plain model."""

from __future__ import annotations

import zlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.format.entry import Entry, EntryMessage, compress, verify, walk
from engine._native.produce.batcher import Batcher
from engine.errors import CorruptionError, InvalidArgumentError, UnsupportedError
from tests.reference.entry_reference import PlainMessage, Stamp, decode, encode
from tests.reference.entry_strategies import messages

STAMP = Stamp(segment_id=3, first_offset=100, publish_time_ms=1_700_000_000_000, term=2, durable_upto=90, salt=77)
THREE = [PlainMessage(b"a" * 40, b"k", sequence_id=5), PlainMessage(b"b" * 40, b"", sequence_id=6)]


def plain(message: EntryMessage) -> PlainMessage:
    return PlainMessage(
        message.value,
        message.key,
        message.properties,
        message.event_time_ms,
        message.sequence_id,
        message.deliver_at_ms,
    )


def inflate(codec: int, body: memoryview, raw_size: int) -> bytes:
    return zlib.decompress(body)


@given(messages())
def test_messages_come_back_as_they_were(sent: list[PlainMessage]):
    entry = Entry(encode(sent))
    assert [plain(m) for m in entry.messages()] == sent == decode(entry.data())
    assert entry.count == len(entry) == len(sent)
    assert (entry.first_sequence, entry.last_sequence) == (sent[0].sequence_id, sent[-1].sequence_id)


@given(messages(), st.booleans())
def test_compressed_messages_come_back_as_they_were(sent: list[PlainMessage], repeat: bool):
    sent = [sent[0]] * 50 if repeat else sent
    data = encode(sent)
    packed = compress(data, 1, lambda body: zlib.compress(body))
    assert len(packed) <= len(data)
    assert verify(packed) == 1
    entry = Entry(packed)
    assert [plain(m) for m in entry.messages(inflate)] == decode(data)
    assert entry.raw_size == len(data) - 128


@given(messages(), st.booleans())
def test_the_largest_message_is_found(sent: list[PlainMessage], packed: bool):
    data = encode(sent)
    entry = Entry(compress(data, 1, lambda body: zlib.compress(body)) if packed else data)
    kept = [msgpack.packb(one.properties) if one.properties else b"" for one in sent]
    sizes = [len(m.value) + len(m.key or b"") + len(own) for m, own in zip(sent, kept, strict=True)]
    assert entry.largest_message(inflate) == max(sizes)


def test_header_fields_are_shown():
    data = encode(
        THREE, producer=b"maker", producer_id=9, buckets=(1, 2), segment_hashes=(3, 4), txn=(5, 6), stamp=STAMP
    )
    entry = Entry(data)
    assert (entry.size, entry.flags, entry.compression) == (len(data), 3, 0)
    assert (entry.bucket_min, entry.bucket_max, entry.segment_hash_min, entry.segment_hash_max) == (1, 2, 3, 4)
    assert (entry.producer_name, entry.producer_id, entry.txn) == ("maker", 9, (5, 6))
    assert (entry.segment_id, entry.term, entry.first_offset, entry.durable_upto) == (3, 2, 100, 90)
    assert entry.publish_time_ms == 1_700_000_000_000
    assert repr(entry) == f"<Entry segment=3 offset=100 count=2 size={len(data)}>"
    assert Entry(encode(THREE)).txn is None


def test_a_block_is_walked_and_verified():
    block = encode(THREE) + encode(THREE[:1]) + encode(THREE)
    assert [e.count for e in walk(block)] == [2, 1, 2]
    assert verify(block) == 3
    assert walk(b"") == []
    assert verify(b"") == 0


def test_verify_names_the_byte_of_the_damage():
    first, second = encode(THREE), bytearray(encode(THREE))
    second[-9] ^= 1
    assert len(walk(first + bytes(second))) == 2  # walking looks at headers alone
    with pytest.raises(CorruptionError, match=f"byte {len(first)} of the block: the entry's body fails its checksum"):
        verify(first + bytes(second))


def test_entries_keep_their_buffer_alive():
    entry = walk(bytes(bytearray(encode(THREE))))[0]
    assert [m.value for m in entry.messages()] == [m.value for m in THREE]


def test_an_unaligned_buffer_is_read():
    data = encode(THREE)
    for shift in range(1, 8):
        view = memoryview(bytes(shift) + data)[shift:]
        assert [m.value for m in Entry(view).messages()] == [m.value for m in THREE]


@pytest.mark.parametrize("bad", ["text", 7, None, memoryview(bytes(256))[::2]])
def test_what_is_not_bytes_is_refused(bad: object):
    with pytest.raises(InvalidArgumentError, match="contiguous bytes"):
        walk(bad)  # type: ignore[arg-type]


def test_a_compressed_entry_needs_a_decompressor():
    packed = compress(encode(THREE), 2, lambda body: zlib.compress(body))
    with pytest.raises(UnsupportedError, match="compressed"):
        Entry(packed).messages()
    with pytest.raises(InvalidArgumentError, match="the entry uncompressed"):
        compress(packed, 2, lambda body: zlib.compress(body))
    with pytest.raises(InvalidArgumentError, match="codec"):
        compress(encode(THREE), 3, lambda body: zlib.compress(body))


def test_compression_that_saves_nothing_is_left():
    data = encode(THREE)
    assert compress(data, 1, bytes) is data


@pytest.mark.parametrize(
    "wrong", [lambda *_: b"", lambda c, b, n: bytes(n + 1), lambda c, b, n: bytearray(n), lambda *_: 1 / 0]
)
def test_a_body_of_another_size_is_corruption(wrong: object):
    entry = Entry(compress(encode(THREE, stamp=STAMP), 1, lambda body: zlib.compress(body)))
    with pytest.raises(CorruptionError, match="segment 3, offset 100: the body"):
        entry.messages(wrong)  # type: ignore[arg-type]


def test_entries_of_the_batcher_are_what_was_sent():
    batcher = Batcher(b"maker", first_sequence=7)
    batcher.set_layout([0], [1], [[0xFFFF]])
    batcher.send_nowait(b"one", key="k", properties={"a": "b"}, event_time=5)
    batcher.send_nowait(b"two", key=b"k", sequence_id=20)
    batcher.send_nowait(b"three")
    batcher.seal_all()
    entries = sorted((Entry(sealed.data) for sealed in batcher.take()), key=lambda e: e.count)
    keyless, keyed = [[plain(m) for m in e.messages()] for e in entries]
    assert [m.value for m in keyless] == [b"three"]
    assert keyed == [
        PlainMessage(b"one", b"k", {"a": "b"}, 5, keyed[0].sequence_id),
        PlainMessage(b"two", b"k", {}, None, 20),
    ]
    for entry in entries:
        assert decode(entry.data()) == [plain(m) for m in entry.messages()]
        assert entry.producer_name == "maker"
