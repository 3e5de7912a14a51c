"""Entries that lie under good checksums: every way of it that we know, each as one change of a good entry.

`FORMS` says of each whether a broker refuses it, and what consumers make of one that is in a log nevertheless, as one
that an older broker took, or one whose body no broker opens. The good entry has five messages.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

import cramjam
import zstandard

from engine._native.format.crc32c import crc32c
from engine._native.produce.hashing import xxh64
from engine.limits import ENTRY_SIZE_MAX, KEY_SIZE_MAX, MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX
from tests.reference.entry_reference import (
    DELIVER_AT,
    EVENT_TIMES,
    KEYED,
    PROPERTIES,
    SEQUENCES,
    PlainMessage,
    body_of,
    flags_of,
)

COUNT = 5
REFUSED = "refused"  # by the broker, whatever is behind the header; it never was in a log
DAMAGED = "damaged"  # a consumer reports it, and may skip it
READABLE = "readable"  # a consumer reads its values

HEAD = struct.Struct("<BBBB II HHHH HH QQQ QQ")
FIELDS = (
    "version", "flags", "codec", "padding", "count", "raw_size", "bucket_min", "bucket_max", "hash_min", "hash_max",
    "name_size", "lag",
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """`make(first sequence)` is the unstamped image. `taken`: by a broker. `read`: what a consumer makes of it."""

    name: str
    make: Callable[[int], bytes]
    taken: bool
    read: str


def messages(first: int, **change: object) -> list[PlainMessage]:
    """Five with keys, properties and event times; `change` is of the third."""
    made = [PlainMessage(b"hostile-%d" % i, b"key", {"a": "b"}, 1000 + i, first + i) for i in range(COUNT)]
    if change:
        made[2] = PlainMessage(**{**made[2].__dict__, **change})  # type: ignore[arg-type]
    return made


def seal(
    body: bytes, first: int, flags: int, *, name: bytes = b"producer", last: int | None = None, **head: int
) -> bytes:
    """An entry of this body, uncompressed unless `head` says something else, with good checksums."""
    codec, name = head.get("codec", 0), b"producer"
    padding = -len(body) % 8 if codec else 0
    fields = {
        "version": 1, "flags": flags, "codec": codec, "padding": padding, "count": COUNT, "raw_size": len(body),
        "bucket_min": 0, "bucket_max": 0, "hash_min": 0, "hash_max": 0, "name_size": len(name), "lag": 0, **head,
    }  # fmt: skip
    body += bytes(padding)
    last = first + COUNT - 1 if last is None else last
    rest = HEAD.pack(*(fields[field] for field in FIELDS), xxh64(name), first, last, 0, 0)
    sealed = struct.pack("<I", crc32c(body)) + rest
    return struct.pack("<4sII", b"ENTR", 128 + len(body), crc32c(sealed)) + sealed + bytes(48) + body


ALL = KEYED | PROPERTIES | EVENT_TIMES
# Where columns of the good entry begin: key offsets, value offsets, keys, values, event times, property offsets.
KEYS, VALUES = 0, 24
TIMES = 24 + 24 + 16 + 48
PROPERTY_OFFSETS = TIMES + 8 * COUNT


def good(first: int) -> bytes:
    """One that everybody takes."""
    return seal(_body(first), first, ALL)


def _body(first: int, flags: int = ALL, **change: object) -> bytes:
    return body_of(messages(first, **change), flags, b"producer")


def _put(at: int, form: str, *numbers: int) -> Callable[[int], bytes]:
    """Numbers at a place of the body."""

    def make(first: int) -> bytes:
        body = bytearray(_body(first))
        struct.pack_into("<" + form, body, at, *numbers)
        return seal(bytes(body), first, ALL)

    return make


def _head(flags: int = ALL, **fields: int) -> Callable[[int], bytes]:
    return lambda first: seal(_body(first), first, flags, **fields)


def _announced(flag: int) -> Callable[[int], bytes]:
    """A column that is not there."""
    return lambda first: seal(body_of(messages(first), 0, b"producer"), first, flag)


def _changed(**change: object) -> Callable[[int], bytes]:
    return lambda first: seal(_body(first, **change), first, ALL)


def _maps(third: bytes) -> Callable[[int], bytes]:
    """Properties of the third message."""

    def make(first: int) -> bytes:
        plain = body_of(messages(first), 0, b"")
        ends = [0, 0, 0, *[len(third)] * 3]
        column = struct.pack("<6i", *ends) + third.ljust(-(-len(third) // 8) * 8, b"\0")
        return seal(plain + column + b"producer", first, PROPERTIES)

    return make


def _sequences(*deltas: int, last: int = COUNT - 1) -> Callable[[int], bytes]:
    def make(first: int) -> bytes:
        column = struct.pack(f"<{COUNT}I", *deltas) + bytes(4)
        return seal(body_of(messages(first), 0, b"") + column + b"producer", first, SEQUENCES, last=first + last)

    return make


def _delivered(first: int) -> list[PlainMessage]:
    return [PlainMessage(b"later", sequence_id=first + i, deliver_at_ms=5) for i in range(COUNT)]


def _packed(
    codec: int,
    pack: Callable[[bytes], bytes],
    raw: Callable[[bytes], bytes] = bytes,
    flags: int = ALL,
    **head: int,
) -> Callable[[int], bytes]:
    """A compressed entry whose body becomes raw(the good one)."""

    def make(first: int) -> bytes:
        body = raw(_body(first))
        return seal(pack(body), first, flags, **{"codec": codec, "raw_size": len(body), **head})

    return make


def _lz4(body: bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(body, store_size=False))


def _zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(body)


def _zstd_of_no_size(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_content_size=False).compress(body)


def _noise(body: bytes) -> bytes:
    return random.Random(7).randbytes(len(body))


def _falling(body: bytes) -> bytes:
    image = bytearray(body)
    struct.pack_into("<i", image, VALUES + 8, 1)
    return bytes(image)


def _no_map(body: bytes) -> bytes:
    image = bytearray(body)
    at = PROPERTY_OFFSETS + 24
    assert image[at] == 0x81
    image[at] = 0xC1
    return bytes(image)


def _zeros(body: bytes) -> bytes:
    return bytes(ENTRY_SIZE_MAX)


def _form(name: str, make: Callable[[int], bytes], read: str, *, taken: bool = False) -> Form:
    return Form(name, make, taken, read)


TOO_LONG = "x" * (PROPERTIES_SIZE_MAX - 4)

FORMS = [
    # The header lies.
    _form("unknown version", _head(version=2), REFUSED),
    _form("unknown flag", _head(flags=ALL | 64), REFUSED),
    _form("unknown codec", _head(codec=3), REFUSED),
    _form("no messages", _head(count=0), REFUSED),
    _form("more messages than any entry", _head(count=65_536), REFUSED),
    _form("a raw size that is not the body's", _head(raw_size=64), REFUSED),
    _form("buckets the wrong way round", _head(bucket_min=1), REFUSED),
    _form("segment hashes the wrong way round", _head(hash_min=1), REFUSED),
    _form("a longer name than any", _head(name_size=257), REFUSED),
    _form("a compressed body of a larger size than any", _packed(2, _zstd, raw_size=ENTRY_SIZE_MAX), REFUSED),
    _form("compressed with times to deliver at",
          lambda first: seal(_zstd(body_of(_delivered(first), DELIVER_AT, b"producer")), first, DELIVER_AT, codec=2,
                             raw_size=160), REFUSED),
    # The header and the columns disagree.
    _form("one message too many", _head(count=COUNT + 1), DAMAGED),
    _form("one message too few", _head(count=COUNT - 1), DAMAGED),
    _form("as many messages as an entry has at most", _head(count=65_535), DAMAGED),
    _form("a longer name than is there", _head(name_size=16), DAMAGED),
    _form("keys that are missing", _announced(KEYED), DAMAGED),
    _form("event times that are missing", _announced(EVENT_TIMES), DAMAGED),
    _form("sequences that are missing", _announced(SEQUENCES), DAMAGED),
    _form("properties that are missing", _announced(PROPERTIES), DAMAGED),
    _form("times to deliver at that are missing", _announced(DELIVER_AT), DAMAGED),
    _form("bytes behind the columns", lambda first: seal(_body(first) + bytes(8), first, ALL), DAMAGED),
    _form("half of the event times", lambda first: seal(
        _body(first)[:TIMES] + _body(first)[TIMES + 24:], first, ALL), DAMAGED),
    # Offsets.
    _form("value offsets that fall", _put(VALUES + 8, "i", 1), DAMAGED),
    _form("value offsets that do not begin at 0", _put(VALUES, "i", 1), DAMAGED),
    _form("a value offset below 0", _put(VALUES + 4, "i", -1), DAMAGED),
    _form("value offsets that leave the body", _put(VALUES + 20, "i", 2**31 - 1), DAMAGED),
    _form("key offsets that fall", _put(KEYS + 8, "i", 1), DAMAGED),
    _form("key offsets that leave the body", _put(KEYS + 20, "i", 2**30), DAMAGED),
    _form("property offsets that fall", _put(PROPERTY_OFFSETS + 8, "i", 1), DAMAGED),
    # What a consumer can live with, and a broker need not take.
    _form("a value above the limit", _changed(value=bytes(MESSAGE_SIZE_MAX + 1)), READABLE),
    _form("a key above the limit", _changed(key=bytes(KEY_SIZE_MAX + 1)), READABLE),
    _form("properties above the limit", _changed(properties={"a": TOO_LONG}), READABLE),
    _form("properties that are no map", _maps(b"\xc1"), READABLE),
    _form("properties that are not text", _maps(b"\x81\xa1a\x01"), READABLE),
    _form("properties that are not UTF-8", _maps(b"\x81\xa1a\xa2\xc3\x28"), READABLE),
    _form("properties with something behind", _maps(b"\x80\x00"), READABLE),
    _form("properties of four thousand million pairs", _maps(b"\xdf\xff\xff\xff\xff"), READABLE),
    _form("a last sequence id below the first", lambda first: seal(
        body_of(messages(first), 0, b"producer"), first + 10, 0, last=first), READABLE),
    _form("a last sequence id above what is there", _sequences(0, 1, 2, 3, 4, last=9), READABLE),
    _form("sequence ids that fall", _sequences(0, 2, 1, 3, 4), READABLE),
    _form("sequence ids that count up by one and do not end so", lambda first: seal(
        body_of(messages(first), 0, b"producer"), first, 0, last=first + 100), READABLE),
    # Compressed, and the broker sees it.
    _form("zstd that is noise", _packed(2, _noise), DAMAGED),
    _form("zstd that says another size", _packed(2, _zstd, raw_size=len(_body(0)) + 8), DAMAGED),
    _form("zstd of a dictionary", _packed(2, lambda body: _zstd(body)[:4] + b"\x03" + _zstd(body)[5:]), DAMAGED),
    _form("zstd that is empty", lambda first: seal(b"", first, ALL, codec=2, raw_size=len(_body(first))), DAMAGED),
    _form("zstd that becomes nothing", _packed(2, _zstd, raw_size=0), DAMAGED),
    _form("lz4 that becomes nothing", _packed(1, _lz4, raw_size=0), DAMAGED),
    _form("lz4 that cannot become so large", _packed(1, _lz4, raw_size=ENTRY_SIZE_MAX - 128), DAMAGED),
    _form("lz4 with less room than its columns take", _packed(1, _lz4, count=65_535), DAMAGED),
    _form("lz4 of no whole number of columns", _packed(1, _lz4, raw_size=len(_body(0)) - 1), DAMAGED),
    # Compressed, and only who opens it sees it.
    _form("zstd that breaks off", _packed(2, lambda body: _zstd(body)[:-8]), DAMAGED, taken=True),
    _form("zstd that is noise behind its head", _packed(2, lambda body: _zstd(body)[:9] + _noise(body)), DAMAGED,
          taken=True),
    _form("zstd that becomes more than it says", _packed(2, lambda body: _zstd_of_no_size(_zeros(body))), DAMAGED,
          taken=True),
    _form("zstd that becomes less than it says", _packed(2, _zstd_of_no_size, raw_size=len(_body(0)) + 8), DAMAGED,
          taken=True),
    _form("lz4 that is noise", _packed(1, _noise), DAMAGED, taken=True),
    _form("lz4 that becomes another size", _packed(1, _lz4, raw_size=len(_body(0)) + 8), DAMAGED, taken=True),
    _form("lz4 that breaks off", _packed(1, lambda body: _lz4(body)[:-4]), DAMAGED, taken=True),
    _form("falling offsets in zstd", _packed(2, _zstd, _falling), DAMAGED, taken=True),
    _form("falling offsets in lz4", _packed(1, _lz4, _falling), DAMAGED, taken=True),
    _form("zeros in zstd", _packed(2, _zstd, lambda body: bytes(len(body))), DAMAGED, taken=True),
    _form("no map in zstd", _packed(2, _zstd, _no_map), READABLE, taken=True),
]  # fmt: skip

TAKEN_BY_OLDER = [form for form in FORMS if form.read != REFUSED]
DAMAGING = [form for form in FORMS if form.read == DAMAGED]


def flags_are_right() -> bool:
    """Whether the good entry is what the reference would make of it."""
    return flags_of(messages(0)) == ALL
