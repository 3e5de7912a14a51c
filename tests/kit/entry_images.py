"""Entries made by hand, byte by byte, so that storage is tested against the format and not against the producer."""

from __future__ import annotations

import struct

from engine._native.format.crc32c import crc32c
from engine._native.produce.hashing import xxh64

_HEAD = struct.Struct("<BBBBIIHHHHHHQQQQQ")
KEYED, TRANSACTIONAL, SEQUENCES = 1, 2, 16


def entry(
    sequence: int = 0,
    values: tuple[bytes, ...] = (b"v",),
    *,
    producer: str = "p",
    bucket: tuple[int, int] = (0, 0),
    segment_hash: tuple[int, int] = (0, 0),
    flags: int = 0,
    last_sequence: int | None = None,
    transaction: tuple[int, int] | None = None,
) -> bytes:
    """One sealed entry, keyless; with the flag KEYED all keys are empty. `last_sequence`: ids that leave some out."""
    flags |= 0 if transaction is None else TRANSACTIONAL
    count = len(values)
    offsets, at = [0], 0
    for value in values:
        at += len(value)
        offsets.append(at)
    body = _pad(bytes(4 * (count + 1))) if flags & KEYED else b""
    body += _pad(struct.pack(f"<{count + 1}i", *offsets)) + _pad(b"".join(values))
    last = sequence + count - 1 if last_sequence is None else last_sequence
    if last - sequence != count - 1:
        flags |= SEQUENCES
        body += _pad(struct.pack(f"<{count}I", *range(count - 1), last - sequence))
    body += _pad(producer.encode())
    head = _HEAD.pack(
        1, flags, 0, 0, count, len(body), *bucket, *segment_hash, len(producer.encode()), 0,
        xxh64(producer.encode()), sequence, last, *(transaction or (0, 0)),
    )  # fmt: skip
    sealed = struct.pack("<I", crc32c(body)) + head
    return struct.pack("<III", 0x52544E45, 128 + len(body), crc32c(sealed)) + sealed + bytes(48) + body


def _pad(data: bytes) -> bytes:
    return data.ljust((len(data) + 7) & ~7, b"\0")


def values_of(block: bytes | memoryview) -> list[tuple[int, bytes]]:
    """(offset, value) of every message in a block of uncompressed entries, whose keys, if any, are empty."""
    data, at, found = bytes(block), 0, []
    while at < len(data):
        size, count = struct.unpack_from("<I", data, at + 4)[0], struct.unpack_from("<I", data, at + 20)[0]
        first = struct.unpack_from("<Q", data, at + 88)[0]
        column = (4 * (count + 1) + 7) & ~7
        body = at + 128 + (column if data[at + 17] & KEYED else 0)
        offsets, start = struct.unpack_from(f"<{count + 1}i", data, body), body + column
        found += [(first + i, data[start + offsets[i] : start + offsets[i + 1]]) for i in range(count)]
        at += size
    return found
