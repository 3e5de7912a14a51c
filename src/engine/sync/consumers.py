"""The blocking consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

from engine.aio.portal import Portal
from engine.client import (
    AsyncCheckpointConsumer,
    AsyncQueueConsumer,
    AsyncStreamConsumer,
    Backoff,
    Checkpoint,
    ConsumerStatistics,
    Message,
    MessageBatch,
    MessageId,
    QueueConsumerStatistics,
)
from engine.client.base.options import check_count, check_timeout
from engine.client.consume.queue_consumer import Acknowledgeable
from engine.client.consume.receiving import BATCH_MESSAGES
from engine.client.consume.run_terms import ATTEMPTS_MAX, DRAIN_TIMEOUT_S, Handler, takes_batches
from engine.client.consume.subscribed import When
from engine.errors import AlreadyClosedError
from engine.sync.closing import close_collected, run_to_close
from engine.sync.run import run_on_threads
from engine.sync.transaction import Transaction

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from engine.client import MultiQueueConsumerStatistics

V = TypeVar("V")  # of the values of messages


class _Consumer(Generic[V]):
    """What the three kinds of consumers share."""

    def __init__(self, portal: Portal, consumer: Any) -> None:
        self._portal = portal
        self._consumer = consumer.disown()
        portal.fork_listeners.add(self)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return str(self._consumer.name)

    @property
    def topic(self) -> str:
        """The topic's full name; of a consumer of several, their names, or the namespace."""
        return str(self._consumer.topic)

    @property
    def topics(self) -> list[str]:
        """The full names of the topics it receives from now, sorted."""
        topics: list[str] = self._consumer.topics
        return topics

    @property
    def paused(self) -> bool:
        """Whether receives wait, whatever is queued."""
        return bool(self._consumer.paused)

    def pause(self) -> None:
        """Deliver nothing until resume(): receives wait, and what is fetched ahead stays here. Idempotent."""
        self._portal.call(self._consumer.pause)

    def resume(self) -> None:
        """Deliver again after pause(). Idempotent."""
        self._portal.call(self._consumer.resume)

    @overload
    def receive(self, timeout: None = None) -> Message[V]: ...
    @overload
    def receive(self, timeout: float | None) -> Message[V] | None: ...
    def receive(self, timeout: float | None = None) -> Message[V] | None:
        """The next message; None when none came within `timeout` seconds (None: wait for ever).

        Raises AlreadyClosedError when the consumer is closed, also meanwhile; CorruptionError for damaged data.
        """
        check_timeout(timeout)
        message: Message[V] | None = self._consumer.take_now()
        if message is None:
            message = self._portal.run(self._consumer.receive(timeout))
        return message

    def receive_batch(
        self, max_messages: int = BATCH_MESSAGES, max_bytes: int | None = None, timeout: float | None = None
    ) -> MessageBatch[V]:
        """The messages that wait, at least one, at most `max_messages` and `max_bytes` of keys and values (but one
        message always).

        Empty when none came within `timeout` seconds. Raises as receive().
        """
        check_count("max_messages", max_messages)
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        check_timeout(timeout)
        batch: MessageBatch[V] | None = self._consumer.take_now(max_messages, -1 if max_bytes is None else max_bytes)
        if batch is None:
            batch = self._portal.run(self._consumer.receive_batch(max_messages, max_bytes, timeout))
        return batch

    def reply(self, message: Message[Any], value: Buffer, *, properties: Mapping[str, str] | None = None) -> MessageId:
        """Send the reply to a request that was received, and wait until it is durable; acknowledge the request then.

        `value`: any buffer. `properties`: text to text, besides the `correlation_id` of the request. Raises
        NotFoundError when the requester is gone; InvalidArgumentError when the message is no request; what a producer's
        send() raises.
        """
        sent: MessageId = self._portal.run(self._consumer.reply(message, value, properties=properties))
        return sent

    def __iter__(self) -> Iterator[Message[V]]:
        """Messages as they come, until the consumer is closed."""
        while True:
            try:
                message = self.receive()
            except AlreadyClosedError:
                return
            yield message

    def _run(self, handler: Handler, concurrency: int, options: dict[str, Any]) -> None:
        begin = partial(self._consumer.run, concurrency=concurrency, **options)
        run_on_threads(self._portal, handler, concurrency, begin, self._consumer.stop_run)

    def statistics(self) -> ConsumerStatistics:
        """A frozen record of totals."""
        statistics: ConsumerStatistics = self._consumer.statistics()
        return statistics

    def close(self) -> None:
        """Close. Acknowledges nothing but what run() has finished, whose calls it awaits; receives that wait on other
        threads raise AlreadyClosedError. Idempotent.

        In a handler of run(), it only ends the run, which then closes the consumer.

        Raises what became of acknowledgements that nothing waited for (`…_nowait`), after everything has ended.
        """
        run_to_close(self._portal, self._consumer.close)

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        return bool(self._consumer.closed)

    def __del__(self) -> None:
        consumer = self.__dict__.get("_consumer")
        if consumer is not None and not consumer.closed:
            close_collected(self._portal, repr(self), consumer.close)

    def after_fork(self, error: AlreadyClosedError) -> None:
        """In a forked child: what was fetched ahead is the parent's to deliver."""

        def refuse(*args: Any, **options: Any) -> Any:
            raise error

        self.receive = self.receive_batch = refuse  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return repr(self._consumer).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _SubscriptionConsumer(_Consumer[V]):
    """What stream and queue consumers share."""

    @property
    def subscription(self) -> str:
        """The subscription's name."""
        return str(self._consumer.subscription)

    def lag(self) -> int:
        """How many messages of its topics the subscription has not acknowledged, as the segments' owners say now.

        Raises NotFoundError when it was deleted, AlreadyClosedError, ConnectError, TimeoutError.
        """
        return int(self._portal.run(self._consumer.lag()))

    def seek(self, when: When) -> None:
        """Move the subscription, for all its consumers: to "earliest", "latest", or the first message published at an
        aware datetime or later. What was fetched before is dropped.

        Raises NotFoundError, AlreadyClosedError, ConnectError, TimeoutError, InvalidArgumentError.
        """
        self._portal.run(self._consumer.seek(when))

    def unsubscribe(self) -> None:
        """Close, then delete the subscription; its other consumers get NotFoundError.

        Raises NotFoundError when it was deleted before, ConnectError, TimeoutError.
        """
        self._portal.run(self._consumer.unsubscribe())

    def _acknowledge_nowait(self, x: object) -> None:
        self._consumer.check_open()
        self._portal.call_soon_threadsafe(self._consumer.acknowledge_asked, self._consumer.asked(x))

    def flush(self) -> None:
        """Wait until every acknowledgement that nothing waited for (`…_nowait`) is durable.

        Raises the first failure that was not raised yet.
        """
        self._portal.run(self._consumer.flush())


