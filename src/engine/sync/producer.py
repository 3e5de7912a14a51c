"""The blocking `Producer`."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from engine.aio.portal import Portal, result_of
from engine.client import AsyncProducer, Message, MessageId, ProducerStatistics
from engine.errors import AlreadyClosedError
from engine.sync.closing import close_collected, run_to_close
from engine.sync.transaction import Transaction

if TYPE_CHECKING:
    from engine.client.produce.table_rows import CheckedColumns

T_contra = TypeVar("T_contra", contravariant=True)  # of the values: any buffer without a schema


class Producer(Generic[T_contra]):
    """Sends messages to one topic, in order per key. Made by `client.producer()`; usable with `with`.

    Every method but close() raises AlreadyClosedError after close(), and in a forked child.
    """

    def __init__(self, portal: Portal, producer: AsyncProducer[T_contra]) -> None:
        self._portal = portal
        self._producer = producer.disown()
        self.send_nowait = producer.send_nowait  # type: ignore[method-assign]  # the native method itself
        portal.fork_listeners.add(self)

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

    @property
    def acknowledged_sequence_id(self) -> int:
        """Every message of this producer's name with a sequence id up to this one is durable; -1 when nothing is known.

        A producer that restarts under its name and numbers its messages itself resends from here; what is already
        durable is recognised by its sequence id and key, and stored once.
        """
        return self._producer.acknowledged_sequence_id

    def send(
        self,
        value: T_contra,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | timedelta | None = None,
        transaction: Transaction | None = None,
    ) -> MessageId:
        """Send one message, wait until it is durable, and return its id.

        `value`: any buffer, 5 MiB at most. `key`: bytes, text (UTF-8) or None; messages of one key stay in order.
        `properties`: text to text. `event_time`: an aware datetime or milliseconds since 1970. `sequence_id`: larger
        than the last one; left out, it is the next. `deliver_at` (an aware datetime or milliseconds) or `deliver_after`
        (seconds, or a timedelta): queue consumers do not get the message before, by the broker's clock, and at most a
        tenth of a second later; ordered consumers get it in its place, at once. `transaction`: delivered once that
        is committed. Waits for room first at the pending limit. The id has the offset -1 when the broker
        knew the message from an earlier attempt and not any more where it lies.

        Raises MessageTooLargeError and InvalidArgumentError before anything is sent; TransactionConflictError when the
        transaction has ended; TimeoutError after the producer's `send_timeout`, when the outcome is unknown;
        UnknownOutcomeError; StorageError, DiskFullError: not written, and the producer goes on.
        """
        self._portal.check_thread()
        future: concurrent.futures.Future[MessageId] = concurrent.futures.Future()
        self._producer.send_for(
            future, value, key, properties, event_time, sequence_id, deliver_at, deliver_after, transaction
        )
        return result_of(future)

    def submit(
        self,
        value: T_contra,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | timedelta | None = None,
        transaction: Transaction | None = None,
    ) -> concurrent.futures.Future[MessageId]:
        """Enqueue one message; a future of its id, which ends when it is durable, or with what send() would raise.

        The arguments are those of send(), and so is what is raised before anything is sent. At the pending limit it
        waits for room, as send_nowait() does. What is added to the future by add_done_callback() runs on the client's
        own thread, where nothing may block. The message cannot be called back: cancel() does nothing.
        """
        self._portal.check_thread()
        future: concurrent.futures.Future[MessageId] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        self._producer.send_for(
            future, value, key, properties, event_time, sequence_id, deliver_at, deliver_after, transaction
        )
        return future

    def request(
        self,
        value: T_contra,
        *,
        timeout: float = 30.0,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
    ) -> Message[bytes]:
        """Send one message, and wait for the first reply to it, which a consumer of the topic sends with `reply()`.

        `timeout`: seconds for all of it. The other arguments are those of send(); the properties `reply_to`,
        `correlation_id` and, of a producer with `encryption_keys`, `reply_key` are set here, but for a `correlation_id`
        among `properties`, which has to differ from those of requests that wait. The first request of a client into a
        namespace creates a topic of replies there.
        A request is sent once; it may be handled twice, as any message, and the first reply counts.

        Raises TimeoutError when no reply came in time (NoResponderError: nor has a subscription a consumer; it is asked
        where the client may see statistics), QueueFullError when 10,000 requests of this client wait, NotFoundError
        when the topic of replies was deleted meanwhile, EncryptionRequiredError when this producer encrypts and the
        reply is not encrypted, AlreadyClosedError; what send() raises.
        """
        asked = self._producer.request(value, timeout=timeout, key=key, properties=properties, event_time=event_time)
        return self._portal.run(asked)

    def send_nowait(
        self,
        value: T_contra,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | timedelta | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """Enqueue one message; the arguments are those of send(). Failures surface in flush(), close() and `on_error`;
        those of messages in a transaction in its commit() and `on_error`.

        Raises MessageTooLargeError, InvalidArgumentError, TransactionConflictError at once. Where `max_pending_bytes`
        are on their way it waits for room or, for a producer made with `block_when_full=False`, raises QueueFullError.
        """
        self._producer.send_nowait(  # shadowed by the native method
            value,
            key=key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            transaction=transaction,
        )

    def send_batch(
        self,
        values: Any,
        keys: Any = None,
        *,
        event_times: Any = None,
        properties: Any = None,
        transaction: Transaction | None = None,
    ) -> None:
        """Enqueue many messages at once, waiting for room where needed. Failures surface as with send_nowait.

        `values`, `keys`: sequences of equal length: lists, NumPy arrays (bytes, object, 2-D uint8) or Arrow arrays
        (binary, string, large ones, chunked, dictionaries). `event_times`: NumPy int64 or datetime64[ms], or Arrow, ms
        since 1970. `properties`: a list of mappings of text to text, or None, or an Arrow array of maps. Raises
        InvalidArgumentError, MessageTooLargeError, TransactionConflictError when the transaction has ended;
        TimeoutError when no room came free within `send_timeout`.
        """
        self._portal.run(
            self._producer.send_batch(
                values, keys, event_times=event_times, properties=properties, transaction=transaction
            )
        )

    def send_table(
        self,
        table: Any,
        *,
        key: str | None = None,
        value: str = "value",
        event_time: str | None = None,
        properties: str | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """Enqueue the rows of a table of Arrow, pandas, Polars, DuckDB or whatever else has `__arrow_c_stream__`, one
        message each, waiting for room where needed. Failures surface as with send_nowait.

        `key`, `value`, `event_time`, `properties`: names of columns; others are left out. Keys are text, binary or
        whole numbers (sent as their digits). Without a schema, values are text or binary. With a schema of records,
        they are made of the columns that are called as its fields (or "VALUE.FIELD"), or of a struct column `value`;
        with any other schema, of the column `value`. Rows that were enqueued before one that raises stay so: send in a
        `transaction` where that matters.

        Raises InvalidArgumentError, SchemaError, which names the row, UnsupportedError without pyarrow; as send_batch.
        """
        names = {"key": key, "value": value, "event_time": event_time, "properties": properties}
        for columns in self._producer.table_rows(table, **names):
            self.send_columns(columns, transaction)

    def send_columns(self, columns: CheckedColumns, transaction: Transaction | None = None) -> None:
        """send_batch() of columns that were made and checked before. Raises as send_batch()."""
        self._portal.run(self._producer.send_columns(columns, transaction))

    def writable(self) -> None:
        """Wait until a quarter of the pending limit is free, and no more is in flight than is acknowledged in about
        50 ms (at least 4 MiB).
        """
        self._producer.check_open()
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
        run_to_close(self._portal, self._producer.close)

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        return self._producer.closed

    def __del__(self) -> None:
        producer = self.__dict__.get("_producer")
        if producer is not None and not producer.closed:
            close_collected(self._portal, repr(self), producer.close)

    def after_fork(self, error: AlreadyClosedError) -> None:
        """In a forked child: what is sent here would be lost, so send_nowait raises, as everything else does."""

        def refuse(*args: Any, **options: Any) -> None:
            raise error

        self.send_nowait = refuse  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return repr(self._producer).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
