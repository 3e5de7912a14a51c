"""The producer's half as plain Python: hashing, routing, batching; slow, obvious, independent of the native code."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any

import msgpack
import xxhash

from tests.reference.entry_reference import PlainMessage, encode

RECORD_COST = 16
ENTRY_ROOM = 8 * 1024 * 1024
GOLDEN = 40503


def murmur3(data: bytes, seed: int = 0) -> int:
    """Murmur3 x86, 32-bit, from its description."""

    def mix(word: int) -> int:
        word = word * 0xCC9E2D51 & 0xFFFFFFFF
        return (word << 15 | word >> 17) * 0x1B873593 & 0xFFFFFFFF

    crc = seed
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        crc ^= mix(int.from_bytes(data[at : at + 4], "little"))
        crc = (crc << 13 | crc >> 19) & 0xFFFFFFFF
        crc = (crc * 5 + 0xE6546B64) & 0xFFFFFFFF
    crc ^= mix(int.from_bytes(data[whole:], "little"))
    crc ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        crc = (crc ^ crc >> shift) * factor & 0xFFFFFFFF
    return crc ^ crc >> 16


def key32(key: bytes, algorithm: int) -> int:
    """The hash of a key: 0 is XXH64 with seed 42, its upper half; 1 is Murmur3."""
    return murmur3(key) if algorithm else int(xxhash.xxh64_intdigest(key, 42)) >> 32


@dataclass
class OpenBatch:
    """The messages of one bucket that are not sealed yet."""

    messages: list[PlainMessage] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    waiters: list[tuple[Any, int]] = field(default_factory=list)
    bytes: int = 0


@dataclass
class Expected:
    """What an entry must be."""

    segment_id: int
    bucket: int
    data: bytes
    messages: list[PlainMessage]
    waiters: list[tuple[Any, int]]
    pending: int


class ModelBatcher:
    """Same arguments, same entries as the native batcher; `sealed` grows in the order of sealing."""

    def __init__(self, name: bytes, *, key_hash: int = 0, bytes_max: int = 131072, messages_max: int = 10_000) -> None:
        self.name, self.key_hash, self.bytes_max, self.messages_max = name, key_hash, bytes_max, messages_max
        self.sealed: list[Expected] = []
        self.sequence = 0
        self.open: dict[tuple[int, int], OpenBatch] = {}

    def set_layout(self, starts: list[int], ids: list[int], ends: list[list[int]]) -> None:
        self.seal_all()
        self.starts, self.ids, self.ends = starts, ids, ends
        producer_id = int(xxhash.xxh64_intdigest(self.name, 42))
        self.turn, self.turns = producer_id % len(starts), [producer_id >> 32 & 0xFFFF] * len(starts)
        self.open = {(s, b): OpenBatch() for s in range(len(starts)) for b in range(len(ends[s]))}
        self.open[len(starts), 0] = OpenBatch()  # keyless, sealed last

    def route(self, key_hash: int) -> tuple[int, int]:
        segment = bisect_right(self.starts, key_hash >> 16) - 1
        return segment, bisect_left(self.ends[segment], key_hash & 0xFFFF)

    def add(self, message: PlainMessage, waiter: Any = None) -> None:
        hashed = key32(message.key, self.key_hash) if message.key is not None else 0
        where = self.route(hashed) if message.key is not None else (len(self.starts), 0)
        packed = len(msgpack.packb(message.properties)) if message.properties else 0
        cost = len(message.value) + len(message.key or b"") + packed + RECORD_COST
        if not self.fits(self.open[where], cost, message.sequence_id, message.deliver_at_ms):
            self.seal(where)
        batch = self.open[where]
        batch.messages.append(message)
        batch.hashes.append(hashed)
        batch.bytes += cost
        if waiter is not None:
            batch.waiters.append((waiter, len(batch.messages) - 1))
        if batch.bytes >= self.bytes_max or len(batch.messages) >= self.messages_max:
            self.seal(where)
        self.sequence = message.sequence_id + 1

    def fits(self, batch: OpenBatch, cost: int, sequence: int, deliver_at: int | None) -> bool:
        if not batch.messages:
            return True
        other = batch.messages[0].deliver_at_ms
        if deliver_at != other and (deliver_at is None or other is None or abs(deliver_at - other) > 1000):
            return False
        count = len(batch.messages) + 1
        return (
            batch.bytes + cost <= self.bytes_max
            and count <= self.messages_max
            and batch.bytes + cost + 20 * count + 512 <= ENTRY_ROOM
            and sequence - batch.messages[0].sequence_id < 1 << 32
        )

    def seal(self, where: tuple[int, int]) -> None:
        batch, self.open[where] = self.open[where], OpenBatch()
        hashes = batch.hashes
        segment, bucket = where
        if segment == len(self.starts):
            segment, bucket, one = self.keyless_turn()
            hashes = [one]
        low, high = [h & 0xFFFF for h in hashes], [h >> 16 for h in hashes]
        data = encode(
            batch.messages,
            producer=self.name,
            producer_id=int(xxhash.xxh64_intdigest(self.name, 42)),
            buckets=(min(low), max(low)),
            segment_hashes=(min(high), max(high)),
        )
        self.sealed.append(Expected(self.ids[segment], bucket, data, batch.messages, batch.waiters, batch.bytes))

    def keyless_turn(self) -> tuple[int, int, int]:
        """(segment, bucket, hash) of the next keyless entry."""
        segment, self.turn = self.turn, (self.turn + 1) % len(self.starts)
        spread = self.turns[segment] * GOLDEN & 0xFFFF
        self.turns[segment] += 1
        start, after = self.starts[segment], [*self.starts, 0x10000][segment + 1]
        segment_hash = start + (after - start) * spread // 0x10000
        return segment, bisect_left(self.ends[segment], spread), segment_hash << 16 | spread

    def seal_all(self) -> None:
        filled = [(batch.messages[-1].sequence_id, where) for where, batch in self.open.items() if batch.messages]
        for _, where in sorted(filled, key=lambda item: item[0]):
            self.seal(where)
