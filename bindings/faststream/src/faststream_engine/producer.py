"""What publishes: one producer for each topic."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

import engine
from faststream_engine.parser import CONTENT_TYPE, CORRELATION_ID, REPLY_TO, EngineParser
from faststream_engine.response import EnginePublishCommand, EngineResponse

PRODUCERS_MAX = 256
REQUEST_TIMEOUT_S = 30.0


def properties_of(sent: EngineResponse, content_type: str | None, reply_to: str) -> dict[str, str]:
    """The properties of a message: its headers as text, and what FastStream adds."""
    added = {CONTENT_TYPE: content_type, CORRELATION_ID: sent.correlation_id, REPLY_TO: reply_to}
    return {name: str(value) for name, value in sent.headers.items()} | {k: v for k, v in added.items() if v}


class EngineProducer(ProducerProto[EnginePublishCommand]):
    """Publishes by the client that it is connected to. Everything is durable when its method returns."""

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        default = EngineParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: Any = None
        self._client: engine.AsyncClient | None = None
        self._producers: OrderedDict[str, asyncio.Future[engine.AsyncProducer[bytes]]] = OrderedDict()

    def connect(self, client: engine.AsyncClient, serializer: Any, codec: CodecProto) -> None:
        """Publish by `client` from now on."""
        self._client = client
        self.serializer = serializer
        self.codec = codec

    async def disconnect(self) -> None:
        """Close the producers, which waits until what was sent is durable."""
        self._client = None
        producers, self._producers = list(self._producers.values()), OrderedDict()
        for future in producers:
            with suppress(engine.EngineError):  # each send has told its caller
                await (await future).close()

    async def encoded(self, cmd: EnginePublishCommand) -> list[tuple[EngineResponse, bytes, dict[str, str]]]:
        """Each message of the command, with its value and its properties."""
        each = cmd.each()
        if len(each) > 1 and isinstance(self.codec, BatchCodecProto):
            bodies = await self.codec.encode_batch([one.body for one in each], self.serializer)
        else:
            bodies = [await self.codec.encode(one.body, self.serializer) for one in each]
        return [
            (one, value, properties_of(one, content_type, cmd.reply_to))
            for one, (value, content_type) in zip(each, bodies, strict=True)
        ]

    async def publish(self, cmd: EnginePublishCommand) -> engine.MessageId | None:
        """The id of the message, which is durable, or will be with the transaction."""
        made = [await self._made_one(cmd)]
        found: engine.MessageId | None = (await self._send(cmd, made))[0]
        return found

    async def _made_one(self, cmd: EnginePublishCommand) -> tuple[EngineResponse, bytes, dict[str, str]]:
        """The message of a command whose body may be None, which is an empty one."""
        if cmd.body is not None:
            return (await self.encoded(cmd))[0]
        one = cmd.made_of(EngineResponse(None))
        value, content_type = await self.codec.encode(None, self.serializer)
        return one, value, properties_of(one, content_type, cmd.reply_to)

    async def publish_batch(self, cmd: EnginePublishCommand) -> Sequence[engine.MessageId | None]:
        """The ids of the messages, in order."""
        made = await self.encoded(cmd)
        return await self._send(cmd, made) if made else []

    async def _send(
        self, cmd: EnginePublishCommand, made: Sequence[tuple[EngineResponse, bytes, Mapping[str, str]]]
    ) -> list[Any]:
        producer = await self._producer(cmd.destination)
        sends = [
            producer.send(
                value,
                key=one.key,
                properties=properties,
                deliver_after=one.deliver_after,
                deliver_at=one.deliver_at,
                transaction=cmd.transaction,
            )
            for one, value, properties in made
        ]
        results = await asyncio.gather(*sends, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def _producer(self, topic: str) -> engine.AsyncProducer[bytes]:
        """The producer of a topic; the one that was used longest ago is closed where there are too many."""
        if self._client is None:
            raise IncorrectState("the broker is not connected: await broker.connect() or broker.start() first")
        if not topic:
            raise engine.InvalidArgumentError("topic must be the name of a topic, got an empty one")
        future = self._producers.get(topic)
        if future is None:
            future = self._producers[topic] = asyncio.ensure_future(_opened(self._client, topic))
            future.add_done_callback(lambda done: self._forget_failed(topic, done))
        self._producers.move_to_end(topic)
        producer = await asyncio.shield(future)
        if len(self._producers) > PRODUCERS_MAX:
            _, oldest = self._producers.popitem(last=False)
            with suppress(engine.EngineError):
                await (await oldest).close()
        return producer

    def _forget_failed(self, topic: str, done: asyncio.Future[Any]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._producers.get(topic) is done:
            del self._producers[topic]

    async def request(self, cmd: EnginePublishCommand) -> Any:
        """Publish with a topic for the answer, and wait for it. Raises TimeoutError."""
        one, value, properties = await self._made_one(cmd)
        if one.deliver_after is not None or one.deliver_at is not None:
            raise engine.InvalidArgumentError("a request must have no deliver_after and no deliver_at, got one of them")
        producer = await self._producer(cmd.destination)
        timeout = REQUEST_TIMEOUT_S if cmd.timeout is None else cmd.timeout
        return await producer.request(value, timeout=timeout, key=one.key, properties=properties)


async def _opened(client: engine.AsyncClient, topic: str) -> engine.AsyncProducer[bytes]:
    return await client.producer(topic)
