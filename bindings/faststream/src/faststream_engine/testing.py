"""`TestEngineBroker`: handlers without a broker, or on a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

import engine
from faststream_engine.broker import EngineBroker
from faststream_engine.parser import EngineParser
from faststream_engine.producer import REQUEST_TIMEOUT_S, EngineProducer, properties_of
from faststream_engine.publisher import EnginePublisher
from faststream_engine.response import EnginePublishCommand, EngineResponse
from faststream_engine.subscriber import EngineSubscriber

__all__ = ("TestEngineBroker", "TestMessage")


@dataclass
class TestMessage:
    """What an engine.Message says, of a message that no broker has seen."""

    __test__ = False

    value: bytes
    topic: str
    key: bytes | None = None
    properties: dict[str, str] = field(default_factory=dict)
    offset: int = 0
    segment_id: int = 0
    redelivery_count: int = 0
    sequence_id: int = 0
    producer_name: str = "test"
    event_time: datetime | None = None
    publish_time: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def id(self) -> str:
        """Segment and offset."""
        return f"{self.segment_id}:{self.offset}"

    @property
    def size(self) -> int:
        """Of the value and the key, bytes."""
        return len(self.value) + len(self.key or b"")


class TestEngineBroker(TestBroker[EngineBroker, EnterType], broker=EngineBroker):
    """Publishing calls the handlers of the topic at once, and raises what they raise; delays do not wait.

    Nothing is delivered again: what a handler did with its message is in `message.committed`. Of the handlers of one
    subscription, one gets the message. With `with_real=True` the broker is a real one, and handlers are called
    as in production; await `handler.wait_call(timeout=…)`.
    """

    def create_publisher_fake_subscriber(
        self, broker: EngineBroker, publisher: EnginePublisher
    ) -> tuple[EngineSubscriber, bool]:
        """What records that a publisher was called: a handler of its topic, or one that is made for the test."""
        for each in self.brokers:
            for found in cast("list[EngineSubscriber]", each.subscribers):
                if found.topic == publisher.topic:
                    return found, True
        topic = publisher.topic.removeprefix(broker.config.prefix)
        return broker.subscriber(topic, kind="checkpoint", batch=publisher.batch, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: EngineBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: EngineBroker, *args: Any, **kwargs: Any) -> Any:
        client = FakeClient()
        broker.config.broker_config._client = cast("engine.AsyncClient", client)
        return client


class FakeConsumer:
    """Of a subscriber that is started inside a test: nothing comes from it."""

    async def receive(self, timeout: float | None = None) -> None:
        """Wait for ever."""
        await asyncio.get_running_loop().create_future()

    async def receive_batch(self, **options: Any) -> None:
        """Wait for ever."""
        await self.receive()

    async def close(self) -> None:
        """Nothing is open."""


class FakeClient:
    """Makes consumers that nothing comes from."""

    async def queue_consumer(self, *args: Any, **options: Any) -> FakeConsumer:
        """Of any topic."""
        return FakeConsumer()

    stream_consumer = checkpoint_consumer = queue_consumer


class FakeProducer(EngineProducer):
    """Calls the handlers of a topic with what is published to it."""

    def __init__(self, broker: EngineBroker, brokers: Sequence[EngineBroker]) -> None:
        super().__init__()
        default = EngineParser()
        self._parser = ParserComposition(broker._parser, default.parse_message)
        self._decoder = ParserComposition(broker._decoder, default.decode_message)
        self.codec = broker.config.broker_codec or DefaultCodec()
        self.serializer = broker.config.fd_config._serializer
        self._brokers = brokers
        self._count = 0

    def __bool__(self) -> bool:
        return True

    def _handlers(self, topic: str) -> Iterator[EngineSubscriber]:
        """One subscriber for each subscription of the topic, and every one without."""
        seen = set()
        for broker in self._brokers:
            for found in cast("list[EngineSubscriber]", broker.subscribers):
                name = found.reading.subscription
                if found.topic == topic and found.calls and name not in seen:
                    seen.add(name)
                    seen.discard(None)
                    yield found

    def _message(self, topic: str, made: tuple[EngineResponse, bytes, dict[str, str]]) -> TestMessage:
        sent, value, properties = made
        self._count += 1
        key = sent.key.encode() if isinstance(sent.key, str) else sent.key
        return TestMessage(value, topic, key, properties, offset=self._count - 1)

    async def publish(self, cmd: EnginePublishCommand) -> None:
        """Call each handler with the message."""
        message = self._message(cmd.destination, await self._made_one(cmd))
        for handler in self._handlers(cmd.destination):
            await handler.process_message((message,) if handler.reading.batch else message)

    async def publish_batch(self, cmd: EnginePublishCommand) -> list[None]:
        """Call each handler with the messages, together or one after the other."""
        messages = [self._message(cmd.destination, made) for made in await self.encoded(cmd)]
        for handler in self._handlers(cmd.destination):
            if handler.reading.batch:
                await handler.process_message(tuple(messages))
                continue
            for message in messages:
                await handler.process_message(message)
        return []

    async def request(self, cmd: EnginePublishCommand) -> TestMessage:
        """What a handler returns that answers."""
        message = self._message(cmd.destination, await self._made_one(cmd))
        for handler in self._handlers(cmd.destination):
            if handler._no_reply:
                continue
            async with asyncio.timeout(REQUEST_TIMEOUT_S if cmd.timeout is None else cmd.timeout):
                result = await handler.process_message((message,) if handler.reading.batch else message)
            value, content_type = await self.codec.encode(result.body, self.serializer)
            answer = EngineResponse(None, headers=result.headers, correlation_id=result.correlation_id)
            return self._message("replies", (answer, value, properties_of(answer, content_type, "")))
        raise SubscriberNotFound
