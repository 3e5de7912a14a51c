"""The same client for code that does not await: thin shells over the asynchronous one, whose loop runs on a thread of
its own.

Every object may be used from several threads. What a shell adds: `Producer.send_nowait` is the native method on the
caller's thread, and waits for room where the pending limit is reached; receives look into the queue on the caller's
thread before they ask the loop.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

from engine.aio.portal import Portal, before_exit
from engine.client import (
    AsyncAdmin,
    AsyncCheckpointConsumer,
    AsyncClient,
    AsyncProducer,
    AsyncQueueConsumer,
    AsyncStreamConsumer,
    Checkpoint,
    ConsumerStatistics,
    Message,
    MessageBatch,
    MessageId,
    ProducerStatistics,
)
from engine.client.options import check_number, check_timeout
from engine.client.producer import refuse_transaction
from engine.errors import AlreadyClosedError, EngineError

BATCH_MESSAGES = 10_000
S = TypeVar("S")


class Producer:
    """Sends messages to one topic, in order per key. Made by `client.producer()`; usable with `with`."""

    def __init__(self, portal: Portal, producer: AsyncProducer) -> None:
        self._portal = portal
        self._producer = producer
        self.send_nowait = producer.send_nowait  # type: ignore[method-assign]  # the native method itself

    @property
    def name(self) -> str:
        """The producer's name."""
        return self._producer.name

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._producer.topic

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last message taken, -1 before the first; a named producer's continues."""
        return self._producer.last_sequence_id

    def send(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | None = None,
        transaction: None = None,
    ) -> MessageId:
        """Send one message and wait until it is durable; its id.

        AsyncProducer.send says what the arguments are and what it raises.
        """
        refuse_transaction(transaction)
        future: concurrent.futures.Future[MessageId] = concurrent.futures.Future()
        self._producer.send_for(future, value, key, properties, event_time, sequence_id, deliver_at, deliver_after)
        return future.result()

    def send_nowait(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | None = None,
    ) -> None:
        """Enqueue one message. Failures surface in flush(), close() and `on_error`.

        Where `max_pending_bytes` are on their way it waits for room, or, for a producer made with
        `block_when_full=False`, raises QueueFullError.
        """
        self._producer.send_nowait(  # shadowed by the native method
            value,
            key=key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
        )

    def send_batch(self, values: Any, keys: Any = None, *, event_times: Any = None, transaction: None = None) -> None:
        """Enqueue many messages at once, waiting for room where needed. See AsyncProducer.send_batch."""
        self._portal.run(self._producer.send_batch(values, keys, event_times=event_times, transaction=transaction))

    def writable(self) -> None:
        """Wait while the pending limit is reached."""
        if not self._producer.has_room:
            self._portal.run(self._producer.writable())

    def flush(self) -> None:
        """Wait until every message sent before this call is durable. Raises the first failure not reported yet."""
        self._portal.run(self._producer.flush())

    def statistics(self) -> ProducerStatistics:
        """A frozen record of totals."""
        return self._producer.statistics()

    def close(self) -> None:
        """Flush, then end. Idempotent. Raises what flush() raises, after everything is closed."""
        _run_to_close(self._portal, self._producer.close)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Consumer:
    """What the three kinds of consumers share."""

    _portal: Portal
    _consumer: Any

    @property
    def name(self) -> str:
        """The consumer's name."""
        return str(self._consumer.name)

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return str(self._consumer.topic)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within `timeout` seconds (None: wait for ever).

        Raises AlreadyClosedError when the consumer is closed, also meanwhile; CorruptionError for damaged data.
        """
        message: Message | None = self._consumer.take_now()
        if message is None:
            check_timeout(timeout)
            message = self._portal.run(self._consumer.receive(timeout))
        return message

    def receive_batch(
        self, max_messages: int = BATCH_MESSAGES, max_bytes: int | None = None, timeout: float | None = None
    ) -> MessageBatch:
        """The messages that wait, at least one, at most `max_messages` and `max_bytes` of keys and values (but one
        message always).

        Empty when none came within `timeout` seconds. Raises as receive().
        """
        check_number("max_messages", max_messages, 1, whole=True)
        if max_bytes is not None:
            check_number("max_bytes", max_bytes, 1, whole=True)
        batch: MessageBatch | None = self._consumer.take_now(max_messages, -1 if max_bytes is None else max_bytes)
        if batch is None:
            check_timeout(timeout)
            batch = self._portal.run(self._consumer.receive_batch(max_messages, max_bytes, timeout))
        return batch

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the consumer is closed."""
        while True:
            try:
                message = self.receive()
            except AlreadyClosedError:
                return
            if message is not None:
                yield message

    def statistics(self) -> ConsumerStatistics:
        """A frozen record of totals."""
        statistics: ConsumerStatistics = self._consumer.statistics()
        return statistics

    def close(self) -> None:
        """Leave. Acknowledges nothing; receives that wait on other threads raise AlreadyClosedError. Idempotent."""
        _run_to_close(self._portal, self._consumer.close)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class StreamConsumer(_Consumer):
    """Receives the messages of its segments, per segment in order. Made by `client.stream_consumer()`."""

    def __init__(self, portal: Portal, consumer: AsyncStreamConsumer) -> None:
        self._portal = portal
        self._consumer: AsyncStreamConsumer = consumer

    def acknowledge_cumulative(self, x: Message | MessageId | MessageBatch, *, transaction: None = None) -> None:
        """Acknowledge `x` and everything delivered before it, in every segment; durable when this returns.

        AsyncStreamConsumer.acknowledge_cumulative has the details.
        """
        self._portal.run(self._consumer.acknowledge_cumulative(x, transaction=transaction))


