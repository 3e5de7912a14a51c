"""Copies one segment after the other, so that the order of each key is kept also across splits and merges.

Ids of segments rise along every path from a parent to its children, so a child's messages are sent once those of its
parents are durable. What is sent again after an interruption has the same sequence id and key, and is stored once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine._native.format.entry import EntryMessage
from engine.client import AsyncClient, AsyncProducer, MessageBatch
from engine.client.base.options import Keys
from engine.errors import QueueFullError
from engine.migration.marker import Marker
from engine.migration.side import Side
from engine.migration.topics import TopicFacts, moved, save_marker
from engine.pulsar.schemas import VERSION_PROPERTY

BATCH_MESSAGES = 8_192
TURN_MESSAGES = 500  # sent before others have their turn on the loop


@dataclass(frozen=True, slots=True)
class Terms:
    """How messages are read and written."""

    compression: str = "none"
    decryption_keys: Keys | None = None
    encryption_keys: Keys | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Extent:
    """What is kept of each segment of the source: {segment id: (first offset, offset behind the last)}."""

    ranges: dict[int, tuple[int, int]]

    @property
    def messages(self) -> int:
        """At most."""
        return sum(end - first for first, end in self.ranges.values())


async def read_extent(client: AsyncClient, topic: str) -> Extent:
    """What may be read now: it ends before the first message of an open transaction."""
    view = await client.topic_view(topic)
    try:
        facts = await view.segments(exact=True)
    finally:
        await view.close()
    return Extent({i: (s.first, s.end) for i, s in sorted(facts.segments.items())})


class Copy:
    """The messages of one topic, on their way. `progressed`: called with the number of messages sent since."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        source: TopicFacts,
        target: str,
        terms: Terms,
        progressed: Callable[[int], object],
    ) -> None:
        self._source, self._destination = sides
        self._facts = source
        self._target = target
        self._terms = terms
        self._progressed = progressed

    async def run(self, extent: Extent, marker: Marker) -> int:
        """Send what is missing of the extent; the number of messages sent."""
        sent = 0
        for segment_id, (first, end) in extent.ranges.items():
            start = max(first, marker.positions.get(segment_id, 0))
            self._progressed(start - first)
            if start >= end:
                continue
            sent += await self._segment(segment_id, start, end)
            marker = moved(marker, segment_id, end)
            destination = self._destination
            await destination.run(save_marker(destination.client, self._target, self._facts, marker))
        return sent

    async def _segment(self, segment_id: int, start: int, end: int) -> int:
        producer = await self._destination.run(self._producer(self._facts.marker.producer(segment_id)))
        try:
            begin = max(start, producer.acknowledged_sequence_id + 1)
            self._progressed(min(begin, end) - start)
            sent = await self._range(producer, segment_id, begin, end) if begin < end else 0
        except BaseException:
            await self._destination.run(_close_quietly(producer))
            raise
        await self._destination.run(producer.close())
        return sent

    async def _range(self, producer: AsyncProducer[Any], segment_id: int, start: int, end: int) -> int:
        source, destination, sent, version = self._source, self._destination, 0, ""
        reader = await source.run(self._reader({segment_id: (start, end)}))
        try:
            while (batch := await source.run(reader.next_batch(BATCH_MESSAGES))) is not None:
                version = await destination.run(_send(producer, batch, version))
                sent += len(batch)
                self._progressed(len(batch))
        finally:
            await source.run(reader.close())
        await destination.run(_flush(producer))
        return sent

    async def _producer(self, name: str) -> AsyncProducer[Any]:
        terms, client = self._terms, self._destination.client
        compression: Any = terms.compression
        return await client.producer(
            self._target, name=name, compression=compression, encryption_keys=terms.encryption_keys
        )

    async def _reader(self, ranges: dict[int, tuple[int, int]]) -> Any:
        keys = self._terms.decryption_keys
        return await self._source.client.range_reader(self._facts.name, ranges, decryption_keys=keys)


async def send_message(producer: AsyncProducer[Any], message: EntryMessage, sequence_id: int) -> None:
    """Enqueue a message as it was, under this sequence id; wait only where the queue is full."""
    more: dict[str, Any] = {
        "key": message.key,
        "properties": message.properties or None,
        "event_time": message.event_time_ms,
        "sequence_id": sequence_id,
        "deliver_at": message.deliver_at_ms,
    }
    try:
        producer.send_nowait(message.value, **more)
    except QueueFullError:
        await producer.writable()
        producer.send_nowait(message.value, **more)


async def _send(producer: AsyncProducer[Any], batch: MessageBatch[Any], version: str) -> str:
    """Enqueue the messages, each under its offset as its sequence id. `version`: of the schema of what was sent before;
    that of the last ones is returned. Those of several share no entry, as they had none at the source.
    """
    done = 0
    for part in batch.slices:
        messages = part.entry.messages()[part.start : part.stop]
        if messages and (found := messages[0].properties.get(VERSION_PROPERTY, "")) != version:
            producer._batcher.seal_all()
            version = found
        for sequence_id, message in enumerate(messages, part.entry.first_offset + part.start):
            await send_message(producer, message, sequence_id)
            done += 1
            if done % TURN_MESSAGES == 0:
                await producer.writable()
    return version


async def _flush(producer: AsyncProducer[Any]) -> None:
    await producer.flush()


async def _close_quietly(producer: AsyncProducer[Any]) -> None:
    """After a failure, which is what is reported."""
    with contextlib.suppress(Exception):  # what is not durable is sent again by the next run
        await producer.close()
