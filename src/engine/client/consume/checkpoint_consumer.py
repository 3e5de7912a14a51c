"""`AsyncCheckpointConsumer`: a reader that keeps its own position; the broker stores none.

It reads a segment from its own position, and a child segment only after its parents: the messages of a key arrive in
order across layout changes, because no message of a child is requested before the last message of every parent was
delivered (semantics 10). A member of a group does the same with its share of the segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from engine._native.format.entry import Entry
from engine.client.base.options import ConsumerOptions
from engine.client.consume.attachment import Attachment
from engine.client.consume.file_attachment import FileAttachment
from engine.client.consume.receiver import Receiver
from engine.client.consume.receiving import V
from engine.client.consume.registration import Assigned, Registration
from engine.client.net.pool import Pool
from engine.client.topic.layout import SegmentView, TopicLayout
from engine.errors import InvalidArgumentError, NotFoundError
from engine.model.names import TopicName
from engine.model.positions import Checkpoint
from engine.wire import commands


class AsyncCheckpointConsumer(Receiver[V]):
    """Reads every segment of a topic from a Checkpoint on; as a member of a group, those it is assigned.

    Made by `client.checkpoint_consumer()`; usable with `async with`.

    The members of a group divide the segments among them, and each member alone knows its positions. A segment that is
    assigned to a member is read from this member's position in it, else from the position in the checkpoint that it
    started from, else (a newer segment) from its start: after a move, messages that another member has delivered are
    delivered again. Within a share parents are read before children; across members a layout change keeps no order.
    """

    def __init__(self, pool: Pool, topic: TopicName, options: ConsumerOptions) -> None:
        super().__init__(pool, topic, options)
        self._started: dict[int, int] = {}  # where reading begins; 0 for those that are missing (semantics 27)
        self._finished: set[int] = set()  # sealed, and delivered to the end or deleted
        self._ending = False  # some segment's end is known and not yet delivered
        # Of what arrived: the offset behind the last message to be delivered, and the one behind all of it.
        self._passed: dict[int, tuple[int, int]] = {}
        self._share: set[int] | None = None  # None: every segment
        self._share_epoch = -1  # of the layout that the share follows from
        self._registration: Registration | None = None
        if options.group is not None:
            self._share = set()
            self._registration = Registration(self.session, options, "checkpoint", self._assigned, self.fail)

    async def start(self, start: Checkpoint) -> None:
        """Turn `start` into a position for every segment, and read."""
        try:
            await self._open()
            self._begin_at(await self._resolve(start))
            if self._registration is not None:
                await self._registration.start()
            self._follow()
            self.layout_changed(self.session.layout)
            await self._tried_all()
        except BaseException:
            await self.close()
            raise

    # -- positions -------------------------------------------------------------------------------------------

    async def checkpoint(self) -> Checkpoint:
        """The position of this consumer: what it has delivered, for every segment.

        Start from it later to receive exactly what follows, whatever the topic's layout is then. For segments that are
        not in its share, a member of a group gives the position where it began or stopped: of the checkpoints of all
        members, the largest position in each segment is the group's.
        """
        self._check_open()
        return self.checkpoint_now()

    def checkpoint_now(self) -> Checkpoint:
        """checkpoint() for a caller on the loop."""
        layout = self.session.layout
        positions = {segment_id: self._standing(segment_id) for segment_id in layout.segments}
        return Checkpoint(positions, epoch=layout.epoch, topic=self._topic, topic_created_ms=layout.created_ms)

    async def seek(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint`; what was fetched ahead is dropped. After an error the position is unchanged.

        Raises InvalidArgumentError, TimeoutError, AlreadyClosedError.
        """
        self._check_open()
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidArgumentError(f"checkpoint must be an engine.Checkpoint, got {type(checkpoint).__name__}")
        if checkpoint.form in ("latest", "timestamp"):  # else unknown children would be read from their start
            await self.session.refresh()
        positions = await self._resolve(checkpoint)
        self._check_open()
        left, self.attachments = list(self.attachments.values()), {}
        for attachment in left:
            attachment.give_up()
        self._restart_queue()
        self._begin_at(positions)
        await self._tried_all()

    async def lag(self) -> int:
        """How many messages, at most, lie between its position and the end of the topic; of a member of a group, in its
        share of the segments. Messages of transactions that were aborted count.

        Raises NotFoundError when the topic was deleted, AlreadyClosedError, ConnectError, TimeoutError.
        """
        self._check_open()
        await self.session.refresh()
        mine = [i for i in self.session.layout.segments if self._is_mine(i)]
        return sum(await asyncio.gather(*map(self._lag_in, mine)))

    async def _lag_in(self, segment_id: int) -> int:
        try:
            place = await self.session.place(segment_id, "latest")
        except NotFoundError:
            await self.session.refresh()
            if segment_id in self.session.layout.segments:
                raise
            return 0  # deleted by retention
        return max(0, place.offset - max(self._standing(segment_id), place.first))

    def _begin_at(self, positions: dict[int, int]) -> None:
        self._finished.clear()
        self._ending = False
        self._passed.clear()
        self._started = positions
        self.layout_changed(self.session.layout)

    async def _resolve(self, start: Checkpoint) -> dict[int, int]:
        """The offset in every present segment, except those to be read from their start."""
        if start.topic is not None and start.topic != self._topic:
            raise InvalidArgumentError(f"{start!r} is not of {self._topic}")
        if start.form == "positions":
            await self._reach(start)
            return dict(start.positions)
        if start.form == "earliest":
            return {}
        at = "latest" if start.timestamp_ms is None else start.timestamp_ms
        segments = list(self.session.layout.segments.values())
        offsets = await asyncio.gather(*(self._offset(segment, at) for segment in segments))
        return {s.segment_id: offset for s, offset in zip(segments, offsets, strict=True)}

    async def _reach(self, start: Checkpoint) -> None:
        """Have the layout of the checkpoint: with an older one, deleted segments would be read."""
        self._check_same_topic(start)
        if self.session.layout.epoch < start.epoch:
            await self.session.refresh()
        if self.session.layout.epoch < start.epoch:
            raise InvalidArgumentError(
                f"{start!r} is of a later layout than {self._topic} has, which is {self.session.layout.epoch}; "
                "a checkpoint of a topic that was deleted since cannot be used"
            )

    def _check_same_topic(self, start: Checkpoint) -> None:
        """Raise InvalidArgumentError for a checkpoint of an earlier topic of the same name."""
        here, there = self.session.layout.created_ms, start.topic_created_ms
        if here is not None and there is not None and here != there:
            raise InvalidArgumentError(
                f"{start!r} is of the {self._topic} that was created at {_instant(there)}; the one of that name that "
                f"is there now was created at {_instant(here)}. Checkpoint.earliest() begins with its first message"
            )

    async def _offset(self, segment: SegmentView, at: str | int) -> int:
        try:
            return (await self.session.place(segment.segment_id, at)).offset
        except NotFoundError:
            await self.session.refresh()
            view = self.session.layout.segments.get(segment.segment_id)
            if view is not None and view.active:
                raise
            return 0  # deleted by retention; attaching will find that out

    # -- segments --------------------------------------------------------------------------------------------

    def _assigned(self, epoch: int, segments: list[Assigned]) -> None:
        """The whole share (semantics 29): stop reading what is no longer in it. Never back to an older layout's."""
        if epoch < self._share_epoch:
            return
        self._share_epoch, self._share = epoch, {s.segment_id for s in segments}
        for segment_id in self.attachments.keys() - self._share:
            attachment = self.attachments.pop(segment_id, None)
            if attachment is not None:
                attachment.give_up()
                self._stand_still(segment_id)
                self._drop(segment_id)
        self.layout_changed(self.session.layout)

    def layout_changed(self, layout: TopicLayout) -> None:
        """Read every segment of the share whose ancestors in the share are done."""
        if self._closed:
            return  # what began now would never be closed
        self._finished &= layout.segments.keys()
        for segment in layout.segments.values():
            begun = segment.segment_id in self.attachments or segment.segment_id in self._finished
            if begun or not self._is_mine(segment.segment_id) or self._waits(layout, segment):
                continue
            start = self._standing(segment.segment_id)
            attachment = FileAttachment(self.working, segment.segment_id, segment.name, start)
            self.attachments[segment.segment_id] = attachment
            attachment.begin()

    def _is_mine(self, segment_id: int) -> bool:
        return self._share is None or segment_id in self._share

    def _waits(self, layout: TopicLayout, segment: SegmentView) -> bool:
        """Whether an ancestor is still to be delivered here."""
        ancestors, seen = list(segment.parents), set(segment.parents)
        while ancestors:
            parent = ancestors.pop()
            if parent in self.attachments:
                return True
            view = layout.segments.get(parent)
            if view is None:
                continue  # gone, and its ancestors went before
            if self._is_mine(parent) and parent not in self._finished:
                return True
            ancestors += (p for p in view.parents if p not in seen)
            seen.update(view.parents)
        return False

    def attached(self, attachment: Attachment) -> None:
        """Retention may have moved the start."""
        assert isinstance(attachment, FileAttachment)
        segment_id = attachment.segment_id
        if attachment.progress.position > max(self._standing(segment_id), attachment.queued_upto):
            self._started[segment_id] = attachment.progress.position
        super().attached(attachment)

    def detached(self, attachment: Attachment) -> None:
        """Continue at the next offset to deliver."""
        assert isinstance(attachment, FileAttachment)
        attachment.dropped()
        super().detached(attachment)
        attachment.progress.expected = self._stand_still(attachment.segment_id)

    def _standing(self, segment_id: int) -> int:
        """The next offset to deliver. Offsets without a message to deliver count with the message before them."""
        delivered = max(self._started.get(segment_id, 0), self._queue.positions.get(segment_id, 0))
        last, behind = self._passed.get(segment_id, (0, 0))
        standing = int(max(delivered, behind) if delivered >= last else delivered)
        attachment = self.attachments.get(segment_id)
        return standing if attachment is None else attachment.gaps.skip(standing)

    def _stand_still(self, segment_id: int) -> int:
        """Fix the next offset to deliver: what arrived and was not delivered will be requested again."""
        standing = self._started[segment_id] = self._standing(segment_id)
        self._passed.pop(segment_id, None)
        return standing

    def _push(self, attachment: Attachment, entries: list[Entry], header: commands.Message, begin: int) -> int:
        """Note where the last message of the block is, and where the block ends."""
        pushed = super()._push(attachment, entries, header, begin)
        if entries:
            last, behind = self._passed.get(attachment.segment_id, (0, 0))[0], _behind(entries)
            if pushed:
                last = _without_tail(behind, header.skip or ())
            self._passed[attachment.segment_id] = (last, behind)
        return pushed

    def segment_gone(self, attachment: Attachment) -> None:
        """Its children may be read."""
        self._finish(attachment)

    def readdressed(self, layout: TopicLayout) -> None:
        """The layout may name another controller as well."""
        super().readdressed(layout)
        if self._registration is not None:
            self._registration.check_controller()

    def end_reached(self, attachment: Attachment) -> None:
        """All of a sealed segment arrived: its children may be read when all of it is delivered, without the broker."""
        attachment.give_up()
        self._ending = True
        self._end_delivered()

    def _popped(self) -> None:
        super()._popped()
        if self._ending:
            self._end_delivered()

    def _owes_credit(self) -> bool:
        return self._ending or super()._owes_credit()

    def _return_credit(self) -> None:
        super()._return_credit()
        if self._ending:
            self._end_delivered()

    def _end_delivered(self) -> None:
        """Finish the sealed segments that were delivered to their end."""
        ended = [a for a in self.attachments.values() if a.end is not None]
        done = [a for a in ended if self._standing(a.segment_id) >= (a.end or 0) or self._had_nothing(a)]
        self._ending = len(done) < len(ended)
        for attachment in done:
            self._finish(attachment)

    def _had_nothing(self, attachment: Attachment) -> bool:
        """Whether its end arrived before any message: retention has deleted all of it."""
        return not attachment.broken and attachment.segment_id not in self._passed

    def _finish(self, attachment: Attachment) -> None:
        self._finished.add(attachment.segment_id)
        self.attachments.pop(attachment.segment_id, None)
        attachment.give_up()
        if not self._closed:
            self.layout_changed(self.session.layout)
            self._forget_left()

    def _forget_left(self) -> None:
        super()._forget_left()
        kept = self.session.layout.segments.keys() | self.attachments.keys()
        self._started = {i: start for i, start in self._started.items() if i in kept}

    async def _leave(self) -> None:
        if self._registration is not None:
            await self._registration.close()


def _behind(entries: list[Entry]) -> int:
    """The offset behind a block."""
    return entries[-1].first_offset + entries[-1].count


def _without_tail(behind: int, skip: Sequence[list[int]]) -> int:
    """The offset behind the last message of a block, `behind` its end, that is not skipped."""
    for first, last in sorted(skip, reverse=True):
        if last + 1 < behind:
            break
        behind = min(behind, first)
    return behind


def _instant(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
