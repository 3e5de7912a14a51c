"""Members of groups: stream consumers that dawdle, queue consumers that hand back, consumers of many topics, and
producers that delay messages or resume where a dead one stood. They come and go at random, some without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from engine.client.client import AsyncClient
from engine.errors import EngineError
from engine.model.positions import Checkpoint
from engine.model.redelivery import Backoff, DeadLetter
from engine.testing.history import Call, History, value_of
from engine.testing.workload import (
    QueueReader,
    Sender,
    StreamReader,
    key_text,
    kill,
    record_outcome,
)

FINISH_S_MAX = 300.0


class StreamMember(StreamReader):
    """Now and then it takes its time, with what it was given unacknowledged."""

    stall_rate = 0.1
    stall_s_max = 3.0

    async def _acknowledge(self, consumer: Any, attach: Call, batch: Any) -> None:
        if not self._stopped and self._rng.random() < self.stall_rate:
            await asyncio.sleep(self._rng.uniform(0, self.stall_s_max))
        await super()._acknowledge(consumer, attach, batch)


class QueueMember(QueueReader):
    """Hands back, forgets until the time is over, and has dead letters. Its last life is over when nothing is left.

    What it sees carries the count of redeliveries.
    """

    ack_timeout: float | None = None
    max_redeliveries: int | None = None
    nack_rate = 0.1
    forget_rate = 0.0
    nack_s = (0.0, 0.05, 0.2)  # one of these each

    def _origin(self) -> dict[str, Any]:
        return {"ack_timeout": self.ack_timeout, "max_redeliveries": self.max_redeliveries}

    def _where(self, message: Any) -> dict[str, Any]:
        return {"count": message.redelivery_count}

    async def _attach(self, client: AsyncClient) -> Any:
        most = self.max_redeliveries
        return await client.queue_consumer(
            self._topic,
            self.subscription,
            name=self.name,
            initial_position="earliest",
            ack_timeout=self.ack_timeout,
            nack_backoff=Backoff.constant(self._rng.choice(self.nack_s)),
            dead_letter=None if most is None else DeadLetter(most),
        )

    async def _acknowledge(self, consumer: Any, attach: Call, batch: Any) -> None:
        acks = []
        for message in batch:
            luck = self._rng.random()
            if luck < self.nack_rate:
                self._history.record(self.name, "nack", attachment=attach.number, **_place(message))
                await consumer.negative_acknowledge(message)
            elif self.ack_timeout is None or luck >= self.nack_rate + self.forget_rate:
                acks.append(self._acknowledge_mine(consumer, attach, message))
        await asyncio.gather(*acks)

    async def _acknowledge_mine(self, consumer: Any, attach: Call, message: Any) -> None:
        call = self._history.invoke(
            self.name, "ack_one", subscription=self.subscription, attachment=attach.number, **_place(message)
        )
        try:
            await consumer.acknowledge(message)
        except EngineError as e:
            call.info(repr(e))
        else:
            call.ok()

    async def finish(self, left: Callable[[], Awaitable[int]] | None = None) -> None:
        """One more life: it acknowledges everything that is left, also what was handed back and comes back later.

        `left`: how many messages are, by the broker; until there is none, there is another life. Those of a consumer
        that died while it moved them as dead letters come back when their transaction has timed out.
        """
        self.nack_rate = self.forget_rate = 0.0
        await self._live(float("inf"), drain=True)
        if left is not None:
            async with asyncio.timeout(FINISH_S_MAX):
                while await left():
                    await self._live(float("inf"), drain=True)
        self._history.record(self.name, "drained", subscription=self.subscription, finished=True)


def _place(message: Any) -> dict[str, Any]:
    return {"segment": message.segment_id, "offset": message.offset}


class DelayingSender(Sender):
    """Some of what it sends is for later. Such a message has no key: it may be overtaken by others."""

    delayed_rate = 0.3
    delay_s_max = 2.0

    async def _send(self, producer: Any) -> None:
        if self._rng.random() >= self.delayed_rate:
            await super()._send(producer)
            return
        self._sent += 1
        value, after = value_of(self.name, self._sent, None), round(self._rng.uniform(0, self.delay_s_max), 3)
        call = self._history.invoke(self.name, "send", value=value.decode(), key=None, topic=self._topic, after=after)
        await record_outcome(call, producer.send(value, deliver_after=after))


class ResumingSender(Sender):
    """A program that dies time and again; each life asks where the one before stood, and sends what is missing."""

    steps = 40  # messages of one life, at most

    def connected(self, connect: Any) -> ResumingSender:
        """With a client for each life."""
        self._connect = connect
        return self

    async def run(self, count: int) -> None:
        """Send `count` messages, fewer after stop(); the last life ends in order, with all of them known."""
        number = 0
        while number < count and not self._stopped:
            number = await self._live(count, self._rng.randint(1, self.steps))
        await self._live(number, number, last=True)

    async def _live(self, count: int, steps: int, last: bool = False) -> int:
        """How many were sent when it ended."""
        self._client = self._connect()
        producer = await self._producer()
        first = producer.acknowledged_sequence_id + 1
        stop = count if last else min(count, first + steps)
        sends = []
        for number in range(first, stop):
            sends.append(asyncio.create_task(self._send_as(producer, number)))
            if self._rng.random() < 0.3:
                await asyncio.sleep(self._rng.uniform(0, self.pause_s_max))
        if last:
            await asyncio.gather(*sends)
            with contextlib.suppress(EngineError):
                await producer.close()
            await self._client.close()
            return stop
        await kill(self._client)
        for send in sends:
            send.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        return max(stop, self._sent)

    async def _send_as(self, producer: Any, number: int) -> None:
        """The same message for the same number in every life."""
        self._sent = max(self._sent, number + 1)
        key = self._keys[number * 7919 % len(self._keys)]
        value = value_of(self.name, number, key)
        call = self._history.invoke(self.name, "send", value=value.decode(), key=key, topic=self._topic)
        try:
            message_id = await producer.send(value, key=key, sequence_id=number)
        except (EngineError, asyncio.CancelledError) as e:
            call.info(repr(e))
        else:
            call.ok(segment=message_id.segment_id, offset=message_id.offset)


async def read_letters(history: History, client: AsyncClient, topic: str, subscription: str) -> int:
    """Write down the dead letters of a topic's subscription; how many."""
    consumer = await client.checkpoint_consumer(f"{topic}-DLQ", start=Checkpoint.earliest())
    count = 0
    while len(batch := await consumer.receive_batch(max_messages=1000, timeout=1.0)):
        for letter in batch:
            segment, offset = map(int, letter.properties["origin-message"].split(":"))
            value, key = letter.value.decode(), key_text(letter.key)
            history.record(
                "final",
                "letter",
                subscription=subscription,
                topic=topic,
                segment=segment,
                offset=offset,
                value=value,
                key=key,
            )
        count += len(batch)
    await consumer.close()
    return count


