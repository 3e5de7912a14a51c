"""`AsyncStreamConsumer`: ordered, with its share of the topic's segments and cumulative acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from engine._native.batch import MessageBatch
from engine._native.entry_queue import EntryQueue
from engine._native.message import Message
from engine.client.attachment import Attachment, all_acknowledged
from engine.client.idents import check_topic, id_of
from engine.client.options import ConsumerOptions
from engine.client.pool import Pool
from engine.client.producer import refuse_transaction
from engine.client.receiver import Receiver
from engine.client.registration import Assigned, Registration
from engine.client.topic import TopicLayout
from engine.errors import FencedError, NotFoundError
from engine.model.names import TopicName
from engine.model.positions import MessageId
from engine.wire.commands import Command


class AsyncStreamConsumer(Receiver):
    """Receives the messages of its segments, per segment in order.

    Made by `client.stream_consumer()`; usable with `async with`.

    The consumers of one subscription share the segments; who comes and goes makes them move. A segment that moves
    away is let go only when everything delivered from it is acknowledged, so that order holds across the move; when it
    comes back before that, delivery goes on where it was. When segments split or merge, the new ones come once
    everything in the old ones is acknowledged, by whoever had them.
    """

    def __init__(self, pool: Pool, topic: TopicName, options: ConsumerOptions) -> None:
        super().__init__(pool, topic, options)
        self._registration = Registration(self.session, options, "stream", self._assigned, self.fail)
        self._wanted: dict[int, Assigned] = {}
        self._wanted_epoch = -1  # of the layout that the share follows from
        self._confirmed_there: dict[int, int] = {}  # in segments this consumer does not hold: durable, as far as known

    async def start(self) -> None:
        """Register with the topic's controller and attach to the segments it assigns."""
        try:
            await self.session.open()
            await self._registration.start()
            self._follow()
            await self._tried_all()
        except BaseException:
            await self.close()
            raise

    def layout_changed(self, layout: TopicLayout) -> None:
        """The controller says what it means for this consumer."""

    def readdressed(self, layout: TopicLayout) -> None:
        """The controller may have moved as well."""
        super().readdressed(layout)
        self._registration.look()

    # -- assignment ------------------------------------------------------------------------------------------

    def _assigned(self, epoch: int, segments: list[Assigned]) -> None:
        """The whole share: begin what is new, let go of what is no longer in it. Never back to an older layout's."""
        if epoch < self._wanted_epoch:
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
                attachment = Attachment(self, wanted.segment_id, wanted.name, wanted.mode)
                self.attachments[wanted.segment_id] = attachment
                attachment.begin()

    def _let_go(self, attachment: Attachment) -> None:
        """Deliver no more of it; end it when all that was delivered is acknowledged (SEMANTICS 18)."""
        if attachment.parked is None:
            self._return_credit()
            attachment.parked = parked = EntryQueue(self._topic, self._make_id)
            attachment.pushed -= self._queue.move(attachment.segment_id, parked)
            self._credited_messages += parked.messages  # as if: it is not consumed, and not waiting either
            self._credited_bytes += parked.bytes
        self._end_drained(attachment)

    def _take_back(self, attachment: Attachment, parked: EntryQueue) -> None:
        """It has come back before it was let go: go on where delivery stands."""
        due = parked.take_credit()
        self._credited_messages -= parked.messages + sum(messages for messages, _ in due.values())
        self._credited_bytes -= parked.bytes + sum(size for _, size in due.values())
        attachment.parked = None
        attachment.pushed += parked.move(attachment.segment_id, self._queue)
        self._grant(due)
        self._wake()

    def _end_drained(self, attachment: Attachment) -> None:
        delivered = self._queue.positions.get(attachment.segment_id, 0) if attachment.pushed > 0 else 0
        if attachment.connected and attachment.confirmed < delivered:
            return
        if self.attachments.get(attachment.segment_id) is not attachment:
            return
        del self.attachments[attachment.segment_id]
        attachment.closed = True  # from now on it says nothing: there may soon be another one
        self._confirmed_there[attachment.segment_id] = attachment.confirmed
        self._forget_left()
        self.pool.tasks.spawn(self._ended(attachment), name=f"release {attachment.name}")

    async def _ended(self, attachment: Attachment) -> None:
        await attachment.close()
        self._begin_wanted()  # it may have come back, or changed its mode

    def attached(self, attachment: Attachment) -> None:
        """Where a cursor was moved back, what comes again was not delivered yet: no position vector covers it."""
        before = self._confirmed_there.pop(attachment.segment_id, 0)
        if attachment.rewound or attachment.position < before:
            self._queue.rewind(attachment.segment_id, attachment.position)
        super().attached(attachment)

    def detached(self, attachment: Attachment) -> None:
        """A segment on its way out is not attached again."""
        super().detached(attachment)
        if attachment.draining:
            self._end_drained(attachment)

    def acknowledged_again(self, attachment: Attachment, ranges: Any) -> None:
        """Nor when it comes back after all."""
        if attachment.parked is not None:
            attachment.parked.forget(attachment.segment_id, ranges)
        super().acknowledged_again(attachment, ranges)

    def _is_done(self, segment_id: int, place: int, position: int) -> bool:
        """Also where all that was delivered here is acknowledged: what comes again after a seek is delivered anew."""
        return position <= self._confirmed_there.get(segment_id, 0) or super()._is_done(segment_id, place, position)

    def _forget_left(self) -> None:
        super()._forget_left()
        layout = self.session.layout
        self._confirmed_there = {i: n for i, n in self._confirmed_there.items() if not layout.has_lost(i)}

    # -- acknowledging ---------------------------------------------------------------------------------------

    async def acknowledge_cumulative(self, x: Message | MessageId | MessageBatch, *, transaction: None = None) -> None:
        """Acknowledge `x` and everything delivered before it, in every segment (SEMANTICS 11); durable when this
        returns.

        `x`: a Message, its id (also one kept from before a reconnect, a change of the topic's shape, or by an earlier
        consumer of this subscription) or a MessageBatch (its last message). What was acknowledged before is no error,
        whoever did it, and in whatever segment, also one that is gone since. Raises FencedError when a segment went to
        another consumer before this could be saved, which happens only after a lost connection or a close: its
        messages are delivered again there; the other segments are saved. NotFoundError for a segment the topic never
        had. AlreadyClosedError, TimeoutError, StorageError, InvalidArgumentError.
        """
        refuse_transaction(transaction)
        vector = position_vector(x, self._topic)
        self._check_open()
        elsewhere: dict[int, int] = {}
        under_way: list[tuple[Attachment, int, asyncio.Future[object] | None]] = []
        for segment_id, position in vector.items():
            attachment = self.attachments.get(segment_id)
            if attachment is None:
                elsewhere[segment_id] = position
            elif position > attachment.confirmed:
                sent = attachment.start_ack("cumulative", position=position)
                under_way.append((attachment, position, sent))
        saved = await all_acknowledged([self._acknowledged(*ack) for ack in under_way])
        elsewhere |= {ack[0].segment_id: ack[1] for ack, durable in zip(under_way, saved, strict=True) if not durable}
        # Kept ids name segments that were left long ago: those cost nothing.
        elsewhere = {i: position for i, position in elsewhere.items() if position > self._confirmed_there.get(i, 0)}
        there = await asyncio.gather(*(self._saved_there(*item) for item in elsewhere.items()))
        lost = [segment_id for segment_id, durable in zip(elsewhere, there, strict=True) if not durable]
        if elsewhere:
            self._forget_left()
            self._check_open()
        if lost:
            raise FencedError(
                f"not acknowledged in the segments {sorted(lost)} of {self._topic}: they went to another consumer, "
                "and what was not acknowledged before is delivered again there"
            )

    async def _saved_there(self, segment_id: int, position: int) -> bool:
        """Whether it is acknowledged in a segment that this consumer does not hold: its cursor is asked, once.

        A segment that is gone was acknowledged by everybody before. Raises NotFoundError when the topic or the
        subscription is what is gone.
        """
        self._check_open()
        if not await self.session.ever_had(segment_id):
            raise NotFoundError(f"{self._topic} has no segment {segment_id}")
        if self.session.layout.has_lost(segment_id):
            return True
        fields = {"at": "latest", "subscription": self.options.subscription}
        try:
            answer = await self.session.ask(segment_id, Command.SEGMENT_OFFSET, fields)
        except NotFoundError:
            await self.session.look()  # raises when the topic is gone
            view = self.session.layout.segments.get(segment_id)
            if view is not None and view.active:
                raise
            return True
        confirmed = int(answer["result"].get("acknowledged", 0))
        self._confirmed_there[segment_id] = max(self._confirmed_there.get(segment_id, 0), confirmed)
        return position <= confirmed

    async def _acknowledged(self, attachment: Attachment, position: int, sent: asyncio.Future[object] | None) -> bool:
        durable = await attachment.acknowledged(sent, "cumulative", position=position)
        if attachment.draining and self.attachments.get(attachment.segment_id) is attachment:
            self._end_drained(attachment)
        return durable

    async def _leave(self) -> None:
        await self._registration.close()


def position_vector(x: object, topic: str) -> Mapping[int, int]:
    """{segment: first offset not acknowledged} that acknowledging `x` cumulatively means.

    Raises InvalidArgumentError.
    """
    if isinstance(x, MessageBatch):
        check_topic(x, x.topic, topic)
        return x.positions if len(x) else {}
    ident = id_of(x, topic)
    return ident.positions or {ident.segment_id: ident.offset + 1}