class StreamConsumer(_SubscriptionConsumer[V]):
    """Receives the messages of its segments, per segment in order. Made by `client.stream_consumer()`."""

    _consumer: AsyncStreamConsumer[V]

    def acknowledge_cumulative(
        self, x: Message[Any] | MessageId | MessageBatch[Any], *, transaction: Transaction | None = None
    ) -> None:
        """Acknowledge `x` and everything delivered before it, in every segment; durable when this returns.

        `x`: a Message, its id (also one kept from before a reconnect) or a MessageBatch (its last message). What was
        acknowledged before is no error. Raises FencedError when a segment went to another consumer before this could
        be saved, which happens only after a lost connection: its messages are delivered again there; the other
        segments are saved. NotFoundError for a segment the topic never had. AlreadyClosedError, TimeoutError,
        StorageError, InvalidArgumentError.

        `transaction`: it takes effect when that is committed. When it is aborted, this consumer goes back to what is
        acknowledged, and delivers from there again. Raises TransactionConflictError when the transaction has ended,
        when another open one has acknowledged some of it, and when all of it is acknowledged already.
        """
        self._portal.run(self._consumer.acknowledge_cumulative(x, transaction=transaction))

    def acknowledge_cumulative_nowait(self, x: Message[Any] | MessageId | MessageBatch[Any]) -> None:
        """acknowledge_cumulative() that waits for nothing: it is sent at once. flush() and close() wait until it is
        durable, and raise what became of it. Raises InvalidArgumentError, AlreadyClosedError.
        """
        self._acknowledge_nowait(x)

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        batch: bool | None = None,
        max_messages: int = BATCH_MESSAGES,
        max_attempts: int | None = ATTEMPTS_MAX,
        backoff: Backoff | float | None = None,
        dead_letter: str | None = None,
        drain_timeout: float = DRAIN_TIMEOUT_S,
    ) -> None:
        """Call `handler` with each message, and acknowledge what it has returned from. Ends by closing the consumer.

        At most `concurrency` calls run at once, those of one key one after the other; with 1 on the caller's thread,
        else on threads of its own. A message whose call raises is tried again after `backoff` seconds (an
        engine.Backoff, or a number; default: 1 s, twice as long each time, at most 60 s); meanwhile its key waits,
        others go on, and what lies before it is acknowledged. After `max_attempts` calls (None: without end) it is
        published to the topic `dead_letter`, or run() raises what the handler raised.

        `batch`: the handler gets a MessageBatch of at most `max_messages`, which is tried again as a whole; default: as
        its first parameter is annotated.

        It returns when the consumer is closed, by another thread or by the handler, and on SIGTERM, on the main thread:
        no call begins any more, those that have begun get `drain_timeout` seconds (on the caller's thread, all they
        need), and what they have finished is acknowledged. Raises as receive() and acknowledge_cumulative();
        InvalidArgumentError.
        """
        options = {
            "batch": _is_batch(handler, batch), "max_messages": max_messages, "max_attempts": max_attempts,
            "backoff": backoff, "dead_letter": dead_letter, "drain_timeout": drain_timeout,
        }  # fmt: skip
        self._run(handler, concurrency, options)


