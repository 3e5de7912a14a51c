"""Compares a copy with its source: nothing lost, nothing doubled, nothing changed, each key in its order.

Each message becomes a number of 128 bits: a hash of where it was, its key, value, properties, event time and delivery
time. Those of one segment of the source are added up, at the source and at the destination, where its messages may be
in any segment and among others. As a sum does not depend on the order, the order is compared apart: at the destination
each key's messages must come in that of their segments and offsets at the source. That takes some 150 bytes of memory
for each key.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from engine._native.produce.hashing import xxh64
from engine.client import AsyncClient
from engine.client.base.options import Keys
from engine.errors import CorruptionError
from engine.migration.copying import BATCH_MESSAGES, Extent, read_extent
from engine.migration.marker import Marker
from engine.migration.side import Side

SUM_BITS = 128
_HEAD = struct.Struct("<QQqqqq")  # segment, offset, event time, delivery time, sizes of key and value
_NO_TIME = -(2**63)


@dataclass(frozen=True, slots=True)
class Verified:
    """What was compared. `messages`, `keys`: how many. `checksum`: over all of the source, in hexadecimal digits."""

    messages: int
    keys: int
    checksum: str


@dataclass(slots=True)
class Sum:
    """Of the messages that came from one segment."""

    count: int = 0
    total: int = 0

    def add(self, number: int) -> None:
        self.count += 1
        self.total = (self.total + number) % (1 << SUM_BITS)


@dataclass(slots=True)
class Sums:
    """By segment of the source."""

    by_segment: dict[int, Sum] = field(default_factory=dict)

    def add(self, segment_id: int, offset: int, message: Any) -> None:
        """Count one message that was at that place of the source."""
        self.by_segment.setdefault(segment_id, Sum()).add(_number(segment_id, offset, message))

    @property
    def messages(self) -> int:
        return sum(one.count for one in self.by_segment.values())

    @property
    def checksum(self) -> str:
        total = sum(one.total for one in self.by_segment.values()) % (1 << SUM_BITS)
        return f"{total:0{SUM_BITS // 4}x}"


def _number(segment_id: int, offset: int, message: Any) -> int:
    key, value = message.key, message.value
    event = _NO_TIME if message.event_time_ms is None else message.event_time_ms
    due = _NO_TIME if message.deliver_at_ms is None else message.deliver_at_ms
    hashed = blake2b(digest_size=SUM_BITS // 8)
    hashed.update(_HEAD.pack(segment_id, offset, event, due, -1 if key is None else len(key), len(value)))
    hashed.update(key or b"")
    hashed.update(value)
    if message.properties:
        hashed.update(repr(sorted(message.properties.items())).encode(errors="surrogatepass"))
    return int.from_bytes(hashed.digest(), "little")


async def verify(
    sides: tuple[Side, Side],
    names: tuple[str, str],
    copied: Extent,
    keys: tuple[Keys | None, Keys | None],
    marker: Marker,
    progressed: Callable[[int], object],
) -> Verified:
    """Compare what the source still has of the extent with the destination. `keys`: to decrypt with, of both.

    Raises CorruptionError with the first difference of each segment.
    """
    source, destination = sides
    now = await source.run(read_extent(source.client, names[0]))
    ranges = {i: (now.ranges[i][0], end) for i, (_, end) in copied.ranges.items() if i in now.ranges}
    ranges = {i: (first, end) for i, (first, end) in ranges.items() if first < end}
    expected, found = Sums(), Sums()
    async for part, messages in _read(source, names[0], ranges, keys[0], progressed):
        for offset, message in enumerate(messages, part.entry.first_offset + part.start):
            expected.add(part.entry.segment_id, offset, message)
    segment_of = {xxh64(marker.producer(i).encode()): i for i in ranges}
    there = (await destination.run(read_extent(destination.client, names[1]))).ranges
    newest: dict[bytes, tuple[int, int]] = {}
    disorder: list[str] = []
    async for part, messages in _read(destination, names[1], there, keys[1], progressed):
        origin = segment_of.get(part.entry.producer_id)
        if origin is None:
            continue
        first, end = ranges[origin]
        for message in messages:
            at = (origin, message.sequence_id)
            if not first <= at[1] < end:
                continue
            found.add(*at, message)
            if message.key is not None:
                if newest.get(message.key, (-1, -1)) >= at and not disorder:
                    disorder.append(f"key {message.key!r:.80}: {at} comes behind {newest[message.key]}")
                newest[message.key] = at
    _compare(expected, found, disorder, names)
    return Verified(expected.messages, len(newest), expected.checksum)


async def _read(
    side: Side,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    keys: Keys | None,
    progressed: Callable[[int], object],
) -> AsyncIterator[tuple[Any, list[Any]]]:
    """Every slice with its messages, parents before children."""
    reader = await side.run(_reader(side.client, topic, ranges, keys))
    try:
        while (batch := await side.run(reader.next_batch(BATCH_MESSAGES))) is not None:
            for part in batch.slices:
                yield part, part.entry.messages()[part.start : part.stop]
            progressed(len(batch))
    finally:
        await side.run(reader.close())


async def _reader(client: AsyncClient, topic: str, ranges: Mapping[int, tuple[int, int]], keys: Keys | None) -> Any:
    return await client.range_reader(topic, ranges, decryption_keys=keys)


def _compare(expected: Sums, found: Sums, disorder: list[str], names: tuple[str, str]) -> None:
    faults = list(disorder)
    for segment_id in sorted(expected.by_segment.keys() | found.by_segment.keys()):
        one, other = (sums.by_segment.get(segment_id, Sum()) for sums in (expected, found))
        if one.count != other.count:
            faults.append(f"segment {segment_id} has {one.count} messages, and its copy {other.count}")
        elif one.total != other.total:
            faults.append(f"segment {segment_id} and its copy differ in some of {one.count} messages")
    if faults:
        raise CorruptionError(f"{names[1]} is no true copy of {names[0]}: {'; '.join(faults[:8])}")
