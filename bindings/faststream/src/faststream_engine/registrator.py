"""`subscriber` and `publisher`: what brokers and routers have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from fast_depends.dependencies import Dependant
from faststream import AckPolicy
from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.parser import CodecProto
from faststream._internal.types import BrokerMiddleware, CustomCallable

import engine
from faststream_engine.config import (
    EngineBrokerConfig,
    EnginePublisherConfig,
    EnginePublisherSpecificationConfig,
    EngineSubscriberConfig,
    EngineSubscriberSpecificationConfig,
    Kind,
    Reading,
)
from faststream_engine.publisher import EnginePublisher, EnginePublisherSpecification
from faststream_engine.response import Due, Key
from faststream_engine.subscriber import EngineSubscriber, EngineSubscriberSpecification


class EngineRegistrator(Registrator[Any, EngineBrokerConfig]):
    """Declares subscribers and publishers, for a broker or for a router that a broker includes."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        subscription: str | None = None,
        kind: Kind = "queue",
        initial_position: engine.Checkpoint | Literal["earliest", "latest"] = "latest",
        batch: bool = False,
        max_messages: int = 100,
        max_workers: int = 1,
        nack_backoff: engine.Backoff | float | None = None,
        ack_timeout: float | None = None,
        dead_letter: engine.DeadLetter | None = None,
        consumer_options: Mapping[str, Any] | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> EngineSubscriber:
        """Declare handlers of a topic.

        `kind`: "queue": single messages, each to one consumer of the `subscription`, in no order; "stream": in order
        per key; "checkpoint": in order, every program on its own, with nothing kept in the broker and no
        `subscription`. `initial_position`: where a new subscription begins; with "checkpoint", where this begins, also
        an engine.Checkpoint. `batch`: handlers get lists of at most `max_messages`. `max_workers`: how many calls run
        side by side; in order kinds, those of one key one after the other. `nack_backoff`: how long what failed is kept
        back, an engine.Backoff or seconds. `ack_timeout`: seconds after which an unsettled message of a queue comes
        again. `dead_letter`: an engine.DeadLetter: after how many redeliveries, and where to; also where what is
        rejected goes. `consumer_options`: more keyword arguments of the consumer of `engine`, such as
        `receive_queue_size` or `decryption_keys`. `ack_policy`: NACK_ON_ERROR by default. The rest is FastStream's.

        Raises SetupError.
        """
        if not isinstance(nack_backoff, engine.Backoff):
            nack_backoff = engine.Backoff() if nack_backoff is None else engine.Backoff.constant(nack_backoff)
        reading = Reading(
            topic=topic,
            subscription=subscription,
            kind=kind,
            start=initial_position,
            batch=batch,
            max_messages=max_messages,
            max_workers=max_workers,
            nack_backoff=nack_backoff,
            ack_timeout=ack_timeout,
            dead_letter=dead_letter,
            options=consumer_options or {},
        )
        outer = cast("EngineBrokerConfig", self.config)
        config = EngineSubscriberConfig(reading=reading, no_reply=no_reply, _outer_config=outer, _ack_policy=ack_policy)
        calls = CallsCollection[Any]()
        documented = EngineSubscriberSpecificationConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        )
        made = EngineSubscriber(config, EngineSubscriberSpecification(outer, documented, calls), calls)
        super().subscriber(made, persistent=persistent)
        return made.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            dependencies_=dependencies,
            codec_=codec,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        key: Key = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        deliver_after: Due = None,
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> EnginePublisher:
        """Declare what publishes to a topic: a decorator of handlers, which publishes what they return.

        `key`, `headers`, `reply_to`, `deliver_after`: of messages that have none of their own. `batch`: each item of
        the sequence that a handler returns is a message.
        """
        outer = cast("EngineBrokerConfig", self.config)
        config = EnginePublisherConfig(
            topic=topic,
            key=key,
            headers=headers or {},
            reply_to=reply_to,
            deliver_after=deliver_after,
            batch=batch,
            _outer_config=outer,
        )
        documented = EnginePublisherSpecificationConfig(
            topic=topic,
            schema_=schema,
            title_=title,
            description_=description,
            include_in_schema=include_in_schema,
        )
        made = EnginePublisher(config, EnginePublisherSpecification(outer, documented))
        super().publisher(made, persistent=persistent)
        return made

    def include_router(  # type: ignore[override]
        self,
        router: EngineRegistrator,
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Take over what a router declares. Raises TypeError for a router of another broker."""
        if not isinstance(router, EngineRegistrator):
            raise TypeError(f"router must be an EngineRouter, got {type(router).__name__}")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
