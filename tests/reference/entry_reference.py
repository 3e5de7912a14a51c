"""The entry as plain Python: slow, obvious, and independent of the native code it is compared with."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgpack

HEADER = struct.Struct("<IIII BBBB II HHHH HH QQQ QQ")  # up to the stamp
STAMP = struct.Struct("<I I Q q Q Q Q")
KEYED, TRANSACTIONAL, PROPERTIES, EVENT_TIMES, SEQUENCES, DELIVER_AT = 1, 2, 4, 8, 16, 32
NO_TIME = -(2**63)

assert HEADER.size == 80
assert STAMP.size == 48


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = _table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC32C, one byte at a time."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@dataclass(frozen=True)
class PlainMessage:
    """What stands in an entry about one message."""

    value: bytes
    key: bytes | None = None
    properties: dict[str, str] = field(default_factory=dict)
    event_time_ms: int | None = None
    sequence_id: int = 0
    deliver_at_ms: int | None = None


@dataclass(frozen=True)
class Stamp:
    """What the broker adds."""

    segment_id: int = 0
    first_offset: int = 0
    publish_time_ms: int = 0
    term: int = 0
    durable_upto: int = 0
    salt: int = 0


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _offsets(items: Sequence[bytes]) -> bytes:
    ends = [0]
    for item in items:
        ends.append(ends[-1] + len(item))
    return _padded(struct.pack(f"<{len(ends)}i", *ends))


def _times(times: Sequence[int | None]) -> bytes:
    return struct.pack(f"<{len(times)}q", *[NO_TIME if t is None else t for t in times])


def flags_of(messages: Sequence[PlainMessage]) -> int:
    """The flags that these messages need."""
    first = messages[0].sequence_id
    flags = KEYED if messages[0].key is not None else 0
    flags |= PROPERTIES if any(m.properties for m in messages) else 0
    flags |= EVENT_TIMES if any(m.event_time_ms is not None for m in messages) else 0
    flags |= SEQUENCES if any(m.sequence_id != first + i for i, m in enumerate(messages)) else 0
    flags |= DELIVER_AT if any(m.deliver_at_ms is not None for m in messages) else 0
    return flags


def body_of(messages: Sequence[PlainMessage], flags: int, producer: bytes) -> bytes:
    """The columns, in their order."""
    keys = [m.key or b"" for m in messages]
    values = [m.value for m in messages]
    body = (_offsets(keys) if flags & KEYED else b"") + _offsets(values)
    body += (_padded(b"".join(keys)) if flags & KEYED else b"") + _padded(b"".join(values))
    if flags & EVENT_TIMES:
        body += _times([m.event_time_ms for m in messages])
    if flags & SEQUENCES:
        first = messages[0].sequence_id
        body += _padded(struct.pack(f"<{len(messages)}I", *[m.sequence_id - first for m in messages]))
    if flags & DELIVER_AT:
        body += _times([m.deliver_at_ms for m in messages])
    if flags & PROPERTIES:
        maps = [msgpack.packb(m.properties) if m.properties else b"" for m in messages]
        body += _offsets(maps) + _padded(b"".join(maps))
    return body + _padded(producer)


def encode(
    messages: Sequence[PlainMessage],
    *,
    producer: bytes = b"producer",
    producer_id: int = 7,
    buckets: tuple[int, int] = (0, 0),
    segment_hashes: tuple[int, int] = (0, 0),
    txn: tuple[int, int] | None = None,
    stamp: Stamp | None = None,
    flags: int | None = None,
    body: bytes | None = None,
) -> bytes:
    """The entry of these messages. `flags` and `body` replace what would be right, for tests of what is not."""
    if flags is None:
        flags = flags_of(messages) | (TRANSACTIONAL if txn else 0)
    if body is None:
        body = body_of(messages, flags, producer)
    count, sequences = len(messages), [m.sequence_id for m in messages] or [0]
    rest = struct.pack(
        "<BBBB II HHHH HH QQQ QQ",
        1, flags, 0, 0, count, len(body), *buckets, *segment_hashes, len(producer), 0,
        producer_id, sequences[0], sequences[-1], *(txn or (0, 0)),
    )  # fmt: skip
    return sealed(b"ENTR" + struct.pack("<III", 128 + len(body), 0, 0) + rest + bytes(48) + body, stamp)


def sealed(entry: bytes, stamp: Stamp | None = None) -> bytes:
    """The entry with its checksums made right, and stamped when a stamp is given."""
    body_crc = struct.pack("<I", crc32c(entry[128:]))
    header_crc = struct.pack("<I", crc32c(body_crc + entry[16:80]))
    entry = entry[:8] + header_crc + body_crc + entry[16:]
    return stamped(entry, stamp) if stamp else entry


def stamped(entry: bytes, stamp: Stamp) -> bytes:
    """The entry with the broker's part and its checksum."""
    rest = struct.pack(
        "<IQqQQQ", stamp.term, stamp.first_offset, stamp.publish_time_ms, stamp.durable_upto, stamp.segment_id, 0
    )
    crc = crc32c(rest, crc32c(entry[:80], stamp.salt))
    return entry[:80] + struct.pack("<I", crc) + rest + entry[128:]


def _texts(body: bytes, at: int, ends: Sequence[int]) -> list[bytes]:
    return [body[at + start : at + stop] for start, stop in pairwise(ends)]


def decode(entry: bytes) -> list[PlainMessage]:
    """The messages of an undamaged, uncompressed entry."""
    fields = HEADER.unpack_from(entry)
    flags, count, first_sequence, body, at = fields[5], fields[8], fields[17], entry[128:], 0

    def take(form: str) -> tuple[int, ...]:
        nonlocal at
        numbers = struct.unpack_from(form, body, at)
        at += -(-struct.calcsize(form) // 8) * 8
        return numbers

    def take_texts(ends: Sequence[int]) -> list[bytes]:
        nonlocal at
        texts = _texts(body, at, ends)
        at += -(-ends[-1] // 8) * 8
        return texts

    key_ends = take(f"<{count + 1}i") if flags & KEYED else ()
    value_ends = take(f"<{count + 1}i")
    keys: Sequence[bytes | None] = take_texts(key_ends) if key_ends else [None] * count
    values = take_texts(value_ends)
    events = take(f"<{count}q") if flags & EVENT_TIMES else [NO_TIME] * count
    deltas = take(f"<{count}I") if flags & SEQUENCES else range(count)
    delivers = take(f"<{count}q") if flags & DELIVER_AT else [NO_TIME] * count
    maps = take_texts(take(f"<{count + 1}i")) if flags & PROPERTIES else [b""] * count
    return [
        PlainMessage(
            values[i],
            keys[i],
            msgpack.unpackb(maps[i]) if maps[i] else {},
            None if events[i] == NO_TIME else events[i],
            first_sequence + deltas[i],
            None if delivers[i] == NO_TIME else delivers[i],
        )
        for i in range(count)
    ]