class QueueConsumer(_Consumer):
    """Receives messages that no other consumer of the subscription has. Made by `client.queue_consumer()`."""

    def __init__(self, portal: Portal, consumer: AsyncQueueConsumer) -> None:
        self._portal = portal
        self._consumer: AsyncQueueConsumer = consumer

    def acknowledge(self, x: Message | MessageId | MessageBatch, *, transaction: None = None) -> None:
        """Acknowledge a Message, an id, or every message of a MessageBatch; durable when this returns."""
        self._portal.run(self._consumer.acknowledge(x, transaction=transaction))

    def negative_acknowledge(self, x: Message | MessageId | MessageBatch, *, delay: float = 1.0) -> None:
        """Hand back: it is delivered again `delay` seconds later. Does not wait for that."""
        self._portal.run(self._consumer.negative_acknowledge(x, delay=delay))


class CheckpointConsumer(_Consumer):
    """A reader that keeps its own position. Made by `client.checkpoint_consumer()`."""

    def __init__(self, portal: Portal, consumer: AsyncCheckpointConsumer) -> None:
        self._portal = portal
        self._consumer: AsyncCheckpointConsumer = consumer

    def checkpoint(self) -> Checkpoint:
        """Where this consumer stands: what it has delivered, for every segment."""
        return self._portal.run(self._consumer.checkpoint())

    def seek(self, checkpoint: Checkpoint) -> None:
        """Go on from `checkpoint`; what was fetched ahead is dropped."""
        self._portal.run(self._consumer.seek(checkpoint))


class Admin:
    """What operators do with topics, subscriptions and segments. AsyncAdmin says what each method takes and raises."""

    def __init__(self, portal: Portal, admin: AsyncAdmin) -> None:
        self._portal = portal
        self._admin = admin

    def create_topic(
        self,
        topic: str,
        *,
        segments: int | None = 1,
        properties: Mapping[str, str] | None = None,
        key_hash: str | None = "xxh64",
        durability: str | None = "fsync",
        entry_buckets: int | None = 4,
    ) -> None:
        """Create a topic of `segments` equal hash ranges. Raises AlreadyExistsError, InvalidArgumentError."""
        self._portal.run(
            self._admin.create_topic(
                topic,
                segments=segments,
                properties=properties,
                key_hash=key_hash,
                durability=durability,
                entry_buckets=entry_buckets,
            )
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions. Raises NotFoundError."""
        self._portal.run(self._admin.delete_topic(topic))

    def list_topics(self, namespace: str = "public/default", properties: Mapping[str, str] | None = None) -> list[str]:
        """The full names of a namespace's topics, sorted; only those that have all these properties."""
        return self._portal.run(self._admin.list_topics(namespace, properties))

    def get_metadata(self, topic: str) -> dict[str, Any]:
        """The specification's JSON as a dict. Raises NotFoundError."""
        return self._portal.run(self._admin.get_metadata(topic))

    def get_stats(self, topic: str) -> dict[str, Any]:
        """The specification's JSON as a dict. Raises NotFoundError."""
        return self._portal.run(self._admin.get_stats(topic))

    def create_subscription(self, topic: str, subscription: str, *, initial_position: str = "latest") -> None:
        """Create it, at "earliest" or "latest". Raises AlreadyExistsError, NotFoundError."""
        self._portal.run(self._admin.create_subscription(topic, subscription, initial_position=initial_position))

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete it in every segment. Raises NotFoundError."""
        self._portal.run(self._admin.delete_subscription(topic, subscription))

    def seek_subscription(self, topic: str, subscription: str, when: str | datetime) -> None:
        """Move it to "earliest", "latest" or an aware datetime."""
        self._portal.run(self._admin.seek_subscription(topic, subscription, when))

    def clear_backlog(self, topic: str, subscription: str) -> None:
        """Acknowledge everything it has not."""
        self._portal.run(self._admin.clear_backlog(topic, subscription))

    def get_namespace_policies(self, namespace: str) -> dict[str, Any]:
        """The policies in effect: retention_time_s, retention_size_bytes, durability."""
        return self._portal.run(self._admin.get_namespace_policies(namespace))

    def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Replace the policies; what is not named has its default. Raises InvalidArgumentError."""
        self._portal.run(self._admin.set_namespace_policies(namespace, policies))

    def remove_namespace_policies(self, namespace: str) -> None:
        """Go back to the broker's defaults."""
        self._portal.run(self._admin.remove_namespace_policies(namespace))

    def set_auto_scale_policy(self, topic: str, policy: Mapping[str, Any]) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.set_auto_scale_policy(topic, policy))

    def get_auto_scale_policy(self, topic: str) -> dict[str, Any]:
        """Raises UnsupportedError: segments do not change in this version."""
        return self._portal.run(self._admin.get_auto_scale_policy(topic))

    def remove_auto_scale_policy(self, topic: str) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.remove_auto_scale_policy(topic))

    def split_segment(self, topic: str, segment_id: int) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.split_segment(topic, segment_id))

    def merge_segments(self, topic: str, segment_id: int, other_id: int) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.merge_segments(topic, segment_id, other_id))

    def rebucket_segment(self, topic: str, segment_id: int, buckets: int) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.rebucket_segment(topic, segment_id, buckets))


