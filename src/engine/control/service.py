"""`ScalableTopicService`: the control plane of one broker, and the only door to it (PIP-468)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.clock import Clock
from engine.control.config import ControlConfig
from engine.control.ports import ConsumerChannel, SegmentHost, SegmentSpec, TopicListener, TopicView, TopicWatch
from engine.metadata.store import MetadataStore
from engine.model.names import TopicName
from engine.model.subscriptions import ConsumerAssignment, InitialPosition, SubscriptionKind, SubscriptionMetadata

"""Signatures only, for the moment: bodies follow. Topics are given as text or TopicName."""


class ScalableTopicService:
    def __init__(self, metadata: MetadataStore, host: SegmentHost, *, clock: Clock, broker_url: str,
                 config: ControlConfig | None = None) -> None: ...
    async def start(self) -> None:
        """Begin to watch the metadata store, and resume changes that were left unfinished."""
    async def close(self) -> None:
        """Resign every leadership; consumers' channels get AlreadyClosedError. Sessions stay registered. Idempotent."""

    # Topics.
    async def create_topic(self, topic: str | TopicName, *, segments: int | None = None,
                           properties: Mapping[str, str] | None = None, key_hash: str | None = None,
                           durability: str | None = None, entry_buckets: int | None = None) -> TopicView:
        """AlreadyExistsError, InvalidArgumentError."""
    async def ensure_topic(self, topic: str | TopicName, *, create: bool = True) -> TopicView:
        """The topic's view; created with the defaults when missing, `create` is True and the broker allows it. NotFoundError."""
    async def delete_topic(self, topic: str | TopicName) -> None:
        """NotFoundError, NotOwnerError (another broker leads it)."""
    async def list_topics(self, namespace: str, properties: Mapping[str, str] | None = None) -> list[str]:
        """Names "topic://…" sorted; those that have all these properties."""
    async def get_metadata(self, topic: str | TopicName) -> dict[str, Any]:
        """The specification's JSON as a dict."""
    async def get_stats(self, topic: str | TopicName) -> dict[str, Any]: ...
    async def segment_spec(self, topic: str | TopicName, segment_id: int) -> SegmentSpec:
        """What a host needs to open a segment of the layout now. NotFoundError."""

    # Clients' watches (DagWatchSession).
    async def watch_topic(self, topic: str | TopicName, listener: TopicListener, *, create: bool = False) -> TopicWatch:
        """`watch.view` is the first view; the listener hears of newer ones."""

    # Subscriptions. `ensure_` is what SUBSCRIBE of a queue consumer needs before its first attach.
    async def create_subscription(self, topic: str | TopicName, subscription: str, *,
                                  initial_position: InitialPosition | str = InitialPosition.LATEST,
                                  kind: SubscriptionKind | str | None = None) -> SubscriptionMetadata:
        """AlreadyExistsError, NotFoundError (topic), NotOwnerError."""
    async def ensure_subscription(self, topic: str | TopicName, subscription: str, *,
                                  initial_position: InitialPosition | str = InitialPosition.LATEST,
                                  kind: SubscriptionKind | str | None = None) -> SubscriptionMetadata: ...
    async def delete_subscription(self, topic: str | TopicName, subscription: str) -> None: ...
    async def list_subscriptions(self, topic: str | TopicName) -> list[SubscriptionMetadata]: ...
    async def seek_subscription(self, topic: str | TopicName, subscription: str, when: InitialPosition | str | int) -> None:
        """`when`: "earliest", "latest" or wall-clock ms (SEMANTICS 38)."""
    async def clear_backlog(self, topic: str | TopicName, subscription: str) -> None: ...

    # Consumers (SCALABLE_TOPIC_SUBSCRIBE / _UNSUBSCRIBE / connection lost).
    async def register_consumer(self, topic: str | TopicName, subscription: str, consumer_name: str, *, instance: str,
                                channel: ConsumerChannel, kind: SubscriptionKind | str = SubscriptionKind.STREAM,
                                initial_position: InitialPosition | str = InitialPosition.LATEST) -> ConsumerAssignment:
        """NotFoundError (topic), NotOwnerError (look again), InvalidArgumentError."""
    async def unregister_consumer(self, topic: str | TopicName, subscription: str, consumer_name: str, *, instance: str) -> bool:
        """Clean leave, durable at the return; False when a stale instance (nothing changed)."""
    def disconnect_consumer(self, topic: str | TopicName, subscription: str, consumer_name: str, *, instance: str) -> None:
        """Its connection dropped: the grace timer starts. Never waits, never raises."""