class QueueConsumer(_SubscriptionConsumer[V]):
    """Receives messages that no other consumer of the subscription has. Made by `client.queue_consumer()`."""

    _consumer: AsyncQueueConsumer[V]

    def acknowledge(self, x: Acknowledgeable, *, transaction: Transaction | None = None) -> None:
        """Acknowledge a Message, an id, every message of a MessageBatch, or several messages or ids.

        Durable when this returns. What was acknowledged before is no error, also in segments that are gone since.

        Raises AlreadyClosedError, TimeoutError, StorageError, InvalidArgumentError; NotFoundError for a segment the
        topic never had.

        `transaction`: it takes effect when that is committed; until then these messages are not redelivered, and when
        it is aborted they are due again. Raises TransactionConflictError when it has ended, and when one of them is
        acknowledged already, or by another open transaction.
        """
        self._portal.run(self._consumer.acknowledge(x, transaction=transaction))

    def acknowledge_nowait(self, x: Acknowledgeable) -> None:
        """acknowledge() that waits for nothing: it is sent at once. flush() and close() wait until it is durable, and
        raise what became of it. Raises InvalidArgumentError, AlreadyClosedError.
        """
        self._acknowledge_nowait(x)

    def negative_acknowledge(
        self, x: Acknowledgeable, *, delay: float | None = None, reason: str | BaseException | None = None
    ) -> None:
        """Negatively acknowledge: `x` is delivered again after `delay` seconds (default: what `nack_backoff` says), or
        as soon as the subscription has no consumer any more and gets one again.

        `x`: as of acknowledge(); of messages that this consumer has received and not acknowledged. Does not wait for
        the broker. Raises AlreadyClosedError, InvalidArgumentError.

        `reason`: a text, or the exception. A message (not an id) that may not be delivered again then becomes a dead
        letter at once, which carries the reason.
        """
        self._portal.run(self._consumer.negative_acknowledge(x, delay=delay, reason=reason))

    def statistics(self) -> QueueConsumerStatistics | MultiQueueConsumerStatistics:
        """A frozen record of totals."""
        return self._consumer.statistics()

    def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        batch: bool | None = None,
        max_messages: int = BATCH_MESSAGES,
        drain_timeout: float = DRAIN_TIMEOUT_S,
    ) -> None:
        """Call `handler` with each message, and acknowledge what it has returned from. Ends by closing the consumer.

        At most `concurrency` calls run at once, those of one key one after the other; with 1 on the caller's thread,
        else on threads of its own. A message whose call raises is handed back, with the exception as the reason:
        `nack_backoff` and `dead_letter` of the consumer say what becomes of it. So the order of a key ends with a
        redelivery, and holds among the messages of this consumer alone.

        The rest is as of stream consumers. Raises as receive() and acknowledge(); InvalidArgumentError.
        """
        options = {"batch": _is_batch(handler, batch), "max_messages": max_messages, "drain_timeout": drain_timeout}
        self._run(handler, concurrency, options)


class CheckpointConsumer(_Consumer[V]):
    """A reader that keeps its own position. Made by `client.checkpoint_consumer()`."""

    _consumer: AsyncCheckpointConsumer[V]

    def lag(self) -> int:
        """How many messages, at most, lie between its position and the end of the topic; of a member of a group, in its
        share of the segments. Messages of transactions that were aborted count.

        Raises NotFoundError when the topic was deleted, AlreadyClosedError, ConnectError, TimeoutError.
        """
        return self._portal.run(self._consumer.lag())

    def checkpoint(self) -> Checkpoint:
        """The position of this consumer: what it has delivered, for every segment. Raises AlreadyClosedError.

        Start from it later to get exactly what follows; `to_bytes()` keeps it.
        """
        return self._portal.run(self._consumer.checkpoint())

    def seek(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint`; prefetched messages are dropped.

        Raises AlreadyClosedError, TimeoutError; InvalidArgumentError for a value that is not a Checkpoint, or
        one of another topic.
        """
        self._portal.run(self._consumer.seek(checkpoint))


def _is_batch(handler: Handler, batch: bool | None) -> bool | None:
    """As the handler's first parameter is annotated: the asynchronous consumer sees another function."""
    return takes_batches(handler) if batch is None and callable(handler) else batch
