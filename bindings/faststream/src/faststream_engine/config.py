"""What brokers, subscribers and publishers are made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from faststream import AckPolicy
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
    UnderlyingDriverAnnotation,
    UnderlyingDriverAnnotations,
)
from faststream._internal.constants import EMPTY
from faststream._internal.parser import DefaultCodec
from faststream.exceptions import IncorrectState, SetupError

import engine
from faststream_engine.producer import EngineProducer
from faststream_engine.response import Due, Key

Kind = Literal["queue", "stream", "checkpoint"]
KINDS = ("queue", "stream", "checkpoint")


def _driver_annotations() -> UnderlyingDriverAnnotations:
    """What to write where a handler names a class of the driver itself, which FastStream would take for a body."""
    from faststream_engine import annotations, broker, message  # they import this module

    rows = {
        engine.AsyncClient: ("Client", annotations.Client),
        broker.EngineBroker: ("EngineBroker", annotations.EngineBroker),
        message.EngineMessage: ("EngineMessage", annotations.EngineMessage),
    }
    return MappingProxyType(
        {
            driver: UnderlyingDriverAnnotation(type_hint=hint, module=annotations.__name__, name=name)
            for driver, (name, hint) in rows.items()
        }
    )


@dataclass(kw_only=True)
class EngineBrokerConfig(BrokerConfig):
    """Of a broker or a router. The client is there while the broker is connected."""

    producer: EngineProducer = field(default_factory=EngineProducer)
    _client: engine.AsyncClient | None = field(default=None, init=False, repr=False)
    default_driver_annotations: UnderlyingDriverAnnotations = field(default_factory=_driver_annotations)

    @property
    def client(self) -> engine.AsyncClient:
        """The client of the broker. Raises IncorrectState before it is connected."""
        if self._client is None:
            raise IncorrectState("the broker is not connected: await broker.connect() or broker.start() first")
        return self._client

    def connect(self, client: engine.AsyncClient) -> None:
        """Publish and subscribe by `client` from now on."""
        self._client = client
        self.producer.connect(client, self.fd_config._serializer, self.broker_codec or DefaultCodec())

    async def disconnect(self) -> None:
        """Flush what is being published, and forget the client."""
        self._client = None
        await self.producer.disconnect()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a subscriber reads its topic; checked when it is declared. Raises SetupError."""

    topic: str
    subscription: str | None = None
    kind: Kind = "queue"
    start: engine.Checkpoint | Literal["earliest", "latest"] = "latest"
    batch: bool = False
    max_messages: int = 100
    max_workers: int = 1
    nack_backoff: engine.Backoff = field(default_factory=engine.Backoff)
    ack_timeout: float | None = None
    dead_letter: engine.DeadLetter | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.topic:
            raise SetupError("topic must be the name of a topic, got an empty one")
        if self.kind not in KINDS:
            raise SetupError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        self._check_subscription()
        for name in ("max_messages", "max_workers"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise SetupError(f"{name} must be an int >= 1, got {value!r}")
        if self.batch and self.is_ordered and self.max_workers > 1:
            raise SetupError(f"max_workers must be 1 for batches of kind={self.kind!r}, whose order is kept")

    def _check_subscription(self) -> None:
        if self.kind == "checkpoint":
            unused = [name for name in ("subscription", "ack_timeout") if getattr(self, name) is not None]
            if unused:
                raise SetupError(
                    f"{unused[0]} must be left out with kind='checkpoint', which leaves nothing in the broker"
                )
        elif not self.subscription:
            raise SetupError(f"subscription must be a name that the broker remembers kind={self.kind!r} by, got none")
        elif self.start not in ("earliest", "latest"):
            raise SetupError(
                "initial_position must be 'earliest' or 'latest' but with kind='checkpoint', got a Checkpoint"
            )
        elif self.kind == "stream" and self.ack_timeout is not None:
            raise SetupError("ack_timeout must be left out with kind='stream'; queue subscribers have one")

    @property
    def is_ordered(self) -> bool:
        """Whether messages of one key are handled in order, one after the other."""
        return self.kind != "queue"


@dataclass(kw_only=True)
class EngineSubscriberConfig(SubscriberUsecaseConfig):
    """Of one subscriber."""

    _outer_config: EngineBrokerConfig = field(default_factory=EngineBrokerConfig)
    reading: Reading

    @property
    def ack_policy(self) -> AckPolicy:
        """Its own, or the broker's, or NACK_ON_ERROR: what failed comes again."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if outer is EMPTY else outer


@dataclass(kw_only=True)
class EngineSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What AsyncAPI says of a subscriber."""

    topic: str


@dataclass(kw_only=True)
class EnginePublisherConfig(PublisherUsecaseConfig):
    """Of one publisher."""

    _outer_config: EngineBrokerConfig = field(default_factory=EngineBrokerConfig)
    topic: str
    key: Key
    headers: dict[str, str]
    reply_to: str
    deliver_after: Due
    batch: bool


@dataclass(kw_only=True)
class EnginePublisherSpecificationConfig(PublisherSpecificationConfig):
    """What AsyncAPI says of a publisher."""

    topic: str