class NamespaceMember(StreamReader):
    """Reads every topic of a namespace. In the history it is one consumer of each, of a subscription of each."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.topics: list[str] = []  # as they are born; the history's names
        self._attachments: dict[str, int] = {}
        self._received: dict[str, dict[str, int]] = {}  # in this life, by topic and segment

    def subscription_of(self, topic: str) -> str:
        """What it is called in the history."""
        return f"{self.subscription} of {topic}"

    def born(self, topic: str) -> None:
        """From now on it has to have this one as well."""
        self.topics.append(topic)
        self._attach_to(topic)

    def _attach_to(self, topic: str) -> None:
        name = self.subscription_of(topic)
        attach = self._history.invoke(self.name, "attach", subscription=name, kind="stream", topic=topic)
        attach.ok()
        self._attachments[topic] = attach.number

    async def _attach(self, client: AsyncClient) -> Any:
        self._received = {}
        for topic in self.topics:
            self._attach_to(topic)
        return await client.stream_consumer(
            None, self.subscription, namespace=self._topic, name=self.name, initial_position="earliest"
        )

    def _write_detach(self, attach: Call, killed: bool) -> None:
        for number in self._attachments.values():
            self._history.record(self.name, "detach", attachment=number, killed=killed)
        self._attachments = {}
        super()._write_detach(attach, killed)

    def _write_delivery(self, attach: Call, message: Any) -> None:
        topic = message.topic
        received = self._received.setdefault(topic, {})
        received[str(message.segment_id)] = message.offset + 1
        self._history.record(
            self.name,
            "deliver",
            attachment=self._attachments[topic],
            topic=topic,
            value=message.value.decode(),
            key=key_text(message.key),
            segment=message.segment_id,
            offset=message.offset,
        )

    async def _acknowledge(self, consumer: Any, attach: Call, batch: Any) -> None:
        """Everything received so far, in all topics."""
        calls = [
            self._history.invoke(self.name, "ack", subscription=self.subscription_of(topic), positions=dict(positions))
            for topic, positions in self._received.items()
        ]
        try:
            await consumer.acknowledge_cumulative(batch)
        except EngineError as e:
            for call in calls:
                call.info(repr(e))
        else:
            for call in calls:
                call.ok()

    async def drain(self) -> None:
        await self._live(float("inf"), drain=True)
        for topic in self.topics:
            self._history.record(self.name, "drained", subscription=self.subscription_of(topic))
