"""What the three kinds of consumers of one topic share: one queue, credit, attachments, and the end.

Blocks are verified once, when they arrive, and decoded when they are received.

Credit is counted in totals: what arrived (`_pushed…`) minus what was credited again (`_credited…`) is queued, or was
consumed and is due. A quarter of the smallest window is worth a FLOW frame. What is dropped because it will be
delivered again, and what is parked, counts as credited without a FLOW.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from engine._native.consume.batch import MessageBatch
from engine._native.consume.entry_queue import EntryQueue
from engine._native.consume.receiving import Inbox
from engine._native.format.entry import Entry
from engine.aio.once import Once
from engine.client.base.options import ConsumerOptions
from engine.client.consume.attachment import Attachment
from engine.client.consume.credit import Budget
from engine.client.consume.damage import Damage, end_of
from engine.client.consume.opening import opener
from engine.client.consume.receiving import ConsumerStatistics, MemberOwner, Receiving, V
from engine.client.consume.writers import Writers
from engine.client.net.pool import Pool, call_threadsafe
from engine.client.topic.declaring import declare
from engine.client.topic.layout import TopicLayout
from engine.client.topic.session import TopicSession
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    DecryptionError,
    EngineError,
    NotFoundError,
    SubscriptionNotFoundError,
)
from engine.limits import RECEIVE_QUEUE_BYTES
from engine.model.names import TopicName
from engine.model.positions import MessageId, split_position

log = logging.getLogger("engine.client")


class Receiver(Inbox, Receiving[V]):
    """Base of the consumers of one topic. Loop thread only, but for take_now() and _owes_credit()."""

    def __init__(self, pool: Pool, topic: TopicName, options: ConsumerOptions) -> None:
        super().__init__()
        self.pool = pool
        self.options = options
        self.session = TopicSession(pool, topic)
        self.subscription_ms: int | None = None  # of its creation, once known: a later one of its name is another
        self._topic = str(topic)
        self._make_id = partial(MessageId, topic=self._topic)
        self.attachments: dict[int, Attachment] = {}
        self._queue = self._new_queue()
        self._evolves = options.schema.evolves
        # Totals, see above.
        self._pushed_messages = self._pushed_bytes = 0
        self._credited_messages = self._credited_bytes = 0
        self._received_messages = self._received_bytes = 0  # from earlier queues
        self._budget = Budget((self._counted(options), RECEIVE_QUEUE_BYTES), memory=pool.memory)
        self._budget_share = self._budget.share()
        # The smallest window that was granted; a quarter of it is worth a FLOW.
        self._window_messages, self._window_bytes = self._budget.whole
        self._fitted_to = (0, 0)  # the state of the budget when windows were last computed
        self._returning = False
        self.unread = 0  # queued entries whose writer schema is not known yet
        self._writers = Writers(self)
        self._damage = Damage(self)
        self._closed = False
        self._gaps = 0
        self._end = Once()
        self._member_of: MemberOwner | None = None
        self._leave_memory: Callable[[], None] = lambda: None

    def _counted(self, options: ConsumerOptions) -> int:
        """The window for messages that are queued. 0: another one counts them."""
        return options.fetched_ahead

    def _new_queue(self) -> EntryQueue:
        schema = self.options.schema
        decode = None if schema.raw else schema.decode
        return EntryQueue(self._topic, self._make_id, None, decode, opener(self.options), self.pool.memory.opened)

    def _restart_queue(self) -> None:
        """Replace the queue by an empty one; everything counts as credited."""
        self.pool.memory.forget(self._queue)
        self._received_messages += self._queue.received
        self._received_bytes += self._queue.received_bytes
        self._queue = self._new_queue()
        self._credited_messages, self._credited_bytes = self._pushed_messages, self._pushed_bytes

    async def _open(self) -> TopicLayout:
        """Look the topic up, and declare the schema by which its values are read."""
        if self._member_of is None:
            self._leave_memory = self.pool.memory.consumer_came()
        layout = await self._look_up()
        await declare(self.session, self.options.schema, producer=False)
        return layout

    async def _look_up(self) -> TopicLayout:
        """The topic's layout; a missing topic is created where asked for. The name may be wrong: that is logged."""
        try:
            return await self.session.open(create=False)
        except NotFoundError:
            if not self.options.create_topic:
                raise
        layout = await self.session.open(create=True)
        name = self.options.name
        log.warning("%s did not exist: consumer %s created it; create=False would have raised", self._topic, name)
        return layout

    # -- as one of several -----------------------------------------------------------------------------------

    def become_member(self, owner: MemberOwner) -> None:
        """Receives go through a consumer of several topics. Call it before start()."""
        self._member_of, self._budget, self._budget_share = owner, owner.budget, owner.budget.share()

    @property
    def positions(self) -> dict[int, int]:
        """{place: next offset} of everything delivered, a new dict."""
        return self._queue.positions

    @property
    def failure(self) -> EngineError | None:
        """The reason for which nothing more arrives."""
        return self._failure

    def identify(self, make_id: Callable[[int, int, dict[int, int]], object]) -> None:
        """Make the ids of what is delivered next with this function."""
        self._queue.set_make_id(make_id)

    def fail(self, error: EngineError) -> None:
        """Nothing more arrives; receives raise this when they have had what is queued."""
        before = self._failure
        if before is None and isinstance(error, SubscriptionNotFoundError):
            self._abandon()
        super().fail(error)
        if self._member_of is not None and before is None:
            self._member_of.member_failed(self, error)

    def _abandon(self) -> None:
        """The subscription was deleted: drop what is queued, since it cannot be acknowledged, and attach no more."""
        for attachment in list(self.attachments.values()):
            attachment.give_up()
            self._drop(attachment.segment_id)

    # -- receiving -------------------------------------------------------------------------------------------

    def take_now(self, max_messages: int | None = None, max_bytes: int = -1) -> Any:
        """From any thread: the next Message (or MessageBatch), None when nothing waits or others wait for it before."""
        if self._receives:
            return None
        try:
            found = self._take_message() if max_messages is None else self._take_batch(max_messages, max_bytes)
        except CorruptionError:
            return None  # the loop pops it again
        except DecryptionError as e:
            raise self._damage.placed(e) from e.__cause__
        if found is not None and not self._returning and self._owes_credit():
            self._returning = True
            call_threadsafe(self._loop, self._return_credit)
        return found

    def _take_batch(self, max_messages: int, max_bytes: int) -> MessageBatch | None:
        return self._queue.pop_batch(max_messages, max_bytes) if self.waiting else None

    def _pop_batch(self, max_messages: int, max_bytes: int) -> MessageBatch | None:
        try:
            return self._take_batch(max_messages, max_bytes)
        except (CorruptionError, DecryptionError) as e:
            return self._damage.past(e, partial(self._take_batch, max_messages, max_bytes))

    # -- bad entries -----------------------------------------------------------------------------------------

    def damaged(self, drop: bool = False) -> tuple[Entry, int, int] | None:
        """The bad entry at the head, with its first and last offset. `drop`: remove it as if it was received."""
        return self._queue.damaged(drop)

    def meet_damage(self) -> CorruptionError | None:
        """For the consumer of several topics: skip a bad entry, or return the error that one receive has to raise."""
        return self._damage.meet()

    def stop_at(self, entry: Entry, error: CorruptionError) -> None:
        """Stop delivery of this segment until it is attached again; other segments continue."""
        attachment = self.attachments.get(entry.segment_id)
        self._damage.stopped[entry.segment_id] = error
        if attachment is not None:
            attachment.broken = True
            attachment.pushed -= self._drop(entry.segment_id)
        else:
            self._drop(entry.segment_id)
        self._popped()

    def pass_by(self, attachment: Attachment | None, entry: Entry, first: int, last: int) -> None:
        """Skip a bad entry."""
        self._queue.damaged(drop=True)
        self._popped()

    def broken_off(self, attachment: Attachment, error: CorruptionError) -> None:
        """Queue the error behind what is queued of the segment."""
        self._break_off(attachment, end_of(attachment, error))
        self._wake()

    def _break_off(self, attachment: Attachment, end: Entry) -> None:
        attachment.broken = True
        self._pushed_messages += end.count
        queue = self._queue if attachment.parked is None else attachment.parked
        attachment.pushed += queue.push([end])

    def _no_messages(self) -> MessageBatch:
        return MessageBatch(self._topic, [], {}, self._make_id)

    # -- arriving --------------------------------------------------------------------------------------------

    def schemas_came(self) -> None:
        """The schemas of everything queued are known."""
        self._wake()

    # -- credit ----------------------------------------------------------------------------------------------

    def _fit_windows(self) -> None:
        self._recount()
        self._fitted_to = self._budget.state
        self._window_messages, self._window_bytes = self._budget.widen(self.attachments.values())

    def _drop(self, segment_id: int) -> int:
        """Drop what is queued of one segment, without a FLOW. Returns how many messages."""
        self._return_credit()
        size = self._queue.bytes
        dropped = self._queue.drop(segment_id)
        self._credited_messages += dropped
        self._credited_bytes += size - self._queue.bytes
        self._recount()
        return dropped

    def _return_credit(self) -> None:
        self._returning = False
        self._grant(self._queue.take_credit())

    def _grant(self, due: dict[int, tuple[int, int]]) -> None:
        for segment_id, (messages, size) in due.items():
            self._credited_messages += messages
            self._credited_bytes += size
            attachment = self.attachments.get(segment_id)
            if attachment is not None and not attachment.broken:
                self._budget.regrant(attachment, messages if self._window_messages else 0, size)
        self._recount()
        if self._budget.state != self._fitted_to:
            self._fit_windows()

    def _hurry(self) -> None:
        """Have brokers save what was acknowledged and is not awaited."""
        for attachment in self.attachments.values():
            attachment.hurry()

    # -- attachments -----------------------------------------------------------------------------------------

    def attached(self, attachment: Attachment) -> None:
        """Grant the whole window."""
        self._damage.stopped.pop(attachment.segment_id, None)
        self._recount()
        self._budget.admit(attachment)
        self._fit_windows()
        if self._member_of is not None:
            self._member_of.member_attached(self)

    def detached(self, attachment: Attachment) -> None:
        """Drop what is queued of it: it is delivered again."""
        attachment.window = None
        attachment.pushed -= self._drop(attachment.segment_id)

    def acknowledged_again(self, attachment: Attachment, ranges: Any) -> None:
        """Drop what was delivered before a loss and acknowledged after it from what is queued a second time."""
        self._queue.forget(attachment.segment_id, ranges, attachment.progress.marks)
        self._popped()

    # -- what the kinds differ in ----------------------------------------------------------------------------

    def end_reached(self, attachment: Attachment) -> None:
        """A sealed segment was sent to its end."""

    def segment_missing(self, attachment: Attachment, error: EngineError) -> bool:
        """A sealed segment may have been deleted by retention: skip it (semantics 28). On an active one the
        subscription was deleted, and the consumer fails; but first the layout is looked up again.
        """
        view = self.session.layout.segments.get(attachment.segment_id)
        if view is None or view.active:
            if attachment.lookups is None:
                attachment.lookups = self.session.lookups
                self.session.refresh_soon()
            if self.session.lookups == attachment.lookups:
                return True
            attachment.lookups = None
        if view is not None and view.active:
            self.fail(error)
        else:
            self.segment_gone(attachment)
        return False

    def segment_gone(self, attachment: Attachment) -> None:
        """The segment was deleted."""
        self.attachments.pop(attachment.segment_id, None)
        attachment.give_up()
        self._forget_left()

    def _forget_left(self) -> None:
        """Drop segments that this consumer has left for good from position vectors, which would only grow."""
        delivered = self._queue.positions.items()
        left = {place: position for place, position in delivered if self._is_left(place, position)}
        if left:
            self._queue.forget_positions(left)

    def _is_left(self, place: int, position: int) -> bool:
        """Whether no acknowledgement needs the position in a segment, or in a bucket of it."""
        segment_id, _ = split_position(place)
        return segment_id not in self.attachments and self._is_done(segment_id, place, position)

    def _is_done(self, segment_id: int, place: int, position: int) -> bool:
        """_is_left() for a segment without an attachment."""
        return self.session.layout.has_lost(segment_id)

    def _follow(self) -> None:
        """Follow the layout. Raises when the topic was deleted."""
        self.session.follow(self._layout_came, self.fail, self.readdressed)

    def _layout_came(self, layout: TopicLayout) -> None:
        self.layout_changed(layout)
        self.readdressed(layout)
        self._forget_left()

    def readdressed(self, layout: TopicLayout) -> None:
        """Attach again where the owner of a segment has changed."""
        for attachment in list(self.attachments.values()):
            attachment.moved(layout)

    @abstractmethod
    def layout_changed(self, layout: TopicLayout) -> None:
        """A newer layout."""

    async def _end_work(self) -> None:
        """End background work, before the brokers are told."""

    async def _leave(self) -> None:
        """Leave the subscription or group."""

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
            self._check_open()  # raised by a receive, behind what is good

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._topic

    @property
    def topics(self) -> list[str]:
        """A list of that topic: consumers of several topics have the same property."""
        return [self._topic]

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self.options.name

    def gaps_reported(self, count: int) -> None:
        """Count gaps."""
        self._gaps += count

    def statistics(self) -> ConsumerStatistics:
        """A frozen record of totals."""
        return ConsumerStatistics(
            messages_received=self._received_messages + self._queue.received,
            bytes_received=self._received_bytes + self._queue.received_bytes,
            messages_queued=self._queue.messages,
            bytes_queued=self._queue.bytes,
            segments=len(self.attachments),
            corrupt_entries=self._damage.entries,
            corrupt_messages=self._damage.messages,
            gaps=self._gaps,
            handled=self.handled,
            handler_failures=self.handler_failures,
        )

    @property
    def closed(self) -> bool:
        """Whether close() was called, here or on its client."""
        return self._closed

    async def close(self) -> None:
        """Leave. Acknowledges nothing (semantics 13); receives that wait raise AlreadyClosedError. Idempotent.

        Raises what became of acknowledgements that were not awaited (`…_nowait`), after everything has ended.
        """
        self._closed = True
        await self._end.run(self._close)

    async def _close(self) -> None:
        unconfirmed = await self._starting.failure_of(self._confirmed())
        self.end(AlreadyClosedError(f"the consumer {self.options.name} of {self._topic} was closed"))
        self._starting.retrieve()
        try:
            await self._end_work()
            self._restart_queue()
            await asyncio.gather(*(a.close() for a in list(self.attachments.values())))
            await self._leave()
        finally:
            self.session.close()
            self._leave_memory()
            self._budget_share.set(held=0, attachments=0)
            if self.on_closed is not None:
                self.on_closed()
        if unconfirmed is not None:
            raise unconfirmed

    async def _confirmed(self) -> None:
        """Wait for the acknowledgements that are not awaited one by one. Raises the first failure."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._topic}{' (closed)' if self._closed else ''}>"
