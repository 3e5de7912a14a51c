"""Copies one topic or partition, and compares the copy with it, message by message."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from engine._native.format.entry import EntryMessage
from engine._native.produce.hashing import xxh64
from engine.client import AsyncClient, AsyncProducer
from engine.errors import AlreadyExistsError, CorruptionError, NotFoundError, UnsupportedError
from engine.migration.copying import BATCH_MESSAGES, TURN_MESSAGES, Extent, read_extent, send_message
from engine.migration.marker import PROPERTY
from engine.migration.pulsar.places import Mark, Place
from engine.migration.pulsar.reading import Source
from engine.migration.topics import KEEP_ALL, declare
from engine.migration.verifying import Verified
from engine.pulsar.schemas import SCHEMA_MUST, TYPES, VERSION_PROPERTY, definition_of

DIGEST_SIZE = 16
_HEAD = struct.Struct("<qqqq")  # event time, delivery time, sizes of key and value
_NO_TIME = -(2**63)
_NO_SCHEMA = (0, -1)  # none, bytes
_SINCE = 512  # messages between two reports


class Copy:
    """The copy of one source. `progressed`: called with the number of messages done since."""

    def __init__(self, source: Source, url: str, client: AsyncClient, target: str, compression: str) -> None:
        self._source = source
        self._url = url
        self._client = client
        self._target = target
        self._compression: Any = compression

    async def run(self, end: Place | None, progressed: Callable[[int], object]) -> int:
        """Make the destination, or find what an earlier run has made, and send what is missing up to `end`; the number
        of messages sent. Raises AlreadyExistsError, ProducerBusyError.
        """
        fresh = Mark(self._source.topic, self._url)
        await find_or_make(self._client, self._target, fresh, {})
        await self._declare_schemas()
        await self._client.admin.set_topic_policies(self._target, KEEP_ALL)
        sent = 0
        if end is not None:
            producer = await self._client.producer(self._target, name=fresh.producer, compression=self._compression)
            try:
                sent = await self._send(producer, end, progressed)
            except BaseException:
                with contextlib.suppress(Exception):  # what is not durable is sent again by the next run
                    await producer.close()
                raise
            await producer.close()
        return sent

    async def complete(self) -> None:
        """The copy's own rules hold from now on."""
        await self._client.admin.set_topic_policies(self._target, dict.fromkeys(KEEP_ALL))

    async def _declare_schemas(self) -> None:
        """Messages of each version at the source get that of the same definition here."""
        versions: list[int | None] = []
        for schema in await self._source.schemas():
            versions.append(None)
            if schema is None or schema.type in _NO_SCHEMA:
                continue
            kind = TYPES.get(schema.type)
            if kind is None:
                raise UnsupportedError(f"{self._source.topic}: {SCHEMA_MUST}, got the type {schema.type}")
            facts = {"type": str(kind), "definition": definition_of(schema)}
            versions[-1] = (await declare(self._client, self._target, facts)).index(facts)
        self._source.versions = versions

    async def _send(self, producer: AsyncProducer[Any], end: Place, progressed: Callable[[int], object]) -> int:
        # Read again: only now no other run can change it.
        mark, sent, since = await mark_of(self._client, self._target), 0, 0
        last = mark.place(producer.acknowledged_sequence_id)
        newest, kind = producer.acknowledged_sequence_id, (False, "")
        if last < end:
            async for messages in self._source.messages(last, end):
                place = messages[0][0]
                if place.ledger != mark.ledger:
                    await producer.flush()
                    first = place if mark.ledger < 0 else mark.first
                    mark = replace(mark, ledger=place.ledger, base=newest + 1, first=first, done=last)
                    await self._save(mark)
                for last, message in messages:
                    newest = mark.sequence(last)
                    if kind != (found := (message.key is not None, message.properties.get(VERSION_PROPERTY, ""))):
                        # Keyed and keyless ones never share an entry, those of several versions should not; and those
                        # that are open at the same time have no order.
                        producer._batcher.seal_all()
                        kind = found
                    await send_message(producer, message, newest)
                    since += 1
                    if since >= TURN_MESSAGES:
                        await producer.writable()
                        progressed(since)
                        sent, since = sent + since, 0
            await producer.flush()
            progressed(since)
            await self._save(replace(mark, done=max(last, mark.done)))
        return sent + since

    async def _save(self, mark: Mark) -> None:
        metadata: Any = await self._client.admin.get_metadata(self._target)
        properties = {**metadata["properties"], PROPERTY: mark.text()}
        await self._client.admin.set_topic_properties(self._target, properties)

    # -- comparing -------------------------------------------------------------------------------------------------

    async def verify(self, end: Place | None, progressed: Callable[[int], object]) -> Verified:
        """Read both, and compare each message with that of the same turn. Raises CorruptionError at the first
        difference.

        What is no longer at the source has no counterpart: so many messages of the copy are passed over as it has more.
        """
        mark = await mark_of(self._client, self._target)
        extent = await read_extent(self._client, self._target)
        there, seen = self._copied(mark, extent), 0
        digest, keys, count = blake2b(digest_size=DIGEST_SIZE), set[int](), 0
        if end is not None:
            async for messages in self._source.messages(Place(-1, -1, -1), end):
                for place, message in messages:
                    if count == 0:
                        seen = await self._surplus(mark, extent, place, end)
                        for _ in range(seen):
                            await anext(there)
                    copied = await anext(there, None)
                    one = _digest(message)
                    if copied is None or _digest(copied) != one:
                        raise self._differs(place, count, copied)
                    digest.update(one)
                    count += 1
                    if message.key is not None:
                        keys.add(xxh64(message.key))
                    if count % _SINCE == 0:
                        progressed(_SINCE)
        progressed(count % _SINCE)
        if count and await anext(there, None) is not None:
            raise CorruptionError(f"{self._target} has more messages than the {count:,} of {self._source.topic}")
        return Verified(count, len(keys), digest.hexdigest())

    def _differs(self, place: Place, count: int, copied: EntryMessage | None) -> CorruptionError:
        what = "is not in it" if copied is None else "is another there"
        return CorruptionError(
            f"{self._target} is no true copy of {self._source.topic}: its message {place}, after {count:,} that are "
            f"the same, {what}"
        )

    async def _surplus(self, mark: Mark, extent: Extent, first: Place, end: Place) -> int:
        """How many messages of the copy come before the source's first. 0 where that is what the copy begins with."""
        if first <= mark.first:
            return 0
        copied = kept = 0
        async for _ in self._copied(mark, extent):
            copied += 1
        async for messages in self._source.messages(Place(-1, -1, -1), end):
            kept += len(messages)
        return max(copied - kept, 0)

    async def _copied(self, mark: Mark, extent: Extent) -> AsyncIterator[EntryMessage]:
        """What the copying producer has sent, in order."""
        producer = xxh64(mark.producer.encode())
        reader = await self._client.range_reader(self._target, extent.ranges)
        try:
            while (batch := await reader.next_batch(BATCH_MESSAGES)) is not None:
                for part in batch.slices:
                    if part.entry.producer_id == producer:
                        for message in part.entry.messages()[part.start : part.stop]:
                            yield message
        finally:
            await reader.close()


