"""`EnginePublisher`: publishes to one topic, also what handlers return."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

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
from faststream_engine.response import Due, EnginePublishCommand, Key


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
        self,
        message: Any = None,
        topic: str = "",
        *,
        key: Key = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        deliver_after: Due = None,
        deliver_at: datetime | None = None,
        transaction: engine.AsyncTransaction | None = None,
    ) -> engine.MessageId | None:
        """As EngineBroker.publish, by default with this publisher's topic, key, headers, and delay.

        With batch=True `message` is a sequence of bodies, published as by publish_batch; returns None.
        """
        bodies = message if self.batch else [message]
        is_timed = deliver_after is not None or deliver_at is not None
        cmd = EnginePublishCommand(
            *(bodies or [None]),
            topic=topic or self.topic,
            key=self.key if key is None else key,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self.reply_to,
            deliver_after=deliver_after if is_timed else self.deliver_after,
            deliver_at=deliver_at,
            transaction=transaction,
            _publish_type=PublishType.PUBLISH,
        )
        found: engine.MessageId | None = await self._published(cmd, ())
        return found

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """What a handler has returned."""
        made = EnginePublishCommand.from_cmd(cmd, batch=self.batch)
        made.destination = self.topic
        made.add_headers(self.headers, override=False)
        made.reply_to = made.reply_to or self.reply_to
        made.key = self.key if made.key is None else made.key
        if made.deliver_after is None and made.deliver_at is None:
            made.deliver_after = self.deliver_after
        await self._published(made, _extra_middlewares)

    async def _published(self, cmd: EnginePublishCommand, extra: Iterable[PublisherMiddleware]) -> Any:
        producer = self._outer_config.producer
        if self.batch:
            await self._basic_publish_batch(cmd, producer=producer, _extra_middlewares=extra)
            return None
        return await self._basic_publish(cmd, producer=producer, _extra_middlewares=extra)

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        key: Key = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float = 30.0,
    ) -> Any:
        """As EngineBroker.request, by default with this publisher's topic, key and headers."""
        cmd = EnginePublishCommand(
            message,
            topic=topic or self.topic,
            key=self.key if key is None else key,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        return await self._basic_request(cmd, producer=self._outer_config.producer)


class EngineFakePublisher(FakePublisher):
    """Publishes what a handler returned to the topic that the message asked for answers in."""

    def __init__(self, producer: EngineProducer, *, topic: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic

    def patch_command(self, cmd: PublishCommand) -> EnginePublishCommand:
        """The same, to that topic."""
        made = EnginePublishCommand.from_cmd(super().patch_command(cmd))
        made.destination = self._topic
        return made
