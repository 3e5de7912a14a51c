"""Damaged, cut and malicious entries: CorruptionError and nothing else, never a read out of bounds."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.consume.batch import MessageBatch, decode_block
from engine._native.format.entry import verify, walk
from engine._native.serve import log
from engine.errors import CorruptionError
from engine.limits import ENTRY_SIZE_MAX
from tests.reference.entry_reference import DELIVER_AT, PROPERTIES, PlainMessage, Stamp, body_of, encode, sealed

STAMP = Stamp(segment_id=3, first_offset=100, publish_time_ms=1_700_000_000_000, term=2, durable_upto=90, salt=77)
RICH = [
    PlainMessage(b"value", b"key", {"a": "b"}, 1, 5, 2),
    PlainMessage(b"", b"", {}, None, 7, None),
    PlainMessage(b"x" * 30, b"order-42", {"ü": "", "n": "1"}, -1, 8, 3),
]


def inflate(codec: int, body: memoryview, raw_size: int) -> bytes:
    """A decompressor that believes the header, and makes the size right."""
    return bytes(body)[:raw_size].ljust(raw_size, b"\0")


def use(block: bytes) -> int:
    """Decode a block and ask for everything in it; how many messages it had."""
    entries = decode_block(block, STAMP.salt, STAMP.segment_id, -1, inflate)
    batch = MessageBatch("t", [(e, 0, e.count) for e in entries], {}, lambda *_: None)
    for message in batch:
        assert len(message.value) + len(message.key or b"") == message.size
        assert message.properties is not None
        assert isinstance(message.producer_name, str)
        assert isinstance(message.event_time_ms, int | None)
        assert message.sequence_id >= 0
    for entry in entries:
        entry.messages()
    assert sum(len(v) for v in batch.values) + sum(len(k or b"") for k in batch.keys) == batch.size
    table = batch.to_arrow()
    table.validate(full=True)
    return table.num_rows


def refused(block: bytes, match: str = "segment 3") -> None:
    with pytest.raises(CorruptionError, match=match):
        use(block)


def test_every_flipped_bit_is_detected():
    block = encode(RICH, stamp=STAMP)
    assert use(block) == 3
    for bit in range(8 * len(block)):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_block(bytes(damaged), STAMP.salt, STAMP.segment_id)


def test_every_flipped_bit_of_the_producers_part_is_detected_before_the_stamp():
    data = encode(RICH)
    for bit in [*range(8 * 80), *range(8 * 128, 8 * len(data))]:
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            verify(damaged)


def test_every_truncation_is_detected():
    block = encode(RICH, stamp=STAMP) + encode(RICH, stamp=Stamp(3, 103, 0, 2, 90, 77))
    assert use(block) == 6
    for size in range(1, len(block)):
        if size != len(block) // 2:
            refused(block[:size])


@given(st.binary(min_size=1, max_size=400))
def test_garbage_is_refused(garbage: bytes):
    for read in (walk, verify, use):
        with pytest.raises(CorruptionError):
            read(garbage)


@given(st.binary(max_size=300))
def test_garbage_behind_a_good_header_is_refused(garbage: bytes):
    refused(encode(RICH, stamp=STAMP)[:128] + garbage)


@pytest.mark.parametrize(
    ("at", "form", "value", "match"),
    [
        (0, "I", 0x12345678, "magic"),
        (4, "I", 120, "size"),
        (4, "I", 132, "size"),
        (4, "I", ENTRY_SIZE_MAX + 8, "size"),
        (16, "B", 2, "version"),
        (17, "B", 64 | 63, "version, flag"),
        (18, "B", 3, "version, flag or compression"),
        (18, "B", 1, "contradict"),  # compressed, though it has deliver-at times
        (19, "B", 1, "contradict"),
        (20, "I", 0, "contradict"),
        (20, "I", 4, "contradict"),
        (20, "I", 65_535, "contradict"),
        (20, "I", 65_536, "contradict"),
        (20, "I", 2**32 - 1, "contradict"),
        (24, "I", 0, "contradict"),
        (24, "I", 2**32 - 8, "contradict"),
        (28, "H", 1, "contradict"),  # bucket_min above bucket_max
        (32, "H", 1, "contradict"),
        (36, "H", 9, "contradict"),
        (36, "H", 257, "contradict"),
    ],
)
def test_headers_that_lie_under_good_checksums(at: int, form: str, value: int, match: str):
    entry = bytearray(encode(RICH))
    struct.pack_into("<" + form, entry, at, value)
    refused(sealed(bytes(entry), STAMP), match)


@pytest.mark.parametrize("column", [0, 16, 32 + 16 + 40 + 24 + 16 + 24])  # key, value and property offsets
@pytest.mark.parametrize("item", range(4))
@pytest.mark.parametrize("value", [-1, 1, -(2**31), 2**31 - 1, 10_000])
def test_offsets_that_leave_their_column(column: int, item: int, value: int):
    entry = bytearray(encode(RICH))
    assert struct.unpack_from("<i", entry, 128 + column) == (0,)
    struct.pack_into("<i", entry, 128 + column + 4 * item, value)
    try:
        use(sealed(bytes(entry), STAMP))
    except CorruptionError:
        return
    assert value == 1  # inside the column, and rising: other text, but nobody else's bytes
    assert item in (1, 2)


def test_a_column_that_is_announced_and_missing():
    plain = [PlainMessage(b"v", sequence_id=1)]
    for flag in (1, PROPERTIES, 8, 16, DELIVER_AT, 63 - 2):
        refused(encode(plain, flags=flag, body=body_of(plain, 0, b"producer"), stamp=STAMP), "contradict")


@pytest.mark.parametrize(
    "packed",
    [b"\x81", b"\xa1a", b"\x81\xa1a", b"\x81\xa1a\x01", b"\x81\x01\xa1a", b"\xdf\xff\xff\xff\xff", b"\x80\x00",
     b"\x81\xdb\xff\xff\xff\xffa", b"\x81\xa1\xff\xa1a", b"\x81\xa1a\xa2\xc3\x28", b"\xde\x00", b"\xc0"],
)  # fmt: skip
def test_properties_that_are_no_map_of_text(packed: bytes):
    offsets = struct.pack("<4i", 0, 1, 1, 1)
    maps = struct.pack("<4i", 0, 0, len(packed), len(packed))
    body = offsets + b"v".ljust(8, b"\0") + maps + packed.ljust(-(-len(packed) // 8) * 8, b"\0") + b"producer"
    three = [PlainMessage(b"v", sequence_id=i) for i in range(3)]
    [entry] = decode_block(encode(three, flags=PROPERTIES, body=body, stamp=STAMP), 77, 3)
    batch = MessageBatch("t", [(entry, 0, 3)], {}, lambda *_: None)
    assert batch[0].properties == batch[2].properties == {}
    for ask in (lambda: batch[1].properties, batch.to_arrow, entry.messages):
        with pytest.raises(CorruptionError, match="segment 3, offset 101: the properties"):
            ask()


# The edges of UTF-8: first and last of each length; then overlong forms, surrogates, cut sequences, stray bytes.
TEXTS = [
    b"plain", b"long enough to be looked at in blocks", b"\xc2\x80", b"\xdf\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf",
    b"\xee\x80\x80", b"\xef\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf",
    b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x8f\xbf\xbf",
    b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\x80", b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3(",
    b"\xe2(\xa1",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("around", [b"", b"eight by"])
def test_broker_and_readers_take_the_same_text_as_python(text: bytes, around: bytes):
    text = around + text + around
    packed = b"\x81\xa1a\xd9" + bytes([len(text)]) + text
    body = struct.pack("<2i", 0, 1) + b"v".ljust(8, b"\0") + struct.pack("<2i", 0, len(packed))
    body += packed.ljust(-(-len(packed) // 8) * 8, b"\0") + b"producer"
    block = encode([PlainMessage(b"v", sequence_id=0)], flags=PROPERTIES, body=body, stamp=STAMP)
    [entry] = decode_block(block, 77, 3)
    batch = MessageBatch("t", [(entry, 0, 1)], {}, lambda *_: None)
    asks = [lambda: log.entries(block), lambda: batch[0].properties, lambda: batch.to_arrow().validate(full=True)]
    try:
        text.decode()
    except UnicodeDecodeError:
        for ask in asks:
            with pytest.raises(CorruptionError):
                ask()
    else:
        for ask in asks:
            ask()
        assert batch[0].properties == {"a": text.decode()}


def mutate(rng: random.Random, entry: bytes) -> bytes:
    """The entry with a few bytes or numbers of it replaced, under checksums that are right again."""
    damaged = bytearray(entry)
    for _ in range(rng.randint(1, 4)):
        at = rng.choice([rng.randrange(16, 80), rng.randrange(128, len(damaged)), rng.randrange(128, 160)])
        if rng.random() < 0.5:
            damaged[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        else:
            at = min(at - at % 4, len(damaged) - 4)
            number = rng.choice([0, 1, -1, 7, 8, 2**31 - 1, -(2**31), len(entry), rng.randrange(64)])
            struct.pack_into("<i", damaged, at, number)
    return sealed(bytes(damaged), STAMP)


def fuzz(seed: int, rounds: int) -> None:
    rng = random.Random(seed)
    seeds = [encode(RICH), encode([PlainMessage(b"ab", sequence_id=i) for i in range(3)]), encode(RICH[:1])]
    for number in range(rounds):
        block = mutate(rng, rng.choice(seeds))
        try:
            use(block)
        except CorruptionError:
            continue
        except BaseException as error:
            raise AssertionError(f"seed {seed}, round {number}: {block.hex()}") from error


def test_mutations_under_good_checksums():
    fuzz(seed=1, rounds=1500)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
def test_mutations_under_good_checksums_for_long():
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    fuzz(seed, rounds=300_000)