async def find_or_make(client: AsyncClient, target: str, fresh: Mark, properties: Mapping[str, str]) -> None:
    """The destination. Raises AlreadyExistsError for a topic that is no copy of this source."""
    try:
        mark = await mark_of(client, target)
    except NotFoundError:
        await client.admin.create_topic(target, properties={**properties, PROPERTY: fresh.text()})
        return
    if mark.topic != fresh.topic:
        raise AlreadyExistsError(f"the destination's {target} is a copy of {mark.topic}, not of {fresh.topic}")
    if mark.url != fresh.url:
        raise AlreadyExistsError(
            f"the copy {target} was begun from {mark.url}: go on with that URL, or copy under another name"
        )
    if properties:
        metadata: Any = await client.admin.get_metadata(target)
        await client.admin.set_topic_properties(target, {**metadata["properties"], **properties})


async def mark_of(client: AsyncClient, target: str) -> Mark:
    """Of a copy. Raises NotFoundError, AlreadyExistsError."""
    metadata: Any = await client.admin.get_metadata(target)
    said = metadata["properties"].get(PROPERTY)
    mark = None if said is None else Mark.parse(said)
    if mark is None:
        raise AlreadyExistsError(
            f"the destination has a topic {target} that is no copy of one of Apache Pulsar: delete it, or copy under "
            "another name"
        )
    return mark


def _digest(message: EntryMessage) -> bytes:
    key, value = message.key, message.value
    event = _NO_TIME if message.event_time_ms is None else message.event_time_ms
    due = _NO_TIME if message.deliver_at_ms is None else message.deliver_at_ms
    hashed = blake2b(_HEAD.pack(event, due, -1 if key is None else len(key), len(value)), digest_size=DIGEST_SIZE)
    hashed.update(key or b"")
    hashed.update(value)
    if message.properties:
        hashed.update(repr(sorted(message.properties.items())).encode(errors="surrogatepass"))
    return hashed.digest()
