"""`AsyncProducer`: sends messages to one topic."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import _get_running_loop
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, Self, TypeVar

from engine._native.calls.started import Started
from engine._native.consume.message import Message
from engine._native.produce.arguments import MessageColumns
from engine.client.base.options import ProducerOptions
from engine.client.base.owned import Owned
from engine.client.base.starting import Starting
from engine.client.net.pool import Pool
from engine.client.produce.in_flight import ProducerStatistics
from engine.client.produce.line import Line
from engine.client.produce.outbox import Outbox
from engine.client.produce.sending import Sending
from engine.client.produce.table_rows import TableRows
from engine.client.transact.scope import InTransaction
from engine.errors import QueueFullError
from engine.limits import REQUEST_TIMEOUT_S
from engine.model.names import TopicName
from engine.model.positions import MessageId

T_contra = TypeVar("T_contra", contravariant=True)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Columns:
    """Messages to be taken, and how many of them are."""

    __slots__ = ("columns", "done")

    def __init__(self, columns: MessageColumns) -> None:
        self.columns = columns
        self.done = 0


class AsyncProducer(Owned, Generic[T_contra]):
    """Sends messages to one topic, in order per key. Made by `client.producer()`; usable with `async with`.

    Its parameter is the type of the values: that of its schema, and any buffer without one. `send`, `send_batch` and
    `flush` start when they are called: await what they return, or leave it.
    Every method raises AlreadyClosedError after close().
    """

    def __init__(
        self, pool: Pool, topic: TopicName, name: str | None, options: ProducerOptions, secret: bytes | None = None
    ) -> None:
        """`secret`: of which the given name was generated, if it was."""
        self._topic = str(topic)
        self._send_timeout = options.send_timeout
        self._encrypts = options.encryption_keys is not None
        self._schema = options.schema
        self._encode = None if options.schema.raw else options.schema.encode
        self._outbox = Outbox(pool, topic, name, options, secret)
        formed, dissolved = _weakly(self._line_formed), _weakly(self._line_dissolved)
        self._line = Line(self._outbox, options.send_timeout, formed, dissolved)
        self._sending = Sending(self._outbox, self._line)
        self._loop = asyncio.get_running_loop()
        self._starting = Starting(self._loop)

    async def start(self, on_full: Callable[[], None] | None = None) -> None:
        """Look the topic up, attach where the access mode or the name requires it, take messages."""
        await self._outbox.start(on_full)
        self._batcher = self._outbox.batcher
        if self._schema.raw:
            # Saves a Python frame.
            self.send_nowait = self._batcher.send_nowait  # type: ignore[method-assign,assignment]

    # -- sending ---------------------------------------------------------------------------------------------

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
        transaction: InTransaction | None = None,
    ) -> Coroutine[Any, Any, MessageId]:
        """Send one message; awaited, it waits until it is durable, and gives its id.

        It is sent whether that is awaited or not. At the pending limit it waits for room, and so do later ones behind
        it.
        `value`: any buffer, or a value of the producer's schema. `key`: bytes, text (UTF-8) or None. `event_time`: an
        aware datetime or milliseconds.
        `deliver_at` (likewise) or `deliver_after` (seconds, or a timedelta): queue consumers do not get the message
        before, by the broker's clock, and at most a tenth of a second later; ordered consumers get it in its place, at
        once. `transaction`: no consumer gets the message before it is committed. A cancelled send may still be
        written. The id has the offset -1 when the broker recognised the message as stored by an earlier attempt and
        does not know its offset any more.

        Raises, before anything is sent, MessageTooLargeError, InvalidArgumentError, SchemaError, and
        TransactionConflictError when the transaction has ended; later TimeoutError after `send_timeout` (the outcome
        is unknown); UnknownOutcomeError; StorageError, DiskFullError: not written, and neither was what was sent
        behind it to the same segment, but the producer continues; AlreadyClosedError, also when an earlier message of
        a named producer that was given sequence ids has failed; what the broker answers.
        """
        if _get_running_loop() is not self._loop:
            return self._starting.later(
                partial(  # a lambda's cells would cost every call
                    self.send,
                    value,
                    key=key,
                    properties=properties,
                    event_time=event_time,
                    sequence_id=sequence_id,
                    deliver_at=deliver_at,
                    deliver_after=deliver_after,
                    transaction=transaction,
                )
            )
        future: asyncio.Future[MessageId] = self._loop.create_future()
        try:
            if self._outbox.failure is not None:
                raise self._outbox.failure
            data: Any = value if self._encode is None else self._encode(value)
            if not self._line.calls:
                self._batcher.add(
                    data, key, properties, event_time, sequence_id, future, deliver_at, deliver_after, transaction
                )
                return Started(future)
        except QueueFullError:
            pass  # it waits in line
        except Exception as e:
            future.set_exception(e)
            return Started(future)
        what = (data, key, properties, event_time, sequence_id, future, deliver_at, deliver_after, transaction)
        self._line.join(future, partial(self._add, what))
        return Started(future)

    async def request(
        self,
        value: T_contra,
        *,
        timeout: float = REQUEST_TIMEOUT_S,
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
        self.check_open()
        found: Message[bytes] = await self._client.exchange.requests.request(
            self,
            value,
            timeout=timeout,
            properties=properties,
            encrypted=self._encrypts,
            key=key,
            event_time=event_time,
        )
        return found

    def _add(self, what: tuple[Any, ...]) -> bool:
        """Of the line. Its future has the id once the message is durable: until then it is in no line any more."""
        self._batcher.add(*what)
        return True

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
        transaction: InTransaction | None = None,
    ) -> asyncio.Future[MessageId]:
        """Enqueue one message; a future of its id, which ends when it is durable, or with what send() would raise.

        The arguments are those of send(). Raises QueueFullError as send_nowait() does, and what send() raises before
        anything is sent. A future that was cancelled does not call its message back.
        """
        self.check_open()
        self._check_no_line()
        future: asyncio.Future[MessageId] = self._loop.create_future()
        self._batcher.add(
            self._encoded(value), key, properties, event_time, sequence_id, future, deliver_at, deliver_after,
            transaction,
        )  # fmt: skip
        return future

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
        transaction: InTransaction | None = None,
    ) -> None:
        """Enqueue one message. Failures surface in flush(), close() and `on_error`; those of messages in a transaction
        in its commit() and `on_error`.

        Raises QueueFullError when `max_pending_bytes` are in flight: `await writable()`, then send again. A loop that
        sends many must `await writable()` regularly (every thousand messages, say), or nothing is sent.
        """
        self._check_no_line()
        self._batcher.send_nowait(  # without a schema it is shadowed by this native method
            self._encoded(value),
            key=key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
            transaction=transaction,
        )

    def send_for(
        self,
        waiter: Any,
        value: Any,
        key: bytes | str | None,
        properties: Mapping[str, str] | None,
        event_time: datetime | int | None,
        sequence_id: int | None,
        deliver_at: datetime | int | None,
        deliver_after: float | timedelta | None,
        transaction: InTransaction | None,
    ) -> None:
        """send() with a future of the caller's own; from any thread where the client is `threadsafe`."""
        self.check_open()
        value = self._encoded(value)
        self._batcher.add(
            value, key, properties, event_time, sequence_id, waiter, deliver_at, deliver_after, transaction
        )

    def check_open(self) -> None:
        """Raise the reason for which it takes nothing more, AlreadyClosedError after close(). From any thread."""
        if self._outbox.failure is not None:
            raise self._outbox.failure

    def _encoded(self, value: Any) -> Any:
        return value if self._schema.raw else self._schema.encode(value)

    # -- while calls wait for room ---------------------------------------------------------------------------

    def _line_formed(self) -> None:
        """What is sent now must not pass them by."""
        if self._schema.raw:
            self.send_nowait = self._refuse_nowait  # type: ignore[method-assign]

    def _line_dissolved(self) -> None:
        if self._schema.raw:
            self.send_nowait = self._batcher.send_nowait  # type: ignore[method-assign,assignment]

    def _refuse_nowait(self, value: Any, **options: Any) -> None:
        self._check_no_line()

    def _check_no_line(self) -> None:
        if self._line:
            raise QueueFullError(f"{len(self._line)} calls of send wait for room before this one; await writable()")

    @property
    def has_room(self) -> bool:
        """Whether a quarter of the pending limit is free, and what is in flight will be acknowledged soon."""
        return self._outbox.in_flight.has_room

    def send_batch(
        self,
        values: Any,
        keys: Any = None,
        *,
        event_times: Any = None,
        properties: Any = None,
        transaction: InTransaction | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Enqueue many messages at once, waiting for room where needed. Failures surface as with send_nowait.

        `values`, `keys`: sequences of equal length: lists, NumPy arrays (bytes, object, 2-D uint8) or Arrow arrays
        (binary, string, large ones, chunked, dictionaries). `event_times`: NumPy int64 or datetime64[ms], or Arrow.
        `properties`: a list of mappings of text to text, or None, or an Arrow array of maps. Raises
        InvalidArgumentError.
        """
        return self._start_columns(lambda: self._columns_of(values, keys, event_times, properties), transaction)

    def _columns_of(self, values: Any, keys: Any, event_times: Any, properties: Any) -> MessageColumns:
        if self._encode is not None:
            values = [self._encode(value) for value in values]
        return MessageColumns(values, keys, event_times, properties)

    def send_table(
        self,
        table: Any,
        *,
        key: str | None = None,
        value: str = "value",
        event_time: str | None = None,
        properties: str | None = None,
        transaction: InTransaction | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Enqueue the rows of a table of Arrow, pandas, Polars, DuckDB or whatever else has `__arrow_c_stream__`, one
        message each, waiting for room where needed. Failures surface as with send_nowait.

        `key`, `value`, `event_time`, `properties`: names of columns; others are left out. Keys are text, binary or
        whole numbers (sent as their digits). Without a schema, values are text or binary. With a schema of records,
        they are made of the columns that are called as its fields (or "VALUE.FIELD"), or of a struct column `value`;
        with any other schema, of the column `value`. Rows that were enqueued before one that raises stay so: send in a
        `transaction` where that matters.

        Raises InvalidArgumentError, SchemaError, which names the row, UnsupportedError without pyarrow; as send_batch.
        """
        return self._starting.call(
            lambda: self._send_rows(
                self.table_rows(table, key=key, value=value, event_time=event_time, properties=properties), transaction
            )
        )

    async def _send_rows(self, rows: TableRows, transaction: InTransaction | None) -> None:
        parts = iter(rows)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            await self.send_columns(part, transaction)

    def table_rows(self, table: Any, **names: Any) -> TableRows:
        """A table as columns for send_columns(). Iterate it on any thread."""
        return TableRows(table, self._schema, **names)

    def send_columns(
        self, columns: MessageColumns, transaction: InTransaction | None = None
    ) -> Coroutine[Any, Any, None]:
        """send_batch() of encoded values."""
        return self._start_columns(lambda: columns, transaction)

    def _start_columns(
        self, make: Callable[[], MessageColumns], transaction: InTransaction | None
    ) -> Coroutine[Any, Any, None]:
        if _get_running_loop() is not self._loop:
            return self._starting.later(lambda: self._start_columns(make, transaction))
        future: asyncio.Future[None] = self._loop.create_future()
        try:
            self.check_open()
            take = partial(self._take_columns, _Columns(make()), transaction, future)
            if self._line or not take():
                self._line.join(future, take)
        except Exception as e:
            future.set_exception(e)
        return Started(future)

    def _take_columns(self, columns: _Columns, transaction: InTransaction | None, future: asyncio.Future[None]) -> bool:
        """Take what there is room for; whether that is the rest."""
        self.check_open()
        columns.done += self._batcher.add_columns(columns.columns, start=columns.done, transaction=transaction)
        pumped = self._outbox.pumping
        if pumped:
            self._outbox.pump()
        if columns.done < len(columns.columns):
            return False
        # What was handed to the connection leaves, and receipts arrive, in a turn of the loop: without one, a program
        # that sends batch after batch would fill memory first, while the broker waits for it.
        if pumped:
            self._loop.call_soon(_end, future)
        else:
            _end(future)
        return True

    async def writable(self) -> None:
        """Send what is sealed, and wait until a quarter of the pending limit is free, and no more is in flight than is
        acknowledged in about 50 ms (at least 4 MiB).

        Cheap when there is nothing to do.
        """
        if self._outbox.pumping:
            self._outbox.pump()
            await asyncio.sleep(0)
        while self._line or not self._outbox.in_flight.has_room:
            await self._line.served()
            if not self._outbox.in_flight.has_room:
                await self._outbox.wait_room(None)
        self.check_open()

    def flush(self) -> Coroutine[Any, Any, None]:
        """Awaited, it waits until every message sent before this call is durable (semantics 26).

        Raises the first failure that was not reported yet.
        """
        if _get_running_loop() is not self._loop:
            return self._starting.later(self.flush)
        sending = self._sending
        return Started(self._starting.keep(sending.flush_line()) if self._line else sending.flushed())

    # -- the rest --------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The producer's name, given or generated."""
        return self._outbox.name

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._topic

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last message taken, -1 before the first; a used name's sequence continues."""
        return self._batcher.last_sequence

    @property
    def acknowledged_sequence_id(self) -> int:
        """Every message of this producer's name with a sequence id up to this one is durable; -1 when nothing is known.

        For a name that was used before it is known as soon as the producer is made, over all segments. A program that
        numbers its messages itself continues from here: a message that is durable although its id is larger is
        recognised when it is sent again with the same sequence id and key, and stored once.
        """
        return self._batcher.floor - 1

    def statistics(self) -> ProducerStatistics:
        """A frozen record of totals."""
        return self._outbox.in_flight.statistics()

    async def close(self) -> None:
        """Flush, then end. Idempotent. Raises what flush() raises, after everything is closed."""
        await self._sending.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        return self._sending.closed

    @property
    def working(self) -> Sending:
        """What the client holds."""
        return self._sending

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._topic}{' (closed)' if self.closed else ''}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _weakly(method: Callable[[], object]) -> Callable[[], object]:
    """Calls it while its object is there."""
    found = weakref.WeakMethod(method)

    def call() -> None:
        if (alive := found()) is not None:
            alive()

    return call
