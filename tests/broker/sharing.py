"""A segment of several buckets, entries for each of them, and what its sharers are sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

from engine._native.produce.batcher import Batcher
from engine._native.produce.hashing import XXH64, hash_keys
from engine.model import layout
from engine.wire.commands import Command
from tests.kit.peer import Peer, delivered

FOUR = (0x3FFF, 0x7FFF, 0xBFFF, 0xFFFF)
_KEYS: dict[int, str] = {}


def even(count: int) -> tuple[int, ...]:
    """The ends of `count` buckets of one width."""
    return tuple(0x10000 // count * (i + 1) - 1 for i in range(count))


@contextlib.contextmanager
def boundaries(ends: Sequence[int]) -> Iterator[None]:
    """Topics that are created meanwhile have segments with these buckets."""
    with patch.object(layout, "bucket_ends", lambda _: tuple(ends)):
        yield


def key_of(ends: Sequence[int], bucket: int) -> str:
    """A key of a bucket: of its upper end, if there is one among the first."""
    first = ends[bucket - 1] + 1 if bucket else 0
    if not _KEYS:
        keys = [f"k{i}" for i in range(600_000)]
        _KEYS.update(zip((hash_keys(keys, XXH64) & 0xFFFF).tolist(), keys, strict=True))
    return next(_KEYS[h] for h in range(ends[bucket], first - 1, -1) if h in _KEYS)


class Publisher:
    """Publishes entries of chosen buckets to a segment. `values[offset]` and `buckets[offset]` are what is there."""

    def __init__(self, peer: Peer, producer: int, ends: Sequence[int]) -> None:
        self.peer, self.producer, self.ends = peer, producer, ends
        self.buckets: list[int] = []
        self._batcher = Batcher(b"p", pending_bytes_max=1 << 30)
        self._batcher.set_layout([0], [0], [list(ends)])

    @classmethod
    async def of(cls, peer: Peer, segment: str, ends: Sequence[int]) -> Publisher:
        return cls(peer, await peer.producer(segment), ends)

    async def publish(self, buckets: Sequence[int], per_entry: int = 1) -> None:
        """One entry after the other, each of one bucket; durable when it returns."""
        entries = []
        for bucket in buckets:
            for _ in range(per_entry):
                self._batcher.add(b"%d:%d" % (bucket, len(self.buckets)), key_of(self.ends, bucket))
                self.buckets.append(bucket)
            self._batcher.seal_all()
            entries += [bytes(sealed.data) for sealed in self._batcher.take()]
        self.peer.publish(self.producer, entries)
        await self.peer.receipts(self.producer, len(entries))


async def round_trip(peer: Peer, segment: str) -> None:
    """Everything the broker had sent before is there."""
    for _ in range(2):
        await peer.ask(Command.SEGMENT_OFFSET, topic=segment, at="latest")


def taken(peer: Peer, consumer: int) -> list[tuple[int, int]]:
    """(bucket, offset) of what came for a consumer and was not taken yet."""
    found: list[tuple[int, int]] = []
    for frame in [f for f in peer.frames if f[0] is Command.MESSAGE and f[1]["consumer_id"] == consumer]:
        peer.frames.remove(frame)
        for offset, value in delivered(frame[1], frame[2]):
            bucket, number = map(int, value.split(b":"))
            assert number == offset
            found.append((bucket, offset))
    return found


async def share(peer: Peer, segment: str, name: str, ends: Sequence[int] = FOUR, credit: int = 10**6) -> int:
    """One more sharer."""
    return await peer.consumer(segment, "shared", name=name, credit=credit, bucketBoundaries=list(ends))


async def opened(peer: Peer, topic: str = "orders", ends: Sequence[int] = FOUR) -> tuple[str, Publisher]:
    with boundaries(ends):
        segment = await peer.segment(topic)
    return segment, await Publisher.of(peer, segment, ends)


def hosted(broker: Any, subscription: str = "s") -> Any:
    (segment,) = broker.segments._hosted.values()
    return segment.subscriptions[subscription]


async def ack(peer: Peer, consumer: int, **said: Any) -> None:
    await peer.ask(Command.ACK, consumer_id=consumer, ack_type="cumulative", **said)


async def taken_until(peer: Peer, consumer: int, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < count:
        await peer.until(lambda: any(f[0] is Command.MESSAGE and f[1]["consumer_id"] == consumer for f in peer.frames))
        found += taken(peer, consumer)
    return found


class HeldReads:
    """Reads of a segment, an entry each, that come when a test says so. A context manager."""

    def __init__(self, segment: Any) -> None:
        self._segment, self._read = segment, segment.read
        self._under_way: list[asyncio.Future[None]] = []

    def __enter__(self) -> HeldReads:
        self._segment.read = self._begin
        return self

    def __exit__(self, *_: object) -> None:
        del self._segment.read
        while self.finish():
            pass

    def _begin(self, offset: int, bytes_max: int, *, at_once: bool = False) -> Any:
        block = self._read(offset, 1)
        if block is None:
            return None
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.append(held)
        return self._finished(held, block)

    async def _finished(self, held: asyncio.Future[None], block: Any) -> Any:
        await held
        return block

    def finish(self) -> bool:
        """The earliest read ends; False when there is none."""
        if not self._under_way:
            return False
        held = self._under_way.pop(0)
        if not held.done():
            held.set_result(None)
        return True