class Client:
    """A blocking client of one service, `engine://host:port`; any number of threads may use it, preferably as `with`.

    AsyncClient says what the arguments are. A client that is still open when the interpreter exits is closed then.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._begin(lambda: _make_client(url, options))

    def _begin(self, make: Callable[[], Coroutine[Any, Any, AsyncClient]]) -> None:
        """Start the loop's thread and make the asynchronous client there."""
        portal = Portal("engine")
        try:
            client = portal.run(make())
        except BaseException:
            portal.close()
            raise
        self._portal = portal
        self._client = client
        self.admin = Admin(portal, client.admin)
        _close_before_exit(self)

    @property
    def service_url(self) -> str:
        """Where the broker is."""
        return str(self._client.service_url)

    def producer(self, topic: str, *, block_when_full: bool = True, **options: Any) -> Producer:
        """A producer for one topic; AsyncClient.producer says what the options are and what it raises.

        `block_when_full`: whether send_nowait waits for room (else it raises QueueFullError).
        """
        made: list[AsyncProducer] = []

        def wait_for_room() -> None:
            while not made[0].has_room:
                self._portal.run(made[0].writable())

        on_full: Callable[[], None] | None = wait_for_room if block_when_full else None
        made.append(self._portal.run(self._client.producer(topic, _on_full=on_full, **options)))
        return Producer(self._portal, made[0])

    def stream_consumer(self, topic: str, subscription: str, **options: Any) -> StreamConsumer:
        """An ordered consumer; AsyncClient.stream_consumer says what the options are and what it raises."""
        return StreamConsumer(
            self._portal, self._portal.run(self._client.stream_consumer(topic, subscription, **options))
        )

    def queue_consumer(self, topic: str, subscription: str, **options: Any) -> QueueConsumer:
        """A consumer of single messages; AsyncClient.queue_consumer says what the options are and what it raises."""
        return QueueConsumer(
            self._portal, self._portal.run(self._client.queue_consumer(topic, subscription, **options))
        )

    def checkpoint_consumer(self, topic: str, **options: Any) -> CheckpointConsumer:
        """A reader; AsyncClient.checkpoint_consumer says what the options are and what it raises."""
        return CheckpointConsumer(self._portal, self._portal.run(self._client.checkpoint_consumer(topic, **options)))

    def transaction(self, timeout: float = 60.0) -> Any:
        """Raises UnsupportedError: transactions are not part of this version."""
        return self._client.transaction(timeout)

    def connect(self) -> None:
        """Connect now. Raises ConnectError, AuthenticationError, UnsupportedError."""
        self._portal.run(self._client.connect())

    def close(self) -> None:
        """Close every producer (flushing it) and consumer, then the connections. Idempotent."""
        try:
            _run_to_close(self._portal, self._client.close)
        finally:
            self._portal.close()

    def __enter__(self: S) -> S:
        self.connect()  # type: ignore[attr-defined]
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


async def _make_client(url: str, options: dict[str, Any]) -> AsyncClient:
    return AsyncClient(url, threadsafe=True, **options)


def _run_to_close(portal: Portal, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a close() on the loop; nothing when the loop has ended, and everything with it."""
    if not portal.closed:
        portal.run(close())


def _close_before_exit(client: Client) -> None:
    """Arrange for a forgotten client to be closed in time, without keeping it alive."""
    reference = weakref.ref(client)

    def close() -> None:
        alive = reference()
        if alive is not None:
            with contextlib.suppress(EngineError):
                alive.close()

    before_exit(close)
