"""`EnginePublisher`: publishes to one topic, also what handlers return."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.types import PublisherMiddleware
from faststream.response import PublishCommand
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

import engine
from faststream_engine.config import EngineBrokerConfig, EnginePublisherConfig, EnginePublisherSpecificationConfig
from faststream_engine.producer import EngineProducer
from faststream_engine.response import EnginePublishCommand as Command
from faststream_engine.response import PublishOptions, RequestOptions


class EnginePublisherSpecification(PublisherSpecification[EngineBrokerConfig, EnginePublisherSpecificationConfig]):
    """What AsyncAPI says of a publisher: its topic, and what the handlers it decorates return."""

    @property
    def topic(self) -> str:
        """Its topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """Its title, or made of the topic."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Its channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        operation = Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None)
        described = self.config.description_
        return {self.name: PublisherSpec(address=self.topic, description=described, operation=operation, bindings=None)}


class EnginePublisher(PublisherUsecase):
    """Publishes to one topic. Made by `broker.publisher`."""

    _outer_config: EngineBrokerConfig

    def __init__(self, config: EnginePublisherConfig, specification: PublisherSpecification[Any, Any]) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.key = config.key
        self.headers = config.headers
        self.reply_to = config.reply_to
        self.deliver_after = config.deliver_after
        self.batch = config.batch

    @property
    def topic(self) -> str:
        """Its topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> engine.MessageId | None:
        """As EngineBroker.publish, by default with this publisher's topic, key, headers, and delay.

        With batch=True `message` is a sequence of bodies, published as by publish_batch; returns None.
        """
        bodies = message if self.batch else [message]
        found: engine.MessageId | None = await self._published(
            self._command(*(bodies or [None]), topic=topic, _publish_type=PublishType.PUBLISH, **options), ()
        )
        return found

    def _command(self, *messages: Any, topic: str, correlation_id: str | None = None, **own: Any) -> Command:
        """What is published, with what this publisher says where the message has nothing of its own."""
        known = correlation_id or self._outer_config.id_generator()
        return self._completed(Command(*messages, topic=topic, correlation_id=known, **own))

    def _completed(self, cmd: Command) -> Command:
        cmd.destination = cmd.destination or self.topic
        cmd.add_headers(self.headers, override=False)
        cmd.key = self.key if cmd.key is None else cmd.key
        if cmd.publish_type is not PublishType.REQUEST:
            cmd.reply_to = cmd.reply_to or self.reply_to
            if cmd.deliver_after is None and cmd.deliver_at is None:
                cmd.deliver_after = self.deliver_after
        return cmd

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """What a handler has returned."""
        made = Command.from_cmd(cmd, batch=self.batch)
        made.destination = self.topic
        await self._published(self._completed(made), _extra_middlewares)

    async def _published(self, cmd: Command, extra: Iterable[PublisherMiddleware]) -> Any:
        producer = self._outer_config.producer
        if self.batch:
            await self._basic_publish_batch(cmd, producer=producer, _extra_middlewares=extra)
            return None
        return await self._basic_publish(cmd, producer=producer, _extra_middlewares=extra)

    async def request(self, message: Any = None, topic: str = "", **options: Unpack[RequestOptions]) -> Any:
        """As EngineBroker.request, by default with this publisher's topic, key and headers."""
        cmd = self._command(message, topic=topic, _publish_type=PublishType.REQUEST, **options)
        return await self._basic_request(cmd, producer=self._outer_config.producer)


class EngineFakePublisher(FakePublisher):
    """Publishes what a handler returned to the topic that the message asked for answers in."""

    def __init__(self, producer: EngineProducer, *, topic: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic

    def patch_command(self, cmd: PublishCommand) -> Command:
        """The same, to that topic."""
        made = Command.from_cmd(super().patch_command(cmd))
        made.destination = self._topic
        return made
