"""How type checkers see the factories of `Client`: the schema decides on the type of values.

See engine/client/signatures.py, which does the same for `AsyncClient`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, cast, overload

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from engine.client.base.options import (
        CheckpointConsumerKeywords,
        ProducerKeywords,
        QueueConsumerKeywords,
        StreamConsumerKeywords,
    )
    from engine.client.base.schema import Schema
    from engine.client.topic.topic_list import Topics
    from engine.client.views.table_view import TableViewKeywords
    from engine.sync.consumers import CheckpointConsumer, QueueConsumer, StreamConsumer
    from engine.sync.producer import Producer
    from engine.sync.table_view import TableView

T = TypeVar("T")
Factory = Callable[..., Any]


class MakesProducer(Protocol):
    """See Client.producer."""

    @overload
    def __call__(
        self, topic: str, *, block_when_full: bool = True, schema: None = None, **options: Unpack[ProducerKeywords]
    ) -> Producer[Buffer]: ...
    @overload
    def __call__(
        self,
        topic: str,
        *,
        block_when_full: bool = True,
        schema: type[T] | Schema[T],
        **options: Unpack[ProducerKeywords],
    ) -> Producer[T]: ...
    @overload
    def __call__(
        self, topic: str, *, block_when_full: bool = True, schema: object, **options: Unpack[ProducerKeywords]
    ) -> Producer[Any]: ...


class MakesStreamConsumer(Protocol):
    """See Client.stream_consumer."""

    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: None = None, **options: Unpack[StreamConsumerKeywords]
    ) -> StreamConsumer[bytes]: ...
    @overload
    def __call__(
        self,
        topic: Topics,
        subscription: str,
        *,
        schema: type[T] | Schema[T],
        **options: Unpack[StreamConsumerKeywords],
    ) -> StreamConsumer[T]: ...
    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: object, **options: Unpack[StreamConsumerKeywords]
    ) -> StreamConsumer[Any]: ...


class MakesQueueConsumer(Protocol):
    """See Client.queue_consumer."""

    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: None = None, **options: Unpack[QueueConsumerKeywords]
    ) -> QueueConsumer[bytes]: ...
    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: type[T] | Schema[T], **options: Unpack[QueueConsumerKeywords]
    ) -> QueueConsumer[T]: ...
    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: object, **options: Unpack[QueueConsumerKeywords]
    ) -> QueueConsumer[Any]: ...


class MakesCheckpointConsumer(Protocol):
    """See Client.checkpoint_consumer."""

    @overload
    def __call__(
        self, topic: str, *, schema: None = None, **options: Unpack[CheckpointConsumerKeywords]
    ) -> CheckpointConsumer[bytes]: ...
    @overload
    def __call__(
        self, topic: str, *, schema: type[T] | Schema[T], **options: Unpack[CheckpointConsumerKeywords]
    ) -> CheckpointConsumer[T]: ...
    @overload
    def __call__(
        self, topic: str, *, schema: object, **options: Unpack[CheckpointConsumerKeywords]
    ) -> CheckpointConsumer[Any]: ...


class MakesTableView(Protocol):
    """See Client.table_view."""

    @overload
    def __call__(
        self, topic: str, *, schema: None = None, **options: Unpack[TableViewKeywords]
    ) -> TableView[bytes]: ...
    @overload
    def __call__(
        self, topic: str, *, schema: type[T] | Schema[T], **options: Unpack[TableViewKeywords]
    ) -> TableView[T]: ...
    @overload
    def __call__(self, topic: str, *, schema: object, **options: Unpack[TableViewKeywords]) -> TableView[Any]: ...


def makes_producer(factory: Factory) -> MakesProducer:
    """Typed by the schema."""
    return cast(MakesProducer, factory)


def makes_stream_consumer(factory: Factory) -> MakesStreamConsumer:
    """Typed by the schema."""
    return cast(MakesStreamConsumer, factory)


def makes_queue_consumer(factory: Factory) -> MakesQueueConsumer:
    """Typed by the schema."""
    return cast(MakesQueueConsumer, factory)


def makes_checkpoint_consumer(factory: Factory) -> MakesCheckpointConsumer:
    """Typed by the schema."""
    return cast(MakesCheckpointConsumer, factory)


def makes_table_view(factory: Factory) -> MakesTableView:
    """Typed by the schema."""
    return cast(MakesTableView, factory)
