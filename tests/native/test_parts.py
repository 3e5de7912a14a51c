"""Parts of entries, against the plain model: what a consumer reads in parts is what it reads in the entry."""

from __future__ import annotations

import itertools
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.consume.opening import take_block
from engine._native.format.entry import Entry, compress
from engine._native.serve.parts import OpenEntry
from engine.errors import CorruptionError, InvalidArgumentError, UnsupportedError
from tests.reference.entry_reference import PlainMessage, Stamp, decode, encode, stamped
from tests.reference.entry_strategies import messages

FIRST, SALT = 100, 77
STAMP = Stamp(segment_id=3, first_offset=FIRST, publish_time_ms=1_700_000_000_000, term=2, durable_upto=90, salt=SALT)
MADE = {"producer": b"maker", "producer_id": 9, "buckets": (1, 2), "segment_hashes": (3, 4), "txn": (5, 6)}


def inflate(codec: int, body: memoryview, raw_size: int) -> bytes:
    return zlib.decompress(body)


def read(part: bytes, first: int) -> Entry:
    """As a consumer reads it: every checksum, the place and the columns are verified."""
    [entry], lost = take_block(part, SALT, STAMP.segment_id, first)
    assert lost is None
    assert entry.failure is None
    return entry


def image(sent: list[PlainMessage]) -> bytes:
    return encode(sent, stamp=STAMP, **MADE)  # type: ignore[arg-type]


@given(messages(), st.data())
def test_the_parts_of_an_entry_are_its_messages(sent: list[PlainMessage], data: st.DataObject):
    whole = image(sent)
    opened = OpenEntry(whole, SALT)
    assert (opened.first, opened.count, opened.nbytes) == (FIRST, len(sent), len(whole))
    cuts = sorted({0, len(sent), *data.draw(st.lists(st.integers(0, len(sent)), max_size=4))})
    found: list[PlainMessage] = []
    for start, stop in itertools.pairwise(cuts):
        part = opened.part(FIRST + start, FIRST + stop)
        assert len(part) == opened.part_size(FIRST + start, FIRST + stop)
        entry = read(part, FIRST + start)
        assert (entry.first_offset, entry.count) == (FIRST + start, stop - start)
        assert (entry.first_sequence, entry.last_sequence) == (sent[start].sequence_id, sent[stop - 1].sequence_id)
        found += decode(part)
    assert found == sent


@given(messages())
def test_a_part_of_everything_is_the_entry(sent: list[PlainMessage]):
    whole = image(sent)
    assert OpenEntry(whole, SALT).part(FIRST, FIRST + len(sent)) == whole


def test_a_part_keeps_what_the_header_says_of_the_whole():
    whole = Entry(image([PlainMessage(b"value", b"key", sequence_id=i) for i in range(8)]))
    part = Entry(OpenEntry(whole.data(), SALT).part(FIRST + 2, FIRST + 5))
    for name in ("segment_id", "term", "publish_time_ms", "durable_upto", "producer_id", "txn"):
        assert getattr(part, name) == getattr(whole, name), name
    assert part.data()[28:36] == whole.data()[28:36]  # ranges of buckets and segment hashes
    assert part.producer_name == whole.producer_name == "maker"


@given(messages(), st.data())
def test_parts_of_a_compressed_entry_are_not_compressed(sent: list[PlainMessage], data: st.DataObject):
    sent = [PlainMessage(b"x" * 64, sequence_id=i) for i in range(50)] if len(sent) < 5 else sent
    packed = stamped(compress(image(sent), 1, lambda body: zlib.compress(body)), STAMP)
    start = data.draw(st.integers(0, len(sent) - 1))
    opened = OpenEntry(packed, SALT, inflate)
    part = opened.part(FIRST + start, FIRST + len(sent))
    assert part == OpenEntry(image(sent), SALT).part(FIRST + start, FIRST + len(sent))
    assert opened.nbytes >= len(packed)


def test_d6_damage_is_never_sealed_again():
    """Each damaged byte of an entry is found before a part of it is made."""
    whole, rng = image([PlainMessage(b"v" * 20, b"k", sequence_id=i) for i in range(4)]), random.Random(7)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptionError):
            OpenEntry(damaged, SALT)
    for size in (0, 8, 127, 128, len(whole) - 8):
        with pytest.raises(CorruptionError):
            OpenEntry(whole[:size], SALT)
    with pytest.raises(CorruptionError, match="stamp"):
        OpenEntry(whole, SALT + 1)


def test_what_is_no_part_is_refused():
    opened = OpenEntry(image([PlainMessage(b"v", sequence_id=i) for i in range(4)]), SALT)
    for start, stop in [(99, 101), (100, 105), (102, 102), (103, 102), (104, 105)]:
        with pytest.raises(InvalidArgumentError, match="a part must be a range of the offsets 100 to 104"):
            opened.part(start, stop)
    packed = stamped(compress(image([PlainMessage(bytes(200))]), 1, lambda body: zlib.compress(body)), STAMP)
    with pytest.raises(UnsupportedError):
        OpenEntry(packed, SALT)
    with pytest.raises(CorruptionError):
        OpenEntry(packed, SALT, lambda codec, body, raw_size: b"too short")
