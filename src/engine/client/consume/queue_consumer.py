"""`AsyncQueueConsumer`: single messages from every segment, acknowledged one by one, delivered again when they are
not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace
from pyroaring import BitMap64

from engine._native.consume.batch import MessageBatch
from engine._native.consume.message import Message
from engine._native.consume.unacked import QueueInbox, Unacknowledged
from engine._native.format.entry import Entry
from engine._native.format.offsets import offset_set, pack, range_set, runs
from engine.client.base.options import ConsumerOptions, QueueOptions, check_seconds
from engine.client.base.positions import offsets_of
from engine.client.consume.attachment import Attachment, all_acknowledged
from engine.client.consume.dead_letter import DeadLetters, unreadable
from engine.client.consume.failure import Failure
from engine.client.consume.permits import permits_of
from engine.client.consume.receiving import ConsumerStatistics, MemberOwner, V
from engine.client.consume.runs import QueueRuns
from engine.client.consume.subscribed import SubscriptionConsumer
from engine.client.consume.unconfirmed import Begun, Unconfirmed
from engine.client.net.pool import Pool
from engine.client.topic.layout import TopicLayout
from engine.client.transact.scope import InTransaction, Scope, scope_of
from engine.errors import CorruptionError, EngineError, NotFoundError, TransactionConflictError
from engine.model.names import TopicName
from engine.model.positions import MessageId
from engine.model.redelivery import Backoff
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands

RANGES_MAX = 20_000  # of one frame, so that it fits its header
OFFSET_MAX = 1 << 63

Acknowledgeable = Message[Any] | MessageId | MessageBatch[Any] | Iterable[Message[Any] | MessageId]
LastDeliveries = dict[int, dict[int, Message]]  # messages by segment and offset

# Waits until an ACK that was sent is durable. Not a coroutine: one would be reported as never awaited where the task
# that waits is cancelled before it begins.
Outcome = Callable[[], Coroutine[Any, Any, bool]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueConsumerStatistics(ConsumerStatistics):
    """The same, and of messages, since the consumer was made: confirmed acknowledgements, those handed back by
    negative acknowledgements and by time-outs, and those moved to the dead-letter topic. `unacknowledged` is of this
    moment: received and not acknowledged.
    """

    acknowledged: int
    negatively_acknowledged: int
    timed_out: int
    dead_lettered: int
    unacknowledged: int


class AsyncQueueConsumer(QueueInbox, QueueRuns[V], SubscriptionConsumer[V]):
    """Receives messages that no other consumer of the subscription has.

    Made by `client.queue_consumer()`; usable with `async with`.

    A message comes back (to any consumer of the subscription) when it was negatively acknowledged, when `ack_timeout`
    is over, or when this consumer closes or is lost with it unacknowledged; its `redelivery_count` has then grown by
    one.
    """

    def __init__(
        self, pool: Pool, topic: TopicName, options: ConsumerOptions, queue: QueueOptions | None = None
    ) -> None:
        super().__init__(pool, topic, options)
        self._finished: set[int] = set()  # sealed, and acknowledged to the end or deleted
        self._backoff = (queue or QueueOptions()).nack_backoff
        self._unacked = Unacknowledged((queue or QueueOptions()).ack_timeout, self._loop.time)
        self._permits = permits_of(options, self._loop)
        self._lives: dict[int, int] = {}  # by segment, how often its messages were taken back by the broker
        self._timer: asyncio.TimerHandle | None = None
        self._acknowledged = self._nacked = self._timed_out = 0
        self._unconfirmed = Unconfirmed[dict[int, BitMap64]](self._starting, self._begin_asked, _merged, self._hurry)
        self._dead_letters: DeadLetters | None = None
        if queue is not None and queue.dead_letter is not None:
            assert queue.own_transaction is not None
            self._dead_letters = DeadLetters(
                pool, topic, queue.dead_letter, options, begin=queue.own_transaction,
                acknowledge=self._acknowledge_letters, hand_back=self._hand_back_letters,
            )  # fmt: skip

    async def start(self) -> None:
        """Attach to every segment, active and sealed (semantics 10)."""
        try:
            self.layout_changed(await self._open())
            self._follow()
            await self._tried_all()
        except BaseException:
            await self.close()
            raise

    def layout_changed(self, layout: TopicLayout) -> None:
        """Attach to new segments, give up deleted ones."""
        if self._closed or self._failure is not None:
            return  # what began now would never be closed
        for segment in layout.segments.values():
            if segment.segment_id not in self.attachments and segment.segment_id not in self._finished:
                attachment = Attachment(self.working, segment.segment_id, segment.name, DeliveryMode.QUEUE)
                self.attachments[segment.segment_id] = attachment
                attachment.begin()
        for segment_id in self.attachments.keys() - layout.segments.keys():
            attachment = self.attachments.pop(segment_id)
            attachment.give_up()
            self._permits.leave(attachment)
            self._let_go(segment_id)
        self._finished &= layout.segments.keys()

    def attached(self, attachment: Attachment) -> None:
        """Grant credit: bytes, then messages."""
        super().attached(attachment)
        self._permits.admit(attachment)

    def detached(self, attachment: Attachment) -> None:
        """A seek ends the attachments to all active segments: finished ones may have a backlog again."""
        self._permits.leave(attachment)
        self._settle()
        super().detached(attachment)
        self._let_go(attachment.segment_id)
        self._finished.clear()
        self.layout_changed(self.session.layout)

    def _abandon(self) -> None:
        super()._abandon()
        for segment_id, attachment in self.attachments.items():
            self._permits.leave(attachment)
            self._let_go(segment_id)

    def segment_gone(self, attachment: Attachment) -> None:
        """Retention deletes what every subscription has acknowledged."""
        self._finished.add(attachment.segment_id)
        super().segment_gone(attachment)
        self._permits.leave(attachment)
        self._let_go(attachment.segment_id)

    def end_reached(self, attachment: Attachment) -> None:
        """Detach from a sealed segment without backlog."""
        self._finished.add(attachment.segment_id)
        self.attachments.pop(attachment.segment_id, None)
        attachment.give_up()
        self._permits.leave(attachment)
        self._forget_left()
        self._let_go(attachment.segment_id)

    def _is_done(self, segment_id: int, place: int, position: int) -> bool:
        """Also a segment that is acknowledged to its end."""
        return segment_id in self._finished or super()._is_done(segment_id, place, position)

    # -- credit ----------------------------------------------------------------------------------------------

    def _counted(self, options: ConsumerOptions) -> int:
        return 0  # by _permits

    def become_member(self, owner: MemberOwner) -> None:
        """Also the window for messages is that of the whole consumer."""
        super().become_member(owner)
        assert owner.permits is not None
        self._permits = owner.permits

    def _leave_permits(self) -> None:
        """The other topics of the consumer get its part of the window."""
        for attachment in self.attachments.values():
            self._permits.leave(attachment)
        self._permits.change(-self._unacked.told)
        self._permits = permits_of(self.options, self._loop)
        self._permits.change(self._unacked.told)

    # -- what the user has -----------------------------------------------------------------------------------

    def _without_letters(
        self, attachment: Attachment, entries: list[Entry], header: commands.Message, offsets: BitMap64
    ) -> tuple[commands.Message, BitMap64]:
        """Messages that were redelivered too often become dead letters."""
        letters, redelivered = self._dead_letters, header.redelivered
        assert letters is not None
        assert redelivered
        dead = (letters.select(redelivered) & offsets) - unreadable(entries)
        if not dead:
            return header, offsets
        offsets -= dead
        first, last = entries[0].first_offset, entries[-1].first_offset + entries[-1].count - 1
        self._put_aside(attachment, letters, entries, dead, redelivered)
        return replace(header, skip=runs(range_set(first, last) - offsets)), offsets

    def _put_aside(
        self, attachment: Attachment, letters: DeadLetters, entries: list[Entry], dead: BitMap64, redelivered: Any
    ) -> None:
        """They take no room in the queue, nor in the window."""
        self._credited_messages += len(dead)
        if letters.full:
            self._hand_back(attachment, dead, Backoff())
        else:
            letters.push(entries, dead, redelivered)

    def _let_go(self, segment_id: int) -> None:
        """Drop a segment's messages, received or not: the broker may deliver them to another consumer."""
        self._unacked.drop(segment_id)
        self._held_changed()
        self._lives[segment_id] = self._lives.get(segment_id, 0) + 1
        if self._dead_letters is not None:
            self._dead_letters.drop(segment_id)

    def acknowledged_again(self, attachment: Attachment, ranges: Any) -> None:
        """What was delivered before a loss, and acknowledged after it, is not delivered once more."""
        self._settle()
        self._unacked.forget(attachment.segment_id, offset_set(ranges, OFFSET_MAX))
        self._held_changed()
        super().acknowledged_again(attachment, ranges)

    def _watch(self) -> None:
        """Check for expired messages regularly, while there may be some."""
        if self._unacked.timeout is not None and self._timer is None and self._unacked.busy and not self._closed:
            self._timer = self._loop.call_later(self._unacked.tick, self.working._redeliver_expired)

    def _redeliver_expired(self) -> None:
        self._timer = None
        self._settle()
        for segment_id, offsets in self._unacked.expired():
            self._timed_out += len(offsets)
            self._hand_back(self.attachments.get(segment_id), offsets, None)
            self._held_changed(len(offsets))
        self._watch()

    def _hand_back(self, attachment: Attachment | None, offsets: BitMap64, backoff: Backoff | None) -> None:
        delays = None if backoff is None else [backoff.min, backoff.max, backoff.multiplier]
        found = runs(offsets)
        for start in range(0, len(found) if attachment is not None else 0, RANGES_MAX):
            assert attachment is not None
            attachment.redeliver(pack(found[start : start + RANGES_MAX]), delays)

    # -- bad entries -----------------------------------------------------------------------------------------

    def stop_at(self, entry: Entry, error: CorruptionError) -> None:
        """It counts as received and stays unacknowledged, so it is redelivered. Other entries follow."""
        self._queue.damaged(drop=True)
        if not entry.size:  # nothing follows in this segment
            self._damage.stopped[entry.segment_id] = error
        self._popped()

    def pass_by(self, attachment: Attachment | None, entry: Entry, first: int, last: int) -> None:
        """Skip a bad entry, and acknowledge it."""
        super().pass_by(attachment, entry, first, last)
        saving = self._save_skipped(entry.segment_id, range_set(first, last))
        self.pool.tasks.spawn(saving, name=f"skip a bad entry of {self._topic}")

    async def _save_skipped(self, segment_id: int, offsets: BitMap64) -> None:
        try:
            await self._acknowledge({segment_id: offsets})
        except EngineError as e:
            log.debug("%s: a bad entry of segment %d will be redelivered: %s", self._topic, segment_id, e)

    def _break_off(self, attachment: Attachment, end: Entry) -> None:
        self._settle()
        self._unacked.arrived(attachment.segment_id, range_set(end.first_offset, end.first_offset))
        self._held_changed()
        super()._break_off(attachment, end)

    # -- acknowledging ---------------------------------------------------------------------------------------

    def acknowledge(self, x: Acknowledgeable, *, transaction: InTransaction | None = None) -> Coroutine[Any, Any, None]:
        """Acknowledge a Message, an id, every message of a MessageBatch, or several messages or ids.

        Durable once this has been awaited. It is sent whether it is awaited or not.

        What was acknowledged before is no error, also in segments that are gone since. Raises AlreadyClosedError,
        TimeoutError, StorageError, InvalidArgumentError; NotFoundError for a segment the topic never had.

        `transaction`: it takes effect when that is committed; until then no consumer gets these
        messages, and when it is aborted they are due again. Raises TransactionConflictError when it has ended, and when
        one of them is acknowledged already, or by another open transaction.
        """
        return self._starting.call(self._begin_acknowledge, x, transaction)

    def _begin_acknowledge(self, x: Acknowledgeable, transaction: InTransaction | None) -> Begun:
        found = self.asked(x)
        scope = None if transaction is None else scope_of(transaction, self.pool)
        if scope is None:
            self._check_open()
            return self._begin_asked(found)
        scope.check_open()
        self._check_open_in(scope)
        if self._all_known(found):
            started = scope.run(self._acknowledge(self._attached(found), scope))
        else:
            started = scope.run(self._look_and_acknowledge_in(found, scope))
        return self._count_acknowledged(started, found)

    def acknowledge_nowait(self, x: Acknowledgeable) -> None:
        """acknowledge() that nothing waits for: it is sent at once. flush() and close() wait until it is durable, and
        raise what became of it. Raises InvalidArgumentError, AlreadyClosedError.
        """
        self.acknowledge_asked(self.asked(x))

    def asked(self, x: Acknowledgeable) -> dict[int, BitMap64]:
        """What acknowledging `x` asks for. From any thread. Raises InvalidArgumentError."""
        return offsets_of(x, self._topic)

    def acknowledge_asked(self, asked: dict[int, BitMap64]) -> None:
        """acknowledge_nowait() of what asked() has returned."""
        self._check_open()
        self._unconfirmed.add(asked)

    def flush(self) -> Coroutine[Any, Any, None]:
        """Awaited, it waits until every acknowledge_nowait() before this call is durable.

        Raises the first failure that was not raised yet.
        """
        return self._starting.call(lambda: self._unconfirmed.flushed() if self._unconfirmed else None)

    @property
    def unconfirmed(self) -> bool:
        """Whether flush() has something to wait for, or to raise."""
        return bool(self._unconfirmed)

    async def _confirmed(self) -> None:
        await self._unconfirmed.flushed()

    def _begin_asked(self, found: dict[int, BitMap64], lazy: bool = False) -> Begun:
        """Send it at once, unless the layout must be looked up first."""
        if not self._all_known(found):
            return self._look_and_acknowledge(found)
        at_once = self._send_one_ack(found, lazy=lazy)
        if at_once is not None:
            return at_once
        return self._count_acknowledged(self._send_acks(self._attached(found), None, lazy=lazy), found)

    def _send_one_ack(self, found: dict[int, BitMap64], *, lazy: bool) -> asyncio.Future[None] | None:
        """The usual case: one ACK says it all, and its answer ends it. None: it does not, or not now."""
        if len(found) != 1:
            return None
        ((segment_id, offsets),) = found.items()
        attachment, ranges = self.attachments.get(segment_id), runs(offsets)
        if attachment is None or not attachment.connected or len(ranges) > RANGES_MAX:
            return None
        self._settle()
        held = {segment_id: (self._lives.get(segment_id, 0), self._unacked.take(segment_id, offsets))}

        def finish(durable: bool, error: Exception | None) -> None:
            if error is not None:
                self._give_back(held)
                raise error
            if not durable:
                self._check_open()  # closed meanwhile, or the segment is done with
            self._acknowledged += len(offsets)

        try:
            ended = attachment.acknowledge(self._starting, finish, "individual", ranges=ranges, lazy=lazy)
            self._held_changed(len(held[segment_id][1]))
        except BaseException:
            self._give_back(held)
            raise
        return ended

    async def _count_acknowledged(self, acknowledging: Awaitable[None], found: dict[int, BitMap64]) -> None:
        await acknowledging
        self._acknowledged += sum(map(len, found.values()))

    async def _look_and_acknowledge(self, found: dict[int, BitMap64]) -> None:
        known = {i: offsets for i, offsets in found.items() if await self._is_known(i)}
        await self._count_acknowledged(self._send_acks(known, None), found)

    async def _look_and_acknowledge_in(self, found: dict[int, BitMap64], scope: Scope) -> None:
        await self._acknowledge({i: offsets for i, offsets in found.items() if await self._is_known(i)}, scope)

    def _all_known(self, segments: Iterable[int]) -> bool:
        newest = max(self.session.layout.segments)
        return all(segment_id <= newest for segment_id in segments)

    def _attached(self, found: dict[int, BitMap64]) -> dict[int, BitMap64]:
        """What may be unacknowledged."""
        return {i: offsets for i, offsets in found.items() if i in self.attachments}

    async def _acknowledge(self, found: dict[int, BitMap64], scope: Scope | None = None) -> None:
        await self._send_acks(found, scope)

    def _send_acks(
        self, found: dict[int, BitMap64], scope: Scope | None, *, lazy: bool = False
    ) -> Coroutine[Any, Any, None]:
        """Send the ACKs; what is left is to hear of them."""
        self._settle()
        held = {i: (self._lives.get(i, 0), self._unacked.take(i, offsets)) for i, offsets in found.items()}
        if scope is not None and any(life and len(held[i][1]) < len(found[i]) for i, (life, _) in held.items()):
            self._give_back(held)
            raise TransactionConflictError(
                "the connection was lost: some of these messages may have been delivered to another consumer, or twice"
            )
        try:
            waits = [wait for i, offsets in found.items() for wait in self._sent(i, offsets, scope, lazy)]
            self._held_changed(sum(len(taken) for _, taken in held.values()))
        except BaseException:
            self._give_back(held)
            raise
        return self._hear(held, waits)

    async def _hear(self, held: dict[int, tuple[int, BitMap64]], waits: list[Outcome]) -> None:
        try:
            saved = await all_acknowledged([wait() for wait in waits])
        except BaseException:
            self._give_back(held)
            raise
        if not all(saved):
            self._check_open()  # closed meanwhile: nothing was saved; else the segment is done with, all acknowledged

    def _give_back(self, held: dict[int, tuple[int, BitMap64]]) -> None:
        """Hold them again: they are not acknowledged."""
        for segment_id, (life, offsets) in held.items():
            if self._lives.get(segment_id, 0) == life:
                self._unacked.give_back(segment_id, offsets)
        self._held_changed()
        self._watch()

    def _sent(self, segment_id: int, offsets: BitMap64, scope: Scope | None, lazy: bool) -> list[Outcome]:
        """Send the acknowledgement; returns what to wait for. Nothing where the segment has no backlog."""
        attachment = self.attachments.get(segment_id)
        if attachment is None:
            return []
        found = runs(offsets)
        waits: list[Outcome] = []
        for start in range(0, len(found), RANGES_MAX):
            ranges = found[start : start + RANGES_MAX]
            sent = attachment.start_ack("individual", ranges=ranges, scope=scope, lazy=lazy)
            waits.append(partial(attachment.acknowledged, sent, "individual", ranges=ranges, scope=scope))
        return waits

    async def _acknowledge_letters(self, letters: dict[int, BitMap64], transaction: InTransaction) -> None:
        """Acknowledge dead letters, of which nothing is held here, in the transaction that publishes them."""
        scope = scope_of(transaction, self.pool)
        if any(segment_id not in self.attachments for segment_id in letters):
            raise TransactionConflictError(f"{self._topic}: a segment was given up, and its dead letters with it")
        waits = [wait for i, offsets in letters.items() for wait in self._sent(i, offsets, scope, False)]
        saved = await scope.run(all_acknowledged([wait() for wait in waits]))
        if not all(saved):
            raise TransactionConflictError(f"{self._topic}: dead letters are acknowledged already, or given up")

    def _hand_back_letters(self, letters: dict[int, BitMap64]) -> None:
        """Let the broker deliver those again that it believes to be here."""
        for segment_id, offsets in letters.items():
            self._hand_back(self.attachments.get(segment_id), offsets, Backoff())

    def negative_acknowledge(
        self, x: Acknowledgeable, *, delay: float | None = None, reason: str | BaseException | None = None
    ) -> Coroutine[Any, Any, None]:
        """Negatively acknowledge: `x` is delivered again after `delay` seconds (default: as `nack_backoff` says), or as
        soon as the subscription has lost all its consumers and gets one again.

        It applies to messages that this consumer has received and not acknowledged; others are ignored, since another
        consumer has them or they are acknowledged. Does not wait for the broker. Raises AlreadyClosedError,
        InvalidArgumentError.

        `reason`: a text, or the exception. A message (not an id) that may not be delivered again then becomes a dead
        letter at once, which carries the reason.
        """
        return self._starting.call(self._begin_negative_acknowledge, x, delay, reason)

    def _begin_negative_acknowledge(
        self, x: Acknowledgeable, delay: float | None, reason: str | BaseException | None
    ) -> Coroutine[Any, Any, None] | None:
        if delay is not None:
            check_seconds("delay", delay)
        if isinstance(x, Iterator):
            x = list(x)  # it is read twice
        failure = None if reason is None else Failure.of(reason)
        backoff = self._backoff if delay is None else Backoff.constant(float(delay))
        found = self.asked(x)
        self._check_open()
        last = {} if failure is None else self._last_deliveries(x)
        if not self._all_known(found):
            return self._look_and_hand_back(found, backoff, failure, last)
        for segment_id, offsets in found.items():
            self._hand_back_held(segment_id, offsets, backoff, failure, last)
        return None

    async def _look_and_hand_back(
        self, found: dict[int, BitMap64], backoff: Backoff, failure: Failure | None, last: LastDeliveries
    ) -> None:
        for segment_id, offsets in found.items():
            if await self._is_known(segment_id):
                self._hand_back_held(segment_id, offsets, backoff, failure, last)

    def _hand_back_held(
        self, segment_id: int, offsets: BitMap64, backoff: Backoff, failure: Failure | None, last: LastDeliveries
    ) -> None:
        if segment_id not in self.attachments:
            return
        self._settle()
        held = self._unacked.take(segment_id, offsets)
        self._nacked += (done := len(held))
        if failure is not None and (dead := held & BitMap64(last.get(segment_id, ()))):
            held -= self._give_up(last[segment_id], dead, failure)
        self._hand_back(self.attachments.get(segment_id), held, backoff)
        self._held_changed(done)

    def _last_deliveries(self, x: Acknowledgeable) -> LastDeliveries:
        """By segment and offset, the messages that may not be delivered again."""
        letters, last = self._dead_letters, dict[int, dict[int, Message]]()
        if letters is not None and not isinstance(x, MessageId):
            for one in (x,) if isinstance(x, Message) else x:
                if isinstance(one, Message) and letters.is_last(one):
                    last.setdefault(one.segment_id, {})[one.offset] = one
        return last

    def _give_up(self, messages: dict[int, Message], dead: BitMap64, failure: Failure) -> BitMap64:
        """Make dead letters of them; those that were taken on."""
        taken = BitMap64()
        for offset in dead:
            if self._dead_letters is not None and not self._dead_letters.full:
                self._dead_letters.push_failed(messages[offset], failure)
                taken.add(offset)
        return taken

    def unsee(self, x: Acknowledgeable) -> None:
        """The program has not seen these although they were received: closing does not count them as delivered."""
        self._settle()
        for segment_id, offsets in offsets_of(x, self._topic).items():
            self._unacked.take(segment_id, offsets)
        self._held_changed()

    async def _is_known(self, segment_id: int) -> bool:
        """Whether the segment may have something unacknowledged. Raises NotFoundError when there never was one."""
        if not await self.session.ever_had(segment_id):
            raise NotFoundError(f"{self._topic} has no segment {segment_id}")
        self._check_open()
        return segment_id in self.attachments

    # -- life ------------------------------------------------------------------------------------------------

    def statistics(self) -> QueueConsumerStatistics:
        """A frozen record of totals."""
        return QueueConsumerStatistics(
            **asdict(super().statistics()),
            acknowledged=self._acknowledged,
            negatively_acknowledged=self._nacked,
            timed_out=self._timed_out,
            dead_lettered=0 if self._dead_letters is None else self._dead_letters.moved,
            unacknowledged=self._unacked.count(self._queue.messages),
        )

    async def _end_work(self) -> None:
        """What was not received is not counted as delivered."""
        if self._timer is not None:
            self._timer.cancel()
        self._settle()
        for segment_id, attachment in self.attachments.items():
            seen = runs(self._unacked.held(segment_id))
            attachment.parting = {"seen": pack(seen)} if len(seen) <= RANGES_MAX else {}
            self._unacked.drop(segment_id)
        self._held_changed()
        self._leave_permits()
        self._restart_queue()
        if self._dead_letters is not None:
            await self._dead_letters.close()


def _merged(one: dict[int, BitMap64], other: dict[int, BitMap64]) -> dict[int, BitMap64]:
    merged = dict(one)
    for segment_id, offsets in other.items():
        merged[segment_id] = offsets | merged[segment_id] if segment_id in merged else offsets
    return merged
