"""What the three kinds of consumers of one topic share: one queue, credit, attachments, and the end.

Blocks are verified once, when they arrive, and read lazily.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from engine._native.batch import MessageBatch, decode_block
from engine._native.entry import Entry
from engine._native.entry_queue import EntryQueue
from engine._native.message import Message
from engine.aio.once import Once
from engine.client.attachment import QUEUE, SHARED, Attachment
from engine.client.compression import decompressor
from engine.client.declaring import declare, learn
from engine.client.options import ConsumerOptions
from engine.client.pool import Pool, call_threadsafe
from engine.client.receiving import ConsumerStatistics, Gatherer, Receiving
from engine.client.topic import TopicLayout, TopicSession
from engine.client.windows import Budget
from engine.errors import AlreadyClosedError, CorruptionError, EngineError, SubscriptionNotFoundError
from engine.limits import RECEIVE_QUEUE_BYTES
from engine.model.names import TopicName
from engine.model.positions import MessageId, split_position


class Receiver(Receiving):
    """Base of the consumers of one topic. Loop thread only, but for take_now()."""

    def __init__(self, pool: Pool, topic: TopicName, options: ConsumerOptions) -> None:
        super().__init__()
        self.pool = pool
        self.options = options
        self.session = TopicSession(pool, topic)
        self.attachments: dict[int, Attachment] = {}
        self.subscription_ms: int | None = None  # when it was created, once it is known: no later one is meant
        self.on_closed: Callable[[Any], object] | None = None
        self._topic = str(topic)
        self._make_id = partial(MessageId, topic=self._topic)
        self._queue = self._new_queue()
        self._unread = 0  # entries that wait and were written by a schema not known here yet
        self._decompress = decompressor()
        self._closed = False
        self._end = Once()
        # What arrived and what was credited again, in total; what is between the two is queued or due.
        self._pushed_messages = self._pushed_bytes = 0
        self._credited_messages = self._credited_bytes = 0
        self._budget = Budget((options.receive_queue_size, min(RECEIVE_QUEUE_BYTES, pool.options.memory_limit)))
        self._counted = self._held = 0  # attachments, and bytes, in the budget
        # The smallest window that was granted, by so many shares; a quarter of it is worth a FLOW.
        self._window_messages, self._window_bytes = self._budget.whole
        self._fitted_to = 0
        self._returning = False
        self._gatherer: Gatherer | None = None

    def _new_queue(self) -> EntryQueue:
        schema = self.options.schema
        return EntryQueue(self._topic, self._make_id, None, None if schema.raw else schema.decode)

    async def _open(self) -> TopicLayout:
        """Look the topic up, and tell it the schema by which its values are read."""
        layout = await self.session.open(create=self.options.create_topic)
        await declare(self.session, self.options.schema, producer=False)
        return layout

    # -- as one of several -----------------------------------------------------------------------------------

    def gather(self, gatherer: Gatherer) -> None:
        """From now on, who receives is somebody who receives from others as well. Before start()."""
        self._gatherer, self._budget = gatherer, gatherer.budget

    @property
    def positions(self) -> dict[int, int]:
        """{place: next offset} of everything delivered, a new dict."""
        return self._queue.positions

    @property
    def failure(self) -> EngineError | None:
        """Why nothing more arrives."""
        return self._failure

    def identify(self, make_id: Callable[[int, int, dict[int, int]], object]) -> None:
        """What is delivered next gets its ids from this."""
        self._queue.set_make_id(make_id)

    def _wake(self) -> None:
        if self._gatherer is None:
            super()._wake()
        elif self.waiting:
            self._gatherer.messages_came(self)

    def fail(self, error: EngineError) -> None:
        """Nothing more arrives; receives raise this when they have had what is queued."""
        before = self._failure
        if before is None and isinstance(error, SubscriptionNotFoundError):
            self._abandon()
        super().fail(error)
        if self._gatherer is not None and before is None:
            self._gatherer.member_failed(self, error)

    def _abandon(self) -> None:
        """The subscription was deleted: what waits cannot be acknowledged any more, and nothing is attached again."""
        for attachment in list(self.attachments.values()):
            attachment.give_up()
            self._drop(attachment.segment_id)

    # -- receiving -------------------------------------------------------------------------------------------

    def take_now(self, max_messages: int | None = None, max_bytes: int = -1) -> Any:
        """From any thread: the next Message (or MessageBatch), None when nothing waits or others wait for it before."""
        if self._turns:
            return None
        found = self._pop_message() if max_messages is None else self._pop_batch(max_messages, max_bytes)
        if found is not None and not self._returning and self._must_look():
            self._returning = True
            call_threadsafe(self._loop, self._return_credit)
        return found

    @property
    def waiting(self) -> int:
        """How many messages wait to be received."""
        return 0 if self._unread else self._queue.messages

    def _pop_message(self) -> Message | None:
        return None if self._unread else self._queue.pop_message()

    def _pop_batch(self, max_messages: int, max_bytes: int) -> MessageBatch | None:
        return self._queue.pop_batch(max_messages, max_bytes) if self.waiting else None

    def _no_messages(self) -> MessageBatch:
        return MessageBatch(self._topic, [], {}, self._make_id)

    # -- arriving --------------------------------------------------------------------------------------------

    def blocks_came(self, attachment: Attachment, header: dict[str, Any], payload: memoryview) -> None:
        """Verify a block and queue it."""
        segment_id = attachment.segment_id
        ordered = attachment.mode not in (QUEUE, SHARED)
        start = attachment.expected if ordered else 0
        try:
            entries = decode_block(payload, header["salt"], segment_id, start if ordered else -1, self._decompress)
        except CorruptionError as e:
            self.fail(e)
            return
        self._look_for_writers(entries)
        self._pushed_messages += header["messages"]
        self._pushed_bytes += len(payload)
        begin = 0 if attachment.mode == QUEUE else max(start, attachment.confirmed)
        pushed = self._push(attachment, entries, header, begin)
        if attachment.parked is None:
            attachment.pushed += pushed
        else:
            self._credited_messages += header["messages"]  # as if, until it is delivered after all
            self._credited_bytes += len(payload)
        if entries:
            attachment.expected = attachment.gaps.skip(entries[-1].first_offset + entries[-1].count)
            attachment.arrived = max(attachment.arrived, attachment.expected)
        self._recount()
        self._popped()  # what is not for anybody has its credit back at once: nobody may come to pop anything
        self._wake()

    def _push(self, attachment: Attachment, entries: list[Entry], header: dict[str, Any], begin: int) -> int:
        """Queue what a block holds for this consumer; how many messages."""
        queue = self._queue if attachment.parked is None else attachment.parked
        return queue.push(entries, header.get("skip"), header.get("redelivered"), begin, attachment.marks)

    def _look_for_writers(self, entries: Sequence[Entry]) -> None:
        """Nothing is handed out before the schemas of all that waits are known. An entry's messages have one."""
        schema = self.options.schema
        if schema.evolves and (unread := sum(schema.unknown(_first_value(entry)) for entry in entries)):
            if not self._unread:
                self.pool.tasks.spawn(self._learn_writers(), name=f"schemas of {self._topic}")
            self._unread += unread

    async def _learn_writers(self) -> None:
        """What is not known then was not written by any of the topic's: who asks for its value is told."""
        try:
            while unread := self._unread:
                await learn(self.session, self.options.schema)
                self._unread -= unread
        except EngineError as e:
            self._unread = 0
            if not self._closed:
                self.fail(e)
        self._wake()

    # -- credit ----------------------------------------------------------------------------------------------

    def attached(self, attachment: Attachment) -> None:
        """Grant the whole window: its part of what the consumer may hold."""
        self._recount()
        self._budget.admit(attachment)
        self._fit_windows()
        if self._gatherer is not None:
            self._gatherer.member_attached(self)

    def _recount(self) -> None:
        self._held = self._budget.hold(self._held, self._pushed_bytes - self._credited_bytes)
        self._counted = self._budget.recount(self._counted, len(self.attachments))

    def _fit_windows(self) -> None:
        self._recount()
        self._fitted_to = self._budget.shares
        self._window_messages, self._window_bytes = self._budget.widen(self.attachments.values())

    def detached(self, attachment: Attachment) -> None:
        """What waits of it comes again; what is queued is dropped."""
        attachment.window = None
        attachment.pushed -= self._drop(attachment.segment_id)

    def acknowledged_again(self, attachment: Attachment, ranges: Any) -> None:
        """What was delivered before a loss, and acknowledged after it, is not delivered once more."""
        self._queue.forget(attachment.segment_id, ranges, attachment.marks)
        self._popped()

    def _drop(self, segment_id: int) -> int:
        """Forget what is queued of one segment; it needs no credit. Returns how many messages."""
        self._return_credit()
        size = self._queue.bytes
        dropped = self._queue.drop(segment_id)
        self._credited_messages += dropped
        self._credited_bytes += size - self._queue.bytes
        return dropped

    def _restart_queue(self) -> None:
        """Begin with an empty queue, all credit accounted for."""
        self._queue = self._new_queue()
        self._credited_messages, self._credited_bytes = self._pushed_messages, self._pushed_bytes

    def _popped(self) -> None:
        """After every pop, on the loop."""
        if self._must_look():
            self._return_credit()

    def _must_look(self) -> bool:
        """Whether enough was consumed to tell the brokers."""
        messages = self._pushed_messages - self._queue.messages - self._credited_messages
        size = self._pushed_bytes - self._queue.bytes - self._credited_bytes
        return 4 * messages >= self._window_messages or 4 * size >= self._window_bytes

    def _return_credit(self) -> None:
        self._returning = False
        self._grant(self._queue.take_credit())
        self._recount()
        if self._budget.shares != self._fitted_to:
            self._fit_windows()

    def _grant(self, due: dict[int, tuple[int, int]]) -> None:
        for segment_id, (messages, size) in due.items():
            self._credited_messages += messages
            self._credited_bytes += size
            attachment = self.attachments.get(segment_id)
            if attachment is not None:
                self._budget.regrant(attachment, messages, size)

    # -- what the kinds differ in ----------------------------------------------------------------------------

    def end_reached(self, attachment: Attachment) -> None:
        """A sealed segment was sent to its end."""

    def segment_missing(self, attachment: Attachment, error: EngineError) -> bool:
        """A sealed segment may have been deleted by retention: skip it (SEMANTICS 28). With an active one its
        subscription is gone, and the consumer fails; but first it looks whether the segment is active still.
        """
        view = self.session.layout.segments.get(attachment.segment_id)
        if view is None or view.active:
            if attachment.looks is None:
                attachment.looks = self.session.looks
                self.session.look_again()
            if self.session.looks == attachment.looks:
                return True
            attachment.looks = None
        if view is not None and view.active:
            self.fail(error)
        else:
            self.segment_gone(attachment)
        return False

    def segment_gone(self, attachment: Attachment) -> None:
        """The segment is no more."""
        self.attachments.pop(attachment.segment_id, None)
        attachment.give_up()
        self._forget_left()

    def _forget_left(self) -> None:
        """Position vectors need nothing of segments that this consumer has left for good, or they only grow."""
        delivered = self._queue.positions.items()
        left = {place: position for place, position in delivered if self._is_left(place, position)}
        if left:
            self._queue.forget_positions(left)

    def _is_left(self, place: int, position: int) -> bool:
        """Whether no acknowledgement needs to say that a segment, or a bucket of it, was delivered so far."""
        segment_id, _ = split_position(place)
        return segment_id not in self.attachments and self._is_done(segment_id, place, position)

    def _is_done(self, segment_id: int, place: int, position: int) -> bool:
        """The same of a segment that has no attachment."""
        return self.session.layout.has_lost(segment_id)

    def _follow(self) -> None:
        """Follow the layout. Raises when the topic is gone."""
        self.session.follow(self._layout_came, self.fail, self.readdressed)

    def _layout_came(self, layout: TopicLayout) -> None:
        self.layout_changed(layout)
        self.readdressed(layout)
        self._forget_left()

    def readdressed(self, layout: TopicLayout) -> None:
        """Owners may have changed: what is attached elsewhere attaches there."""
        for attachment in list(self.attachments.values()):
            attachment.moved(layout)

    @abstractmethod
    def layout_changed(self, layout: TopicLayout) -> None:
        """A newer layout."""

    async def _end_work(self) -> None:
        """Before anybody is told: end what is under way."""

    async def _leave(self) -> None:
        """Say goodbye to whoever else knows this consumer."""

    # -- life ------------------------------------------------------------------------------------------------

    async def _tried_all(self) -> None:
        """Wait until each attachment has been tried once; raise what made the consumer fail."""
        waits = [asyncio.ensure_future(a.tried.wait()) for a in list(self.attachments.values())]
        try:
            if waits:
                await asyncio.wait(waits, timeout=self.pool.options.operation_timeout)
        finally:
            for wait in waits:
                wait.cancel()
        if not isinstance(self._failure, CorruptionError):
            self._check_open()  # damaged data is met where it stands, behind what is good

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._topic

    @property
    def topics(self) -> list[str]:
        """That topic alone: what consumers of several have, all have."""
        return [self._topic]

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self.options.name

    def statistics(self) -> ConsumerStatistics:
        """A frozen record of totals."""
        return ConsumerStatistics(
            messages_received=self._pushed_messages,
            bytes_received=self._pushed_bytes,
            messages_queued=self._queue.messages,
            bytes_queued=self._queue.bytes,
            segments=len(self.attachments),
        )

    async def close(self) -> None:
        """Leave. Acknowledges nothing (SEMANTICS 13); receives that wait raise AlreadyClosedError. Idempotent."""
        self._closed = True
        await self._end.run(self._close)

    async def _close(self) -> None:
        self.end(AlreadyClosedError(f"the consumer {self.options.name} of {self._topic} was closed"))
        try:
            await self._end_work()
            self._restart_queue()
            await asyncio.gather(*(a.close() for a in list(self.attachments.values())))
            await self._leave()
        finally:
            self.session.close()
            self._counted, self._held = self._budget.recount(self._counted, 0), self._budget.hold(self._held, 0)
            if self.on_closed is not None:
                self.on_closed(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._topic}{' (closed)' if self._closed else ''}>"


def _first_value(entry: Entry) -> bytes:
    value: bytes = MessageBatch("", [(entry, 0, 1)], {}, MessageId)[0].value
    return value
