"""Where a subscriber's messages come from, and how they are settled: by queue, by stream, or not at all."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

import engine
from faststream_engine.config import Reading
from faststream_engine.message import Raw, messages_of

Reason = str | BaseException | None


class Source(Protocol):
    """An open consumer of a subscriber. `consumer` is for what the binding has no words for."""

    consumer: Any

    async def ack(self, raw: Raw) -> None: ...

    async def nack(self, raw: Raw, delay: float | None, reason: Reason) -> None: ...

    async def reject(self, raw: Raw, reason: Reason) -> None: ...

    def redeliveries(self, raw: Raw) -> int: ...

    async def receive(self) -> Raw: ...

    async def close(self) -> None: ...


@dataclass
class Again:
    """A message of a stream that its handler has to be called with again."""

    delay: float
    reason: Reason


async def open_source(client: engine.AsyncClient, reading: Reading, topic: str) -> QueueSource | StreamSource:
    """The consumer of a subscriber, which waits until its subscription is there. Raises EngineError."""
    options = dict(reading.options)
    if reading.kind == "checkpoint":
        start = reading.start
        if isinstance(start, str):
            start = engine.Checkpoint.earliest() if start == "earliest" else engine.Checkpoint.latest()
        return StreamSource(await client.checkpoint_consumer(topic, start=start, **options), client, reading)
    assert reading.subscription is not None
    options["initial_position"] = reading.start
    if reading.kind == "stream":
        return StreamSource(await client.stream_consumer(topic, reading.subscription, **options), client, reading)
    options |= {"nack_backoff": reading.nack_backoff, "ack_timeout": reading.ack_timeout}
    consumer = await client.queue_consumer(topic, reading.subscription, dead_letter=reading.dead_letter, **options)
    return QueueSource(consumer, client, reading)


class _Received:
    def __init__(self, consumer: Any, client: engine.AsyncClient, reading: Reading) -> None:
        self.consumer = consumer
        self._client = client
        self._reading = reading

    async def receive(self) -> Raw:
        """The next message, or the next batch. Raises EngineError."""
        if not self._reading.batch:
            message: engine.Message[bytes] = await self.consumer.receive()
            return message
        return tuple(await self.consumer.receive_batch(max_messages=self._reading.max_messages))

    async def _bury(self, raw: Raw, reason: Reason) -> None:
        """Publish it to the dead-letter topic, if there is one. A repetition is recognised by its producer's name."""
        policy = self._reading.dead_letter
        if policy is None:
            return
        for message in messages_of(raw):
            target = policy.topic or f"{message.topic}-DLQ"
            subscription = self._reading.subscription or ""
            origin = f"{message.topic}|{subscription}|{message.segment_id}|{message.offset}"
            name = "dead-letter-" + hashlib.sha256(origin.encode()).hexdigest()[:32]
            added = {
                "origin-topic": message.topic,
                "origin-message": f"{message.segment_id}:{message.offset}",
                "origin-message-id": message.id.to_bytes().hex(),
                "origin-subscription": subscription,
                "origin-redelivery-count": str(self.redeliveries(raw)),
            }
            if reason is not None:
                is_error = isinstance(reason, BaseException)
                added["dead-letter-reason"] = f"{type(reason).__name__}: {reason}" if is_error else str(reason)
            async with self._client.producer(target, name=name) as producer:
                if producer.last_sequence_id < 0:
                    await producer.send(message.value, key=message.key, properties=message.properties | added)

    def redeliveries(self, raw: Raw) -> int:
        raise NotImplementedError

    async def close(self) -> None:
        """Close the consumer: what is not acknowledged is delivered again."""
        await self.consumer.close()


class QueueSource(_Received):
    """Single messages, each acknowledged on its own."""

    async def ack(self, raw: Raw) -> None:
        """Durable when this returns."""
        await self.consumer.acknowledge(list(messages_of(raw)))

    async def nack(self, raw: Raw, delay: float | None, reason: Reason) -> None:
        """Hand it back to the broker, which delivers it later, to any consumer of the subscription."""
        for message in messages_of(raw):
            await self.consumer.negative_acknowledge(message, delay=delay, reason=reason)

    async def reject(self, raw: Raw, reason: Reason) -> None:
        """To the dead letters, then acknowledged."""
        await self._bury(raw, reason)
        await self.ack(raw)

    def redeliveries(self, raw: Raw) -> int:
        """As the broker counts; of a batch, the greatest."""
        return max(message.redelivery_count for message in messages_of(raw))


class StreamSource(_Received):
    """Messages in order, of a stream subscription or of a checkpoint consumer, which acknowledges nothing.

    What is being handled is kept in the order in which it came. An acknowledgement of the broker's covers all before
    it, so one is sent as far as nothing unsettled is left; with `all_before`, an acknowledgement settles all before it.
    """

    def __init__(self, consumer: Any, client: engine.AsyncClient, reading: Reading) -> None:
        super().__init__(consumer, client, reading)
        self.all_before = False  # acknowledgement by hand: it means what it means to the broker
        self._open: OrderedDict[int, tuple[Raw, bool]] = OrderedDict()  # by identity; whether it is settled
        self._again: dict[int, Again] = {}
        self._attempts: dict[int, int] = {}

    async def receive(self) -> Raw:
        """The next one, which is unsettled from now on."""
        raw = await super().receive()
        if not self.all_before:
            self._open[id(raw)] = (raw, False)
        return raw

    async def ack(self, raw: Raw) -> None:
        """Acknowledge as far as everything is settled; durable when this returns."""
        if self.all_before:
            return await self._acknowledge(raw)
        if id(raw) in self._open:
            self._open[id(raw)] = (raw, True)
        last = None
        while self._open and next(iter(self._open.values()))[1]:
            last = self._open.popitem(last=False)[1][0]
        if last is not None:
            await self._acknowledge(last)
        return None

    async def _acknowledge(self, raw: Raw) -> None:
        if self._reading.kind == "stream":
            await self.consumer.acknowledge_cumulative(messages_of(raw)[-1])

    async def nack(self, raw: Raw, delay: float | None, reason: Reason) -> None:
        """The handler is to be called again, before anything of the same key."""
        attempts = self._attempts.get(id(raw), 0)
        self._again[id(raw)] = Again(self._reading.nack_backoff.delay(attempts) if delay is None else delay, reason)
        self._attempts[id(raw)] = attempts + 1

    async def reject(self, raw: Raw, reason: Reason) -> None:
        """To the dead letters, then acknowledged."""
        await self._bury(raw, reason)
        await self.ack(raw)

    def take_again(self, raw: Raw) -> Again | None:
        """How to go on with what was handled; None: it is done with."""
        again = self._again.pop(id(raw), None)
        if again is None:
            self._attempts.pop(id(raw), None)
        return again

    def redeliveries(self, raw: Raw) -> int:
        """How often its handler was called with it before."""
        return self._attempts.get(id(raw), 0)
