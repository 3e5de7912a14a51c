"""`AsyncProducer`: sends messages to one topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from engine._native.produce.arguments import MessageColumns
from engine.aio.once import Once
from engine.client.base.options import ProducerOptions
from engine.client.net.pool import Pool
from engine.client.produce.in_flight import ProducerStatistics
from engine.client.produce.outbox import Outbox
from engine.client.produce.table_rows import TableRows
from engine.client.transact.scope import InTransaction
from engine.errors import AlreadyClosedError, QueueFullError
from engine.model.names import TopicName
from engine.model.positions import MessageId


class AsyncProducer:
    """Sends messages to one topic, in order per key. Made by `client.producer()`; usable with `async with`.

    Every method raises AlreadyClosedError after close().
    """

    def __init__(self, pool: Pool, topic: TopicName, name: str, options: ProducerOptions) -> None:
        self.on_closed: Callable[[Any], object] | None = None
        self._topic = str(topic)
        self._send_timeout = options.send_timeout
        self._schema = options.schema
        self._outbox = Outbox(pool, topic, name, options)
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._end = Once()

    async def start(self, on_full: Callable[[], None] | None = None) -> None:
        """Look the topic up, attach where the access mode or the name requires it, take messages."""
        await self._outbox.start(on_full)
        self._batcher = self._outbox.batcher
        if self._schema.raw:
            self.send_nowait = self._batcher.send_nowait  # type: ignore[method-assign]  # saves a Python frame

    # -- sending ---------------------------------------------------------------------------------------------

    async def send(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: datetime | int | None = None,
        sequence_id: int | None = None,
        deliver_at: datetime | int | None = None,
        deliver_after: float | timedelta | None = None,
        transaction: InTransaction | None = None,
    ) -> MessageId:
        """Send one message, wait until it is durable, and return its id. Waits for room first at the pending limit.

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
        self.check_open()
        value = self._encoded(value)
        future: asyncio.Future[MessageId] = self._loop.create_future()
        while True:
            try:
                self._batcher.add(
                    value, key, properties, event_time, sequence_id, future, deliver_at, deliver_after, transaction
                )
            except QueueFullError:
                await self._outbox.wait_room(self._send_timeout)
            else:
                return await future

    def send_nowait(
        self,
        value: Any,
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

    @property
    def has_room(self) -> bool:
        """Whether a quarter of the pending limit is free."""
        return self._outbox.in_flight.has_room

    async def send_batch(
        self,
        values: Any,
        keys: Any = None,
        *,
        event_times: Any = None,
        properties: Any = None,
        transaction: InTransaction | None = None,
    ) -> None:
        """Enqueue many messages at once, waiting for room where needed. Failures surface as with send_nowait.

        `values`, `keys`: sequences of equal length: lists, NumPy arrays (bytes, object, 2-D uint8) or Arrow arrays
        (binary, string, large ones, chunked). `event_times`: NumPy int64 or datetime64[ms], or Arrow. `properties`: a
        list of mappings of text to text, or None, or an Arrow array of maps. Raises InvalidArgumentError.
        """
        if not self._schema.raw:
            values = [self._schema.encode(value) for value in values]
        await self.send_columns(MessageColumns(values, keys, event_times, properties), transaction)

    async def send_table(
        self,
        table: Any,
        *,
        key: str | None = None,
        value: str = "value",
        event_time: str | None = None,
        properties: str | None = None,
        transaction: InTransaction | None = None,
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
        rows = self.table_rows(table, key=key, value=value, event_time=event_time, properties=properties)
        parts = iter(rows)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            await self.send_columns(part, transaction)

    def table_rows(self, table: Any, **names: Any) -> TableRows:
        """A table as columns for send_columns(). Iterate it on any thread."""
        return TableRows(table, self._schema, **names)

    async def send_columns(self, columns: MessageColumns, transaction: InTransaction | None = None) -> None:
        """send_batch() of encoded values."""
        done = 0
        while True:
            self.check_open()
            done += self._batcher.add_columns(columns, start=done, transaction=transaction)
            if self._outbox.pumping:
                self._outbox.pump()
            if done >= len(columns):
                return
            await self._outbox.wait_room(self._send_timeout)

    async def writable(self) -> None:
        """Send what is sealed, and wait until a quarter of the pending limit is free.

        Cheap when there is nothing to do.
        """
        if self._outbox.pumping:
            self._outbox.pump()
            await asyncio.sleep(0)
        while not self._outbox.in_flight.has_room:
            await self._outbox.wait_room(None)
        self.check_open()

    async def flush(self) -> None:
        """Wait until every message sent before this call is durable (semantics 26).

        Raises the first failure that was not reported yet.
        """
        if self._outbox.failure is not None and not len(self._outbox.in_flight):
            await self._outbox.in_flight.flushed()
            raise self._outbox.failure
        self._outbox.send_open()
        await self._outbox.in_flight.flushed()

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
        self._closed = True
        await self._end.run(self._close)

    async def _close(self) -> None:
        closed = AlreadyClosedError(f"the producer {self.name} of {self.topic} was closed")
        try:
            if self._outbox.failure is None:
                self._outbox.refuse(closed)  # so that nothing is added while it flushes
                await self.flush()
            else:
                await self._outbox.in_flight.flushed()
        finally:
            self._outbox.fail(closed)
            await self._outbox.release()
            if self.on_closed is not None:
                self.on_closed(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._topic}{' (closed)' if self._closed else ''}>"

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
