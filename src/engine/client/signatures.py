"""How type checkers see the factories of `AsyncClient`: the schema decides on the type of values.

Without a schema any buffer is sent, and bytes are received. A type, or a Schema of it, is the type of the values. With
anything else (`Schema.json()`, a union) values may be anything.

Each Protocol is the type of a method, and the decorator of its name gives it to the method.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack, cast, overload

from engine.client.base.entering import Entering, entering

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from engine.client.base.options import (
        CheckpointConsumerKeywords,
        ProducerKeywords,
        QueueConsumerKeywords,
        StreamConsumerKeywords,
    )
    from engine.client.base.schema import Schema
    from engine.client.consume.checkpoint_consumer import AsyncCheckpointConsumer
    from engine.client.consume.queue_consumer import AsyncQueueConsumer
    from engine.client.consume.stream_consumer import AsyncStreamConsumer
    from engine.client.many.multi import AsyncMultiQueueConsumer, AsyncMultiStreamConsumer
    from engine.client.produce.producer import AsyncProducer
    from engine.client.views.table_view import AsyncTableView, TableViewKeywords

T = TypeVar("T")
Topics = list[str] | tuple[str, ...] | set[str] | frozenset[str] | None  # None: with a namespace
Factory = Callable[..., Coroutine[Any, Any, Any]]


class MakesProducer(Protocol):
    """See AsyncClient.producer."""

    @overload
    def __call__(
        self, topic: str, *, schema: None = None, **options: Unpack[ProducerKeywords]
    ) -> Entering[AsyncProducer[Buffer]]: ...
    @overload
    def __call__(
        self, topic: str, *, schema: type[T] | Schema[T], **options: Unpack[ProducerKeywords]
    ) -> Entering[AsyncProducer[T]]: ...
    @overload
    def __call__(
        self, topic: str, *, schema: object, **options: Unpack[ProducerKeywords]
    ) -> Entering[AsyncProducer[Any]]: ...


class MakesStreamConsumer(Protocol):
    """See AsyncClient.stream_consumer."""

    @overload
    def __call__(
        self, topic: str, subscription: str, *, schema: None = None, **options: Unpack[StreamConsumerKeywords]
    ) -> Entering[AsyncStreamConsumer[bytes]]: ...
    @overload
    def __call__(
        self, topic: str, subscription: str, *, schema: type[T] | Schema[T], **options: Unpack[StreamConsumerKeywords]
    ) -> Entering[AsyncStreamConsumer[T]]: ...
    @overload
    def __call__(
        self, topic: str, subscription: str, *, schema: object, **options: Unpack[StreamConsumerKeywords]
    ) -> Entering[AsyncStreamConsumer[Any]]: ...
    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: None = None, **options: Unpack[StreamConsumerKeywords]
    ) -> Entering[AsyncMultiStreamConsumer[bytes]]: ...
    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: type[T] | Schema[T],
        **options: Unpack[StreamConsumerKeywords],
    ) -> Entering[AsyncMultiStreamConsumer[T]]: ...  # fmt: skip
    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: object, **options: Unpack[StreamConsumerKeywords]
    ) -> Entering[AsyncMultiStreamConsumer[Any]]: ...


class MakesQueueConsumer(Protocol):
    """See AsyncClient.queue_consumer."""

    @overload
    def __call__(
        self, topic: str, subscription: str, *, schema: None = None, **options: Unpack[QueueConsumerKeywords]
    ) -> Entering[AsyncQueueConsumer[bytes]]: ...
    @overload
    def __call__(
        self, topic: str, subscription: str, *, schema: type[T] | Schema[T], **options: Unpack[QueueConsumerKeywords]
    ) -> Entering[AsyncQueueConsumer[T]]: ...
    @overload
    def __call__(
        self, topic: str, subscription: str, *, schema: object, **options: Unpack[QueueConsumerKeywords]
    ) -> Entering[AsyncQueueConsumer[Any]]: ...
    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: None = None, **options: Unpack[QueueConsumerKeywords]
    ) -> Entering[AsyncMultiQueueConsumer[bytes]]: ...
    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: type[T] | Schema[T],
        **options: Unpack[QueueConsumerKeywords],
    ) -> Entering[AsyncMultiQueueConsumer[T]]: ...  # fmt: skip
    @overload
    def __call__(
        self, topic: Topics, subscription: str, *, schema: object, **options: Unpack[QueueConsumerKeywords]
    ) -> Entering[AsyncMultiQueueConsumer[Any]]: ...


class MakesCheckpointConsumer(Protocol):
    """See AsyncClient.checkpoint_consumer."""

    @overload
    def __call__(
        self, topic: str, *, schema: None = None, **options: Unpack[CheckpointConsumerKeywords]
    ) -> Entering[AsyncCheckpointConsumer[bytes]]: ...
    @overload
    def __call__(
        self, topic: str, *, schema: type[T] | Schema[T], **options: Unpack[CheckpointConsumerKeywords]
    ) -> Entering[AsyncCheckpointConsumer[T]]: ...
    @overload
    def __call__(
        self, topic: str, *, schema: object, **options: Unpack[CheckpointConsumerKeywords]
    ) -> Entering[AsyncCheckpointConsumer[Any]]: ...


class MakesTableView(Protocol):
    """See AsyncClient.table_view."""

    @overload
    def __call__(
        self, topic: str, *, schema: None = None, **options: Unpack[TableViewKeywords]
    ) -> Entering[AsyncTableView[bytes]]: ...
    @overload
    def __call__(
        self, topic: str, *, schema: type[T] | Schema[T], **options: Unpack[TableViewKeywords]
    ) -> Entering[AsyncTableView[T]]: ...
    @overload
    def __call__(
        self, topic: str, *, schema: object, **options: Unpack[TableViewKeywords]
    ) -> Entering[AsyncTableView[Any]]: ...


def makes_producer(factory: Factory) -> MakesProducer:
    """Awaited or entered, and typed by the schema."""
    return cast(MakesProducer, entering(factory))


def makes_stream_consumer(factory: Factory) -> MakesStreamConsumer:
    """Awaited or entered, and typed by the schema."""
    return cast(MakesStreamConsumer, entering(factory))


def makes_queue_consumer(factory: Factory) -> MakesQueueConsumer:
    """Awaited or entered, and typed by the schema."""
    return cast(MakesQueueConsumer, entering(factory))


def makes_checkpoint_consumer(factory: Factory) -> MakesCheckpointConsumer:
    """Awaited or entered, and typed by the schema."""
    return cast(MakesCheckpointConsumer, entering(factory))


def makes_table_view(factory: Factory) -> MakesTableView:
    """Awaited or entered, and typed by the schema."""
    return cast(MakesTableView, entering(factory))
