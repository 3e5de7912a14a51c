"""`AsyncQueueConsumer`: single messages from every segment, acknowledged one by one, delivered again when they are
not.
"""

from __future__ import annotations

from engine._native.batch import MessageBatch
from engine._native.message import Message
from engine.client.acknowledging import all_acknowledged
from engine.client.attachment import QUEUE, Attachment
from engine.client.idents import check_topic, id_of
from engine.client.options import ConsumerOptions, check_seconds
from engine.client.pool import Pool
from engine.client.producer import refuse_transaction
from engine.client.receiver import Receiver
from engine.client.topic import TopicLayout
from engine.errors import NotFoundError
from engine.model.names import TopicName
from engine.model.positions import MessageId
from engine.wire.commands import Command

NACK_DELAY_S = 1.0

Ranges = dict[int, list[list[int]]]  # segment: inclusive [first, last]


class AsyncQueueConsumer(Receiver):
    """Receives messages that no other consumer of the subscription has.

    Made by `client.queue_consumer()`; usable with `async with`.

    A message comes back (to any consumer of the subscription) when it was negatively acknowledged, or when this
    consumer closes or is lost with it unacknowledged; its `redelivery_count` has then grown by one.
    """

    def __init__(self, pool: Pool, topic: TopicName, options: ConsumerOptions) -> None:
        super().__init__(pool, topic, options)
        self._finished: set[int] = set()  # sealed, and acknowledged to the end or deleted

    async def start(self) -> None:
        """Attach to every segment, active and sealed (SEMANTICS 10)."""
        try:
            self.layout_changed(await self.session.open(create=self.options.create_topic))
            self._follow()
            await self._tried_all()
        except BaseException:
            await self.close()
            raise

    def layout_changed(self, layout: TopicLayout) -> None:
        """Attach to what is new, forget what is gone."""
        for segment in layout.segments.values():
            if segment.segment_id not in self.attachments and segment.segment_id not in self._finished:
                attachment = Attachment(self, segment.segment_id, segment.name, QUEUE)
                self.attachments[segment.segment_id] = attachment
                attachment.begin()
        for segment_id in self.attachments.keys() - layout.segments.keys():
            self.attachments.pop(segment_id).give_up()
        self._finished &= layout.segments.keys()

    def detached(self, attachment: Attachment) -> None:
        """A seek ends the attachments to all segments that are active: what was finished may have a backlog again."""
        super().detached(attachment)
        self._finished.clear()
        self.layout_changed(self.session.layout)

    def segment_gone(self, attachment: Attachment) -> None:
        """Retention deletes what every subscription has acknowledged."""
        self._finished.add(attachment.segment_id)
        super().segment_gone(attachment)

    def end_reached(self, attachment: Attachment) -> None:
        """A sealed segment without backlog is let go."""
        self._finished.add(attachment.segment_id)
        self.attachments.pop(attachment.segment_id, None)
        attachment.give_up()
        self._forget_left()

    def _is_done(self, segment_id: int, place: int, position: int) -> bool:
        """Also what is acknowledged to its end."""
        return segment_id in self._finished or super()._is_done(segment_id, place, position)

    # -- acknowledging ---------------------------------------------------------------------------------------

    async def acknowledge(self, x: Message | MessageId | MessageBatch, *, transaction: None = None) -> None:
        """Acknowledge a Message, an id, or every message of a MessageBatch; durable when this returns.

        What was acknowledged before is no error, also in segments that are gone since. Raises AlreadyClosedError,
        TimeoutError, StorageError, InvalidArgumentError; NotFoundError for a segment the topic never had.
        """
        refuse_transaction(transaction)
        found = ranges_of(x, self._topic)
        self._check_open()
        under_way = []
        for segment_id, ranges in found.items():
            attachment = await self._attachment(segment_id)
            if attachment is None:
                continue
            under_way.append((attachment, ranges, attachment.start_ack("individual", ranges=ranges)))
        saved = await all_acknowledged(
            [a.acknowledged(sent, "individual", ranges=ranges) for a, ranges, sent in under_way]
        )
        if not all(saved):
            self._check_open()  # closed meanwhile: nothing was saved; else the segment is done with, all acknowledged

    async def negative_acknowledge(self, x: Message | MessageId | MessageBatch, *, delay: float = NACK_DELAY_S) -> None:
        """Hand back: it is delivered again `delay` seconds later (at the latest when this consumer closes).

        Does not wait.

        Raises AlreadyClosedError, InvalidArgumentError.
        """
        check_seconds("delay", delay)
        found = ranges_of(x, self._topic)
        self._check_open()
        for segment_id, ranges in found.items():
            attachment = await self._attachment(segment_id)
            if attachment is None:
                continue
            self._loop.call_later(delay, attachment.send, Command.REDELIVER, {"ranges": ranges})

    async def _attachment(self, segment_id: int) -> Attachment | None:
        """The segment's; None when all of it is acknowledged: retention takes nothing else."""
        if not await self.session.ever_had(segment_id):
            raise NotFoundError(f"{self._topic} has no segment {segment_id}")
        self._check_open()
        return self.attachments.get(segment_id)


def ranges_of(x: object, topic: str) -> Ranges:
    """The offsets that `x` names, by segment. Raises InvalidArgumentError."""
    if isinstance(x, MessageBatch):
        check_topic(x, x.topic, topic)
        return _ranges_of_batch(x)
    ident = id_of(x, topic)
    return {ident.segment_id: [[ident.offset, ident.offset]]}


def _ranges_of_batch(batch: MessageBatch) -> Ranges:
    found: Ranges = {}
    for part in batch.slices:
        first = part.entry.first_offset + part.start
        last = part.entry.first_offset + part.stop - 1
        ranges = found.setdefault(part.entry.segment_id, [])
        if ranges and ranges[-1][1] == first - 1:
            ranges[-1][1] = last
        else:
            ranges.append([first, last])
    return found
