"""Messages redelivered too often move to another topic: durably published there first, then acknowledged here.

After a crash between the two, the next consumer publishes again, and the broker drops the duplicate: each dead letter
has a producer of its own, named after the subscription and the message, which sends one message, with the sequence id
0. The name is per message because messages are moved in any order, and the broker keeps only the last sequence id of a
producer. A producer that attaches under that name learns whether the message is stored already, also after the
dead-letter topic has changed its layout.

Most messages are found when they are delivered once too often. One that is handed back with a reason on its last
delivery is moved at once, as only this consumer knows the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC
from typing import Any

from pyroaring import BitMap64

from engine._native.consume.entry_queue import EntryQueue
from engine._native.consume.message import Message
from engine._native.format.entry import Entry
from engine._native.format.offsets import range_set, runs
from engine._native.produce.hashing import xxh64
from engine.aio.backoff import RetryDelay
from engine.client.base.options import ConsumerOptions, Keys, ProducerOptions
from engine.client.consume.failure import Failure
from engine.client.consume.opening import opener
from engine.client.net.pool import Pool
from engine.client.produce.producer import AsyncProducer
from engine.errors import AlreadyClosedError, CorruptionError, EngineError, InvalidArgumentError, MessageTooLargeError
from engine.limits import RECEIVE_QUEUE_BYTES
from engine.model.names import TopicName
from engine.model.positions import MessageId
from engine.model.redelivery import DeadLetter

log = logging.getLogger(__name__)

WORKERS_MAX = 16  # dead letters being moved at once
RETRY_S_FIRST = 0.05
RETRY_S_MAX = 30.0
GOODBYE_S_MAX = 2.0
BYTES_MAX = RECEIVE_QUEUE_BYTES

Acknowledge = Callable[[int, int], Awaitable[None]]


class LetterWriter:
    """Publishes dead letters of one subscription of `source` to `target`. Loop thread only.

    `created_ms`: when the source was created, which tells it from an earlier topic of its name. `keys`: those that the
    subscription's messages are decrypted with; its dead letters are encrypted for the same.
    """

    def __init__(
        self, pool: Pool, source: TopicName, subscription: str, target: TopicName, created_ms: Callable[[], int | None],
        keys: Keys | None,
    ) -> None:  # fmt: skip
        self.source = str(source)
        self.target = target
        self._pool = pool
        self._subscription = subscription
        self._created_ms = created_ms
        self._keys = keys

    async def publish(self, message: Message, failure: Failure | None = None) -> None:
        """Publish it unless it is stored already. Durable when this returns."""
        name = producer_name(self.source, self._created_ms(), self._subscription, message.segment_id, message.offset)
        producer = AsyncProducer[Any](self._pool, self.target, name, self._options(name))
        await producer.start()
        try:
            if producer.last_sequence_id < 0:
                await self._send(producer, message, failure)
        finally:
            await producer.close()

    def _options(self, name: str) -> ProducerOptions:
        if self._keys is None:
            return ProducerOptions(name=name)
        from engine.client.base.encryption import public_of  # loads cryptography

        return ProducerOptions(name=name, encryption_keys=public_of(self._keys))

    async def _send(self, producer: AsyncProducer[Any], message: Message, failure: Failure | None) -> None:
        added = origin_of(message, self.source, self._subscription)
        if failure is not None:
            added |= failure.properties()
        value, key, event_time = message.encoded_value, message.key, message.event_time_ms
        try:
            properties = {**properties_of(message), **added}
            await producer.send(value, key=key, properties=properties, event_time=event_time, sequence_id=0)
        except (InvalidArgumentError, MessageTooLargeError):  # these did not fit beside the properties
            await producer.send(value, key=key, properties=added, event_time=event_time, sequence_id=0)


class DeadLetters:
    """The dead letters of one queue consumer. Loop thread only. `moved`: how many were published and acknowledged.

    `acknowledge` takes a segment and an offset.
    """

    def __init__(
        self,
        pool: Pool,
        source: TopicName,
        subscription: str,
        policy: DeadLetter,
        *,
        created_ms: Callable[[], int | None],
        acknowledge: Acknowledge,
        options: ConsumerOptions,
    ) -> None:
        self.moved = 0
        self._pool = pool
        self._max = policy.max_redeliveries
        self._writer = LetterWriter(
            pool, source, subscription, policy.topic_of(source), created_ms, options.decryption_keys
        )
        self._acknowledge = acknowledge
        self._queue = EntryQueue(self._writer.source, MessageId, None, None, opener(options))
        self._failed: deque[tuple[Message, Failure]] = deque()  # received for the last time
        self._failed_bytes = 0
        self._lives: dict[int, int] = {}  # by segment, how often its messages were taken back by the broker
        self._workers: set[asyncio.Task[None]] = set()
        self._closed = False

    def select(self, redelivered: Iterable[tuple[int, int, int]] | None) -> BitMap64:
        """Of [first, last, count], the offsets that were redelivered too often."""
        dead = BitMap64()
        for first, last, count in redelivered or ():
            if count > self._max:
                dead.add_range(first, last + 1)
        return dead

    def push(self, entries: list[Entry], dead: BitMap64, redelivered: Iterable[tuple[int, int, int]]) -> None:
        """Move these messages of the entries, in the background."""
        rest = range_set(entries[0].first_offset, entries[-1].first_offset + entries[-1].count - 1) - dead
        self._queue.push(entries, [(first, last) for first, last in runs(rest)], redelivered)
        self._begin(self._queue.messages)

    def is_last(self, message: Message) -> bool:
        """Whether this is its last delivery: handed back, it becomes a dead letter."""
        return message.redelivery_count >= self._max

    def push_failed(self, message: Message, failure: Failure) -> None:
        """Move a message that was handed back on its last delivery, in the background."""
        self._failed.append((message, failure))
        self._failed_bytes += message.size
        self._begin(1)

    def _begin(self, count: int) -> None:
        for _ in range(min(count, WORKERS_MAX - len(self._workers))):
            task = self._pool.tasks.spawn(self._work(), name=f"dead letters of {self._writer.source}")
            if task is not None:
                self._workers.add(task)
                task.add_done_callback(self._workers.discard)

    def drop(self, segment_id: int) -> None:
        """Drop what is queued of a segment: another consumer may get it."""
        self._queue.drop(segment_id)
        self._failed = deque(one for one in self._failed if one[0].segment_id != segment_id)
        self._failed_bytes = sum(message.size for message, _ in self._failed)
        self._lives[segment_id] = self._lives.get(segment_id, 0) + 1

    async def close(self) -> None:
        """Begin no more; what is not moved soon is left to the next consumer of the message. Idempotent."""
        self._closed = True
        if self._workers:
            _, late = await asyncio.wait(list(self._workers), timeout=GOODBYE_S_MAX)
            for task in late:
                task.cancel()

    @property
    def full(self) -> bool:
        """Whether so many are queued that no more should be added."""
        return self._queue.bytes + self._failed_bytes >= BYTES_MAX

    async def _work(self) -> None:
        while not self._closed:
            if self._failed:
                message, failure = self._failed.popleft()
                self._failed_bytes -= message.size
                await self._move(message, failure)
            elif (found := self._next()) is not None:
                await self._move(found, None)
            else:
                return

    def _next(self) -> Message | None:
        """The next dead letter. A bad entry stays unacknowledged: there is nothing to publish."""
        while True:
            try:
                return self._queue.pop_message()
            except CorruptionError as e:
                self._queue.damaged(drop=True)
                log.warning("%s: a message was redelivered too often, and cannot be moved: %s", self._writer.source, e)

    async def _move(self, message: Message, failure: Failure | None) -> None:
        """Publish and acknowledge it, as often as it takes, while this consumer holds the message."""
        segment_id, life = message.segment_id, self._lives.get(message.segment_id, 0)
        backoff = RetryDelay(self._pool.options.rng, initial=RETRY_S_FIRST, maximum=RETRY_S_MAX)
        while not self._closed and self._lives.get(segment_id, 0) == life:
            try:
                await self._publish(message, failure)
                await self._acknowledge(segment_id, message.offset)
                self.moved += 1
                return
            except AlreadyClosedError:
                if self._closed or self._pool.closed:
                    return
            except EngineError as e:
                log.warning("%s:%d of %s cannot go to %s yet: %s", segment_id, message.offset, self._writer.source,
                            self._writer.target, e)  # fmt: skip
            await asyncio.sleep(backoff.next())

    async def _publish(self, message: Message, failure: Failure | None) -> None:
        await self._writer.publish(message, failure)


def producer_name(source: str, created_ms: int | None, subscription: str, segment_id: int, offset: int) -> str:
    """A short name that only the same message of the same subscription has."""
    where = xxh64("\0".join((source, str(created_ms), subscription)).encode())
    return f"dead-letter-{where:016x}-{segment_id}-{offset}"


def properties_of(message: Message) -> dict[str, str]:
    """Its properties; none where they cannot be read."""
    try:
        return message.properties
    except CorruptionError:
        return {}


def origin_of(message: Message, source: str, subscription: str) -> dict[str, str]:
    """The origin of a dead letter, as properties."""
    return {
        "origin-topic": source,
        "origin-message": f"{message.segment_id}:{message.offset}",
        "origin-message-id": MessageId(message.segment_id, message.offset, topic=source).to_bytes().hex(),
        "origin-subscription": subscription,
        "origin-redelivery-count": str(message.redelivery_count),
        "origin-producer": message.producer_name,
        "origin-sequence-id": str(message.sequence_id),
        "origin-publish-time": message.publish_time.astimezone(UTC).isoformat(),
    }


def unreadable(entries: list[Entry]) -> BitMap64:
    """Offsets of bad entries, which cannot become dead letters: there is nothing to publish."""
    found = BitMap64()
    for entry in entries:
        if entry.failure is not None:
            found.add_range(entry.first_offset, entry.first_offset + entry.count)
    return found
