"""`AsyncStreamConsumer`: ordered, with its share of the topic's segments and cumulative acknowledgements."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from msgspec import UNSET

from engine._native.consume.asked import by_segment, merged
from engine._native.consume.batch import MessageBatch
from engine._native.consume.entry_queue import EntryQueue
from engine._native.consume.message import Message
from engine._native.format.entry import Entry
from engine.client.base.options import ConsumerOptions
from engine.client.base.positions import Ack, Asked, place_of, position_vector, without
from engine.client.consume.attachment import Attachment, AttachmentState, all_acknowledged
from engine.client.consume.letter import LetterWriter
from engine.client.consume.receiving import V
from engine.client.consume.registration import Assigned, Registration
from engine.client.consume.runs import StreamRuns
from engine.client.consume.subscribed import SubscriptionConsumer
from engine.client.consume.unconfirmed import Begun, Unconfirmed
from engine.client.net.pool import Pool
from engine.client.topic.layout import TopicLayout
from engine.client.transact.scope import InTransaction, Scope, scope_of
from engine.errors import EngineError, FencedError, InvalidArgumentError, NotFoundError, TransactionConflictError
from engine.model.names import TopicName
from engine.model.positions import MessageId, split_position
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands

log = logging.getLogger(__name__)


class AsyncStreamConsumer(StreamRuns[V], SubscriptionConsumer[V]):
    """Receives the messages of its segments, per segment in order.

    Made by `client.stream_consumer()`; usable with `async with`.

    The consumers of one subscription share the segments; they are reassigned when consumers join or leave. A segment
    that moves away is released only when everything delivered from it is acknowledged, so that order is kept across the
    move; when it comes back before that, delivery continues. When segments split or merge, the new ones are assigned
    once everything in the old ones is acknowledged.
    """

    def __init__(self, pool: Pool, topic: TopicName, options: ConsumerOptions) -> None:
        super().__init__(pool, topic, options)
        self._registration = Registration(self.session, options, "stream", self._assigned, self.fail)
        self._wanted: dict[int, Assigned] = {}
        self._wanted_epoch = -1  # of the layout that the share is computed from
        # In segments that are not assigned to this consumer, by place: what is acknowledged durably, as far as known.
        self._confirmed_there: dict[int, int] = {}
        # Acknowledged in transactions that have not ended, as far as known.
        self._unsettled: dict[Scope, list[tuple[Attachment, Ack]]] = {}
        # The same, failed ones included, with the reading (see progress.py) in which it was tried.
        self._concerned: dict[Scope, dict[Attachment, int]] = {}
        # Segments that were not assigned to this consumer when an acknowledgement of theirs was tried in a transaction.
        self._concerned_there: dict[Scope, set[int]] = {}
        self._due_again: set[int] = set()  # of those, and of ones that were let go meanwhile: it was aborted
        self._unconfirmed = Unconfirmed[Mapping[int, Asked]](self._starting, self._begin_asked, merged, self._hurry)

    async def start(self) -> None:
        """Register with the topic's controller and attach to the segments it assigns."""
        try:
            await self._open()
            await self._registration.start()
            self._follow()
            await self._tried_all()
        except BaseException:
            await self.close()
            raise

    def layout_changed(self, layout: TopicLayout) -> None:
        """Nothing: the controller sends an assignment."""

    def readdressed(self, layout: TopicLayout) -> None:
        """The layout may name another controller as well."""
        super().readdressed(layout)
        self._registration.check_controller()

    # -- assignment ------------------------------------------------------------------------------------------

    def _assigned(self, epoch: int, segments: list[Assigned]) -> None:
        """The whole share: attach to new segments, release those that left it. An older layout's share is ignored."""
        self.subscription_ms = self._registration.created_ms
        if epoch < self._wanted_epoch or self._failure is not None:
            return
        self._wanted_epoch = epoch
        self._wanted = {s.segment_id: s for s in segments}
        for attachment in list(self.attachments.values()):
            wanted = self._wanted.get(attachment.segment_id)
            if wanted is None or wanted.mode != attachment.mode:
                self._let_go(attachment)
            elif attachment.parked is not None:
                self._take_back(attachment, attachment.parked)
        self._begin_wanted()

    def _begin_wanted(self) -> None:
        for wanted in self._wanted.values():
            if wanted.segment_id not in self.attachments and not self._closed:
                attachment = Attachment(
                    self.working, wanted.segment_id, wanted.name, wanted.mode, bucket_ends=wanted.bucket_ends
                )
                if wanted.segment_id in self._due_again:
                    self._due_again.discard(wanted.segment_id)
                    attachment.progress.moved_back()
                self.attachments[wanted.segment_id] = attachment
                attachment.begin()

    def _let_go(self, attachment: Attachment) -> None:
        """Deliver no more of it; detach when everything delivered is acknowledged (semantics 18)."""
        if attachment.state is AttachmentState.DELIVERING:
            self._return_credit()
            parked = self._new_queue()
            attachment.drain(parked)
            attachment.pushed -= self._queue.move(attachment.segment_id, parked)
            self._credited_messages += parked.messages  # counted as credited, without a FLOW
            self._credited_bytes += parked.bytes
        self._end_drained(attachment)

    def _take_back(self, attachment: Attachment, parked: EntryQueue) -> None:
        """It was assigned again before it was released: continue delivery."""
        due = parked.take_credit()
        self._credited_messages -= parked.messages + sum(messages for messages, _ in due.values())
        self._credited_bytes -= parked.bytes + sum(size for _, size in due.values())
        attachment.deliver_again()
        attachment.pushed += parked.move(attachment.segment_id, self._queue)
        self._grant(due)
        self._wake()

    def _end_drained(self, attachment: Attachment) -> None:
        if attachment.connected and attachment.pushed > 0 and self._has_delivered_more(attachment):
            return
        if self.attachments.get(attachment.segment_id) is not attachment:
            return
        del self.attachments[attachment.segment_id]
        attachment.move_to(AttachmentState.CLOSED)  # its frames are ignored: another attachment may follow soon
        self._confirmed_there |= attachment.progress.confirmed_places()
        self._forget_left()
        if attachment.connected:
            self._begin_wanted()
        successor = self.attachments.get(attachment.segment_id)
        self.pool.tasks.spawn(self.working._ended(attachment, successor), name=f"release {attachment.name}")

    def _has_delivered_more(self, attachment: Attachment) -> bool:
        """Whether it delivered something that is not acknowledged."""
        for place, position in self._queue.positions.items():
            segment_id, bucket = split_position(place)
            if segment_id == attachment.segment_id and attachment.progress.awaits(bucket, position):
                return True
        return False

    async def _ended(self, attachment: Attachment, successor: Attachment | None) -> None:
        """Release the segment. A `successor` in another mode attaches first: the broker then replaces the one by the
        other in one step. In a gap between them, another consumer would get all buckets of a segment that comes to be
        shared, and return half of them.
        """
        if successor is not None:
            await successor.tried.wait()
        await attachment.close()
        self._begin_wanted()  # it may be assigned again, or in another mode

    def attached(self, attachment: Attachment) -> None:
        """Where the cursor was moved back, position vectors do not cover what follows it any more."""
        before = self._confirmed_there.get(attachment.segment_id, 0)
        self._confirmed_there = without(attachment.segment_id, self._confirmed_there)
        if attachment.rewound or attachment.progress.position < before:
            self._forget_delivered(attachment.segment_id)
        super().attached(attachment)

    def _forget_delivered(self, segment_id: int) -> None:
        positions = self._queue.positions
        kept = without(segment_id, positions)
        self._queue.forget_positions({place: n for place, n in positions.items() if place not in kept})

    def detached(self, attachment: Attachment) -> None:
        """A segment that is being released is not attached again."""
        super().detached(attachment)
        if attachment.draining:
            self._end_drained(attachment)

    def acknowledged_again(self, attachment: Attachment, ranges: Any) -> None:
        """Also in the parked queue of a segment that is being released."""
        if attachment.parked is not None:
            attachment.parked.forget(attachment.segment_id, ranges, attachment.progress.marks)
        super().acknowledged_again(attachment, ranges)

    def _is_done(self, segment_id: int, place: int, position: int) -> bool:
        """Also where everything delivered is acknowledged; after a seek it is delivered again."""
        known = max(self._confirmed_there.get(segment_id, 0), self._confirmed_there.get(place, 0))
        return position <= known or super()._is_done(segment_id, place, position)

    def _forget_left(self) -> None:
        super()._forget_left()
        lost, known = self.session.layout.has_lost, self._confirmed_there
        self._confirmed_there = {place: n for place, n in known.items() if not lost(split_position(place)[0])}
        self._due_again = {segment_id for segment_id in self._due_again if not lost(segment_id)}

    # -- acknowledging ---------------------------------------------------------------------------------------

    def acknowledge_cumulative(
        self, x: Message[Any] | MessageId | MessageBatch[Any], *, transaction: InTransaction | None = None
    ) -> Coroutine[Any, Any, None]:
        """Acknowledge `x` and everything delivered before it, in every segment (semantics 11); durable once this has
        been awaited. It is sent whether it is awaited or not.

        `x`: a Message, its id (also one kept from before a reconnect, a change of the topic's shape, or by an earlier
        consumer of this subscription) or a MessageBatch (its last message). What is acknowledged already, by any
        consumer, in any segment, deleted ones included, is no error. Raises FencedError when a segment was assigned to
        another consumer before this could be saved, which happens only after a lost connection or a close: its
        messages are delivered again there; the other segments are saved. NotFoundError for a segment the topic never
        had. AlreadyClosedError, TimeoutError, StorageError, InvalidArgumentError.

        `transaction`: it takes effect when that is committed. When it is aborted, this consumer goes back to what is
        acknowledged, and delivers from there again. Raises TransactionConflictError when the transaction has ended,
        when another open one has acknowledged some of it, and when all of it is acknowledged already.
        """
        return self._starting.call(self._begin_acknowledge, x, transaction)

    def _begin_acknowledge(
        self, x: Message[Any] | MessageId | MessageBatch[Any], transaction: InTransaction | None
    ) -> Begun:
        vector = self.asked(x)
        if transaction is None:
            self._check_open()
            return self._begin_asked(vector)
        scope = scope_of(transaction, self.pool)
        scope.check_open()
        self._check_open_in(scope)
        return _ended(scope.run(self._acknowledge(vector, scope)))

    def acknowledge_cumulative_nowait(self, x: Message[Any] | MessageId | MessageBatch[Any]) -> None:
        """acknowledge_cumulative() that nothing waits for: it is sent at once. flush() and close() wait until it is
        durable, and raise what became of it. Raises InvalidArgumentError, AlreadyClosedError.
        """
        self.acknowledge_asked(self.asked(x))

    def asked(self, x: Message[Any] | MessageId | MessageBatch[Any]) -> Mapping[int, Asked]:
        """What acknowledging `x` asks for. From any thread. Raises InvalidArgumentError."""
        return by_segment(position_vector(x, self._topic))

    def acknowledge_asked(self, asked: Mapping[int, Asked]) -> None:
        """acknowledge_cumulative_nowait() of what asked() has returned."""
        self._check_open()
        self._unconfirmed.add(asked)

    def flush(self) -> Coroutine[Any, Any, None]:
        """Awaited, it waits until every acknowledge_cumulative_nowait() before this call is durable.

        Raises the first failure that was not raised yet.
        """
        return self._starting.call(lambda: self._unconfirmed.flushed() if self._unconfirmed else None)

    @property
    def unconfirmed(self) -> bool:
        """Whether flush() has something to wait for, or to raise."""
        return bool(self._unconfirmed)

    async def _acknowledge(self, vector: Mapping[int, Asked], scope: Scope | None) -> None:
        await self._send_acks(vector, scope)

    def _begin_asked(self, vector: Mapping[int, Asked], lazy: bool = False) -> Begun:
        """Send it at once."""
        at_once = self._send_one_ack(vector, lazy=lazy)
        return self._send_acks(vector, None, lazy=lazy) if at_once is None else at_once

    def _send_one_ack(self, vector: Mapping[int, Asked], *, lazy: bool) -> asyncio.Future[None] | None:
        """The usual case: one ACK says it all, and its answer ends it. None: it does not, or not now."""
        if len(vector) != 1:
            return None
        ((segment_id, asked),) = vector.items()
        attachment = self.attachments.get(segment_id)
        if attachment is None or len(due := self._due(attachment, asked)) != 1:
            return None
        ack = due[0]

        def finish(durable: bool, error: Exception | None) -> Coroutine[Any, Any, None] | None:
            fenced = isinstance(error, FencedError)
            if error is not None and not fenced:
                raise error
            if not durable and not fenced:
                return self._hear_there({segment_id: ack.asked}, set())
            self._is_acknowledged(attachment, ack)
            if fenced:  # raised once: ids of later messages include it
                raise self._fenced({segment_id})
            return None

        return attachment.acknowledge(
            self._starting, finish, "cumulative", position=ack.position, buckets=ack.buckets, lazy=lazy
        )

    def _send_acks(
        self, vector: Mapping[int, Asked], scope: Scope | None, *, lazy: bool = False
    ) -> Coroutine[Any, Any, None]:
        """Send the ACKs; what is left is to hear of them."""
        due = [(a, ack) for i, asked in vector.items() if (a := self.attachments.get(i)) for ack in self._due(a, asked)]
        elsewhere = {i: asked for i, asked in vector.items() if i not in self.attachments}
        if scope is not None:
            self._note_there(scope, elsewhere)
            self._begin_inside(scope, due, bool(vector) and not elsewhere)
        under_way = [
            (a, ack, a.start_ack("cumulative", position=ack.position, buckets=ack.buckets, scope=scope, lazy=lazy))
            for a, ack in due
        ]
        return self._hear(due, under_way, elsewhere, scope)

    async def _hear(
        self,
        due: list[tuple[Attachment, Ack]],
        under_way: list[tuple[Attachment, Ack, asyncio.Future[Any] | None]],
        elsewhere: dict[int, Asked],
        scope: Scope | None,
    ) -> None:
        lost: set[int] = set()
        settled = await all_acknowledged([self._acknowledged(*sent, lost, scope) for sent in under_way])
        for (attachment, ack), done in zip(due, settled, strict=True):
            if not done:
                elsewhere.setdefault(attachment.segment_id, {}).update(ack.asked)
        await self._hear_there(elsewhere, lost)

    async def _hear_there(self, elsewhere: dict[int, Asked], lost: set[int]) -> None:
        lost |= await self._lost_there(elsewhere)
        if lost:
            raise self._fenced(lost)

    def _fenced(self, lost: set[int]) -> FencedError:
        return FencedError(
            f"not acknowledged in the segments {sorted(lost)} of {self._topic}: they, or buckets of them, went to "
            "another consumer, and what was not acknowledged before is delivered again there"
        )

    def owes(self, positions: Mapping[int, int]) -> bool:
        """Whether acknowledging this vector needs a broker."""
        for segment_id, asked in by_segment(positions).items():
            attachment = self.attachments.get(segment_id)
            if self._unknown_there(segment_id, asked) if attachment is None else self._due(attachment, asked):
                return True
        return False

    def _due(self, attachment: Attachment, asked: Asked) -> list[Ack]:
        """The ACKs for the segment's owner: one for the segment, one for its buckets."""
        there = self._confirmed_there.get(attachment.segment_id, 0)  # until it is attached
        asked = {b: attachment.progress.past_skipped(b, n) for b, n in asked.items()}
        due = {b: n for b, n in asked.items() if n > max(there, attachment.progress.confirmed_upto(b))}
        whole = due.pop(None, None)
        buckets = [(b, n) for b, n in due.items() if b is not None and (whole is None or n > whole)]
        acks = [] if whole is None else [Ack(whole, None)]
        return [*acks, Ack(None, buckets)] if buckets else acks

    async def _acknowledged(
        self,
        attachment: Attachment,
        ack: Ack,
        sent: asyncio.Future[object] | None,
        lost: set[int],
        scope: Scope | None,
    ) -> bool:
        """False when the attachment was given up first. Where it is fenced, `lost` gets its segment."""
        try:
            done = await attachment.acknowledged(
                sent, "cumulative", position=ack.position, buckets=ack.buckets, scope=scope
            )
        except FencedError:
            lost.add(attachment.segment_id)
            done = True  # raised once: ids of later messages include it
        if done and scope is not None and attachment.segment_id not in lost:
            self._unsettled.setdefault(scope, []).append((attachment, ack))
        elif done and scope is None:
            self._is_acknowledged(attachment, ack)
        return done

    def _begin_inside(self, scope: Scope, due: Sequence[tuple[Attachment, Ack]], is_all: bool) -> None:
        """Note what is delivered again when the transaction is aborted, whether the acknowledgement succeeds or not."""
        if is_all and not due:
            raise TransactionConflictError(f"all of it is acknowledged already, outside of the transaction {scope.id}")
        self._concerned.setdefault(scope, {}).update(
            {attachment: attachment.progress.readings for attachment, _ in due}
        )
        scope.acknowledged_by(self.working)
        for attachment, ack in due:
            attachment.transactions.add(scope.id)
            attachment.progress.check_once(ack.buckets or ())
            self._check_came(attachment, ack)

    def _note_there(self, scope: Scope, elsewhere: Mapping[int, Asked]) -> None:
        """Likewise, of segments that are not assigned to this consumer: they may be again by then."""
        lost = self.session.layout.has_lost
        there = {i for i, asked in elsewhere.items() if not lost(i) and self._unknown_there(i, asked)}
        if there:
            self._concerned_there.setdefault(scope, set()).update(there)
            scope.acknowledged_by(self.working)

    def _check_came(self, attachment: Attachment, ack: Ack) -> None:
        """Raise TransactionConflictError where it covers messages not delivered since the cursor was moved back."""
        delivered = self._queue.positions
        for bucket, position in ack.asked.items():
            attachment.progress.check_came(position, delivered.get(place_of(attachment.segment_id, bucket), 0))

    def pass_by(self, attachment: Attachment | None, entry: Entry, first: int, last: int) -> None:
        """Skip a bad entry; it is acknowledged once everything before it is."""
        super().pass_by(attachment, entry, first, last)
        if attachment is not None:
            shared = attachment.mode is DeliveryMode.SHARED
            bucket = bisect_left(attachment.bucket_ends, entry.bucket_min) if shared else None
            attachment.progress.skipped.setdefault(bucket, {})[first] = last + 1
            self._acknowledge_skipped(attachment)

    def _acknowledge_skipped(self, attachment: Attachment) -> None:
        if attachment.progress.skipped and (due := attachment.progress.skipped_next()):
            saving = self._save_skipped(attachment.segment_id, due)
            self.pool.tasks.spawn(saving, name=f"skip bad entries of {attachment.name}")

    async def _save_skipped(self, segment_id: int, due: Asked) -> None:
        try:
            await self._acknowledge({segment_id: due}, None)
        except EngineError as e:
            log.debug("%s: a bad entry of segment %d will be delivered again: %s", self._topic, segment_id, e)

    def _is_acknowledged(self, attachment: Attachment, ack: Ack) -> None:
        self._acknowledge_skipped(attachment)
        if attachment.mode is DeliveryMode.SHARED:
            self._forget_asked(attachment.segment_id, ack.asked)
        elif ack.buckets:
            self._forget_asked(attachment.segment_id, dict(ack.buckets))
        if attachment.draining and self.attachments.get(attachment.segment_id) is attachment:
            self._end_drained(attachment)

    def transaction_ended(self, scope: Scope, counted: bool) -> None:
        """What it acknowledged is acknowledged now, or is delivered again with everything behind it."""
        acks, concerned = self._unsettled.pop(scope, []), self._concerned.pop(scope, {})
        there = self._concerned_there.pop(scope, set())
        for attachment in concerned:
            attachment.transactions.discard(scope.id)
        if self._closed:
            return
        if counted:
            for attachment, ack in acks:
                attachment.note(ack.position, (), ack.buckets or ())
                self._is_acknowledged(attachment, ack)
            return
        for attachment, reading in concerned.items():
            if attachment.closed:
                there.add(attachment.segment_id)
            elif attachment.progress.readings == reading:  # else the broker has sent it back before this
                self._rewind(attachment)
        for segment_id in there:
            self._rewind_there(segment_id)

    def _rewind(self, attachment: Attachment) -> None:
        """Deliver from the cursor again; position vectors do not cover that any more."""
        attachment.rewind()
        self._forget_delivered(attachment.segment_id)
        if attachment.draining:
            self._end_drained(attachment)

    def _rewind_there(self, segment_id: int) -> None:
        """The same of a segment that was let go since, or before. What was delivered of it counts no more, also when it
        is assigned to this consumer again.
        """
        successor = self.attachments.get(segment_id)
        if successor is not None:
            self._rewind(successor)
            return
        self._forget_delivered(segment_id)
        self._due_again.add(segment_id)

    def _forget_asked(self, segment_id: int, asked: Mapping[int | None, int] | Mapping[int, int]) -> None:
        """Drop buckets in which nothing is to be acknowledged from position vectors, which would only grow."""
        self._queue.forget_positions({place_of(segment_id, bucket): n for bucket, n in asked.items()})

    # -- acknowledging in segments that went elsewhere ---------------------------------------------------------

    async def _lost_there(self, elsewhere: Mapping[int, Asked]) -> set[int]:
        """Of segments that are not assigned to this consumer: those in which this is not acknowledged."""
        asked = {i: self._unknown_there(i, places) for i, places in elsewhere.items()}
        asked = {i: places for i, places in asked.items() if places}
        saved = await asyncio.gather(*(self._saved_there(*item) for item in asked.items()))
        if asked:
            self._forget_left()
            self._check_open()
        return {segment_id for segment_id, durable in zip(asked, saved, strict=True) if not durable}

    def _unknown_there(self, segment_id: int, asked: Asked) -> Asked:
        """The positions beyond what is known to be acknowledged. None for segments that were left long ago."""
        known = self._confirmed_there
        whole = known.get(segment_id, 0)
        return {b: n for b, n in asked.items() if n > max(whole, known.get(place_of(segment_id, b), 0))}

    async def _saved_there(self, segment_id: int, asked: Asked) -> bool:
        """Whether it is acknowledged in a segment that is not assigned to this consumer, as its cursor says.

        A deleted segment was acknowledged in every subscription. Raises NotFoundError when the topic or the
        subscription was deleted.
        """
        self._check_open()
        if not await self.session.ever_had(segment_id):
            raise NotFoundError(f"{self._topic} has no segment {segment_id}")
        if self.session.layout.has_lost(segment_id):
            return True
        buckets = [[bucket, position] for bucket, position in asked.items() if bucket is not None]
        try:
            place = await self.session.place(segment_id, "latest", self.options.subscription, buckets or None)
        except NotFoundError:
            await self.session.refresh()  # raises when the topic is gone
            if segment_id in self.session.layout.segments:  # a segment leaves the layout before its store goes
                raise
            return True
        return self._learn(segment_id, asked, place)

    def _learn(self, segment_id: int, asked: Asked, found: commands.Place) -> bool:
        """Note the cursor's position; whether it covers everything that was asked."""
        known, confirmed = self._confirmed_there, found.acknowledged or 0
        known[segment_id] = max(known.get(segment_id, 0), confirmed)
        open_buckets = frozenset(asked if found.open_buckets is UNSET else found.open_buckets)
        durable = True
        for bucket, position in asked.items():
            if bucket is not None and bucket not in open_buckets:
                known[place_of(segment_id, bucket)] = position
            elif position > confirmed:
                durable = False
        if not durable:  # raised once
            self._forget_asked(segment_id, {b: n for b, n in asked.items() if b is not None})
        return durable

    async def _confirmed(self) -> None:
        await self._unconfirmed.flushed()

    # -- running ---------------------------------------------------------------------------------------------

    def letter_writer(self, topic: str, target: TopicName) -> LetterWriter:
        """Publishes dead letters of this topic."""
        layout, subscription = self.session.layout, str(self.options.subscription)
        keys = self.options.decryption_keys
        return LetterWriter(self.pool, TopicName.parse(topic), subscription, target, lambda: layout.created_ms, keys)

    def _check_dead_letter(self, target: TopicName) -> None:
        if str(target) == self._topic:
            raise InvalidArgumentError(f"dead_letter must be another topic, got the consumer's own, {target}")

    async def _leave(self) -> None:
        await self._registration.close()


async def _ended(started: asyncio.Future[None]) -> None:
    await started
