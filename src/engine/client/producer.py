"""`AsyncProducer`: sends messages to one topic.

The native batcher takes the messages, the ledger knows what is on its way, a lane carries it to one segment. What
happens when: a batch that is full goes out in the same turn of the loop; with nothing on its way an open batch goes
out at the end of the turn, so that one message does not wait and a burst goes together; otherwise it goes when the
last receipt comes in, or after `Batching.max_delay`.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from engine._native import entry as native_entry
from engine._native.batcher import Batcher, MessageColumns, SealedEntry
from engine._native.hashing import MURMUR3, XXH64
from engine.client.compression import Compressor, compressor
from engine.client.lane import Lane
from engine.client.ledger import Ledger, ProducerStatistics
from engine.client.options import ProducerOptions
from engine.client.pool import Pool
from engine.client.topic import TopicLayout, TopicSession, persist
from engine.errors import (
    AlreadyClosedError,
    EngineError,
    ProtocolError,
    QueueFullError,
    TimeoutError,
    UnsupportedError,
)
from engine.model.names import TopicName
from engine.model.positions import MessageId

KEY_HASHES = {"xxh64": XXH64, "murmur3": MURMUR3}


class AsyncProducer:
    """Sends messages to one topic, in order per key. Made by `client.producer()`; usable with `async with`.

    Every method raises AlreadyClosedError after close().
    """

    def __init__(self, pool: Pool, topic: TopicName, name: str, options: ProducerOptions) -> None:
        self.pool = pool
        self.name = name
        self.access_mode = options.access_mode
        self.session = TopicSession(pool, topic)
        self.ledger: Ledger
        self._topic = str(topic)
        self._options = options
        self._codec, self._compressor = compressor(options.compression)
        self._loop = asyncio.get_running_loop()
        self._batcher: Batcher
        self._lanes: dict[int, Lane] = {}
        self.on_closed: Callable[[Any], object] | None = None
        self._failure: EngineError | None = None  # why it takes nothing more
        self._started = False
        self._closed = False
        # What is scheduled already.
        self._pumping = False
        self._turning = False
        self._delay: asyncio.TimerHandle | None = None

    # -- making ----------------------------------------------------------------------------------------------

    async def start(self, on_full: Callable[[], None] | None = None) -> None:
        """Look the topic up, attach where the access mode or the name asks for it, take messages.

        A name of the user's own continues its sequence: the first message gets the id after the largest one that is
        durable.
        """
        options = self._options
        layout = await self.session.open()
        try:
            lanes = [Lane(self, segment) for segment in layout.active]
            self._lanes = {lane.segment.segment_id: lane for lane in lanes}
            if options.name is not None or options.access_mode != "shared":
                for lane in lanes:
                    await persist(
                        self.pool, lane.attach, self.pool.options.operation_timeout, f"attaching to {lane.segment.name}"
                    )
            last = max((lane.last_sequence for lane in lanes), default=-1)
            if options.initial_sequence_id is not None:
                last = options.initial_sequence_id
            self._make_batcher(self.session.layout, last + 1, on_full)
            self._started = True
            self.session.follow(self._set_layout, self.lane_fatal)
            if self._failure is not None:
                raise self._failure
        except BaseException:
            await self._release()
            raise

    def _make_batcher(self, layout: TopicLayout, first_sequence: int, on_full: Callable[[], None] | None) -> None:
        options = self._options
        limit = min(options.max_pending_bytes, self.pool.options.memory_limit)
        self._batcher = Batcher(
            self.name.encode(),
            key_hash=_key_hash(layout),
            bytes_max=options.batching.max_bytes,
            messages_max=options.batching.max_messages,
            pending_bytes_max=limit,
            first_sequence=first_sequence,
            on_open=self._on_loop(self._opened),
            on_sealed=self._on_loop(self._sealed),
            on_full=on_full,
        )
        self.ledger = Ledger(
            self._batcher,
            self._topic,
            send_timeout=options.send_timeout,
            pending_bytes_max=limit,
            on_error=options.on_error,
        )
        self._set_layout(layout)
        self.send_nowait = self._batcher.send_nowait  # type: ignore[method-assign]  # not one Python frame in between

    def _on_loop(self, function: Callable[[], None]) -> Callable[[], None]:
        """`function`, to be called from any thread where the client is used from several."""
        if not self.pool.options.threadsafe:
            return function
        loop = self._loop
        return lambda: _call_unless_closed(loop, function)

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
        deliver_after: float | None = None,
        transaction: None = None,
    ) -> MessageId:
        """Send one message and wait until it is durable; its id.

        Waits for room first where the pending limit is reached.

        `value`: any buffer. `key`: bytes, text (UTF-8) or None. `event_time`: an aware datetime or milliseconds. A
        cancelled send may still be written. Raises MessageTooLargeError and InvalidArgumentError before anything is
        sent; TimeoutError after `send_timeout`, when the outcome is unknown; AlreadyClosedError; what the broker
        answers.
        """
        refuse_transaction(transaction)
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[MessageId] = self._loop.create_future()
        while True:
            try:
                self._batcher.add(value, key, properties, event_time, sequence_id, future, deliver_at, deliver_after)
            except QueueFullError:
                await self._room(self._options.send_timeout)
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
        deliver_after: float | None = None,
    ) -> None:
        """Enqueue one message. Failures surface in flush(), close() and `on_error`.

        Raises QueueFullError when `max_pending_bytes` are on their way: `await writable()`, then send again. A loop
        of many must `await writable()` now and then (each thousand messages, say), or nothing is sent.
        """
        self._batcher.send_nowait(  # shadowed by the native method
            value,
            key=key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
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
        deliver_after: float | None,
    ) -> None:
        """send() for a caller that waits on a future of its own; from any thread where the client is `threadsafe`."""
        if self._failure is not None:
            raise self._failure
        self._batcher.add(value, key, properties, event_time, sequence_id, waiter, deliver_at, deliver_after)

    @property
    def has_room(self) -> bool:
        """Whether the pending limit is not reached."""
        return self.ledger.has_room

    async def send_batch(
        self, values: Any, keys: Any = None, *, event_times: Any = None, transaction: None = None
    ) -> None:
        """Enqueue many messages at once, waiting for room where needed. Failures surface as with send_nowait.

        `values`, `keys`: sequences of equal length: lists, NumPy arrays (bytes, object, 2-D uint8) or Arrow arrays
        (binary, string, large ones, chunked). `event_times`: NumPy int64 or datetime64[ms], or Arrow. Raises
        InvalidArgumentError.
        """
        refuse_transaction(transaction)
        columns = MessageColumns(values, keys, event_times)
        done = 0
        while True:
            if self._failure is not None:
                raise self._failure
            done += self._batcher.add_columns(columns, start=done)
            if self._pumping:
                self._pump()
            if done >= len(columns):
                return
            await self._room(self._options.send_timeout)

    async def writable(self) -> None:
        """Let what is sealed leave, and wait while the pending limit is reached. Cheap when there is nothing to do."""
        if self._pumping:
            self._pump()
            await asyncio.sleep(0)
        while not self.ledger.has_room:
            await self._room(None)
            if self._failure is not None:
                raise self._failure

    async def _room(self, timeout: float | None) -> None:
        """Wait for room. Raises TimeoutError after `timeout` seconds."""
        self._send_open()
        if not self.ledger.has_room:
            try:
                async with asyncio.timeout(timeout):
                    await self.ledger.wait_room()
            except builtins.TimeoutError as e:
                raise TimeoutError(f"the pending limit was reached and no room came free within {timeout:g} s") from e

    async def flush(self) -> None:
        """Wait until every message sent before this call is durable (SEMANTICS 26).

        Raises the first failure not reported yet.
        """
        if self._failure is not None and not len(self.ledger):
            await self.ledger.flushed()
            raise self._failure
        self._send_open()
        await self.ledger.flushed()

    # -- what is scheduled -----------------------------------------------------------------------------------

    def _opened(self) -> None:
        """The batcher holds an open batch again."""
        if len(self.ledger) or self._pumping:
            if self._delay is None:
                self._delay = self._loop.call_later(self._options.batching.max_delay, self._delay_over)
        elif not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn_over)

    def _sealed(self) -> None:
        """The batcher holds sealed entries again."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump_scheduled)

    def _turn_over(self) -> None:
        self._turning = False
        self._send_open()

    def _delay_over(self) -> None:
        self._delay = None
        self._send_open()

    def _send_open(self) -> None:
        """Close every open batch and send it."""
        if self._delay is not None:
            self._delay.cancel()
            self._delay = None
        self._batcher.seal_all()
        self._pump()

    def _pump_scheduled(self) -> None:
        if self._pumping:
            self._pump()

    def _pump(self) -> None:
        """Move sealed entries into their lanes and send."""
        self._pumping = False
        entries = self._batcher.take()
        if not entries:
            return
        if self._compressor is not None:
            self._compress(entries, self._compressor)
        self.ledger.enter(entries)
        if self._failure is not None:
            self.ledger.fail(entries, self._failure)
            return
        lanes = self._lanes
        touched: dict[Lane, None] = {}  # in order, so that a simulation repeats
        for entry in entries:
            lane = lanes[entry.segment_id]
            lane.queue.append(entry)
            touched[lane] = None
        for lane in touched:
            lane.transmit()

    def _compress(self, entries: Sequence[SealedEntry], function: Compressor) -> None:
        for entry in entries:
            entry.data = native_entry.compress(entry.data, self._codec, function)

    def receipts_came(self) -> None:
        """A lane has handed in receipts: with nothing left on its way, what is open goes out after those who just
        woke have sent.
        """
        if not len(self.ledger) and not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn_over)

    # -- layout ----------------------------------------------------------------------------------------------

    def _set_layout(self, layout: TopicLayout) -> None:
        """Route by this layout from now on. What is open was routed by the one before, and goes there first."""
        active = layout.active
        self._batcher.set_layout(
            [s.hash_range.start for s in active], [s.segment_id for s in active], [list(s.bucket_ends) for s in active]
        )
        self._pump()
        for segment in active:
            lane = self._lanes.get(segment.segment_id)
            if lane is None:
                self._lanes[segment.segment_id] = Lane(self, segment)
            else:
                lane.segment = segment

    def lane_sealed(self, lane: Lane) -> None:
        """What waits for a sealed segment belongs to its children, split by message."""
        # The one place that re-splitting goes; segments of this version are sealed only when their topic is deleted.
        lane.fail_queued(UnsupportedError(f"{lane.segment.name} was sealed with messages on their way to it"))

    def lane_fatal(self, error: EngineError) -> None:
        """Fenced, refused or deleted: nothing more goes out."""
        self._failure = self._failure or error
        if not self._started:
            return  # start() raises it
        self._batcher.refuse(self._failure)
        self._send_open()
        for lane in self._lanes.values():
            lane.fail_queued(error)

    # -- the rest --------------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._topic

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last message taken, -1 before the first; a named producer's continues."""
        return self._batcher.last_sequence

    def statistics(self) -> ProducerStatistics:
        """A frozen record of totals."""
        return self.ledger.statistics()

    async def close(self) -> None:
        """Flush, then end. Idempotent. Raises what flush() raises, after everything is closed."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._failure is None:
                await self.flush()
            else:
                await self.ledger.flushed()
        finally:
            self.lane_fatal(AlreadyClosedError(f"the producer {self.name} of {self.topic} was closed"))
            await self._release()
            if self.on_closed is not None:
                self.on_closed(self)

    async def _release(self) -> None:
        if self._started:
            self.ledger.stop()
        if self._delay is not None:
            self._delay.cancel()
        self.session.close()
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _call_unless_closed(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)


def refuse_transaction(transaction: object) -> None:
    """Raise UnsupportedError unless it is None."""
    if transaction is not None:
        raise UnsupportedError("transactions are not part of this version")


def _key_hash(layout: TopicLayout) -> int:
    if layout.key_hash not in KEY_HASHES:
        raise ProtocolError(f"the topic's key hash is {layout.key_hash!r}; this client knows {', '.join(KEY_HASHES)}")
    return KEY_HASHES[layout.key_hash]
