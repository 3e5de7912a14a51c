"""`AsyncCheckpointConsumer`: a reader that keeps its own position; the broker remembers nothing of it.

It reads a segment from the position it knows, and a child segment only after its parents: a key's messages come in
order across layout changes because nothing of a child is asked for before the last message of every parent was
delivered (SEMANTICS 10).
"""

from __future__ import annotations

import asyncio

from engine.client.attachment import READER, Attachment
from engine.client.options import ConsumerOptions
from engine.client.pool import Pool
from engine.client.receiver import Receiver
from engine.client.topic import SegmentView, TopicLayout, persist
from engine.errors import EngineError, InvalidArgumentError, NotFoundError
from engine.model.names import TopicName
from engine.model.positions import Checkpoint
from engine.wire.commands import Command


class AsyncCheckpointConsumer(Receiver):
    """Reads every segment of a topic from a Checkpoint on.

    Made by `client.checkpoint_consumer()`; usable with `async with`.
    """

    def __init__(self, pool: Pool, topic: TopicName, options: ConsumerOptions) -> None:
        super().__init__(pool, topic, options)
        self._started: dict[int, int] = {}  # where reading began, for every segment of the set (SEMANTICS 27)
        self._finished: set[int] = set()  # sealed, and delivered to the end or deleted
        self._ending = False  # some segment's end is known and not yet delivered

    async def start(self, start: Checkpoint) -> None:
        """Turn `start` into a position for every segment, and read."""
        try:
            await self.session.open()
            await self._begin_at(start)
            self.session.follow(self.layout_changed, self.fail)
            await self._tried_all()
        except BaseException:
            await self.close()
            raise

    # -- positions -------------------------------------------------------------------------------------------

    async def checkpoint(self) -> Checkpoint:
        """Where this consumer stands: what it has delivered, for every segment.

        Start from it later to get exactly what follows.
        """
        self._check_open()
        return self.checkpoint_now()

    def checkpoint_now(self) -> Checkpoint:
        """checkpoint() for a caller on the loop."""
        positions = {**self._started, **self._queue.positions}
        for segment_id in self.session.layout.segments:
            positions.setdefault(segment_id, 0)  # born later and not begun
        return Checkpoint(positions, epoch=self.session.layout.epoch, topic=self._topic)

    async def seek(self, checkpoint: Checkpoint) -> None:
        """Go on from `checkpoint`; what was fetched ahead is dropped. Raises InvalidArgumentError, TimeoutError."""
        self._check_open()
        if not isinstance(checkpoint, Checkpoint):
            raise InvalidArgumentError(f"cannot seek to {type(checkpoint).__name__}; an engine.Checkpoint is right")
        self._check_topic(checkpoint)
        left, self.attachments = list(self.attachments.values()), {}
        await asyncio.gather(*(attachment.close() for attachment in left))
        self._restart_queue()
        await self._begin_at(checkpoint)
        await self._tried_all()

    def _check_topic(self, checkpoint: Checkpoint) -> None:
        if checkpoint.topic is not None and checkpoint.topic != self._topic:
            raise InvalidArgumentError(f"{checkpoint!r} is not of {self._topic}")

    async def _begin_at(self, start: Checkpoint) -> None:
        self._check_topic(start)
        self._finished.clear()
        self._ending = False
        self._started = await self._resolve(start)
        self.layout_changed(self.session.layout)

    async def _resolve(self, start: Checkpoint) -> dict[int, int]:
        """A concrete offset for every segment there is now."""
        segments = list(self.session.layout.segments.values())
        if start.form == "positions":
            return {**{s.segment_id: 0 for s in segments}, **start.positions}
        if start.form == "earliest":
            return {s.segment_id: 0 for s in segments}
        at = "latest" if start.form == "latest" else start.timestamp_ms
        offsets = await asyncio.gather(*(self._offset(segment, at) for segment in segments))
        return {s.segment_id: offset for s, offset in zip(segments, offsets, strict=True)}

    async def _offset(self, segment: SegmentView, at: str | int | None) -> int:
        async def once() -> int:
            connection = await self.pool.get(segment.url)
            header = {"topic": segment.name, "at": at}
            timeout = self.pool.options.operation_timeout
            answer = await connection.request(Command.SEGMENT_OFFSET, header, timeout)
            return int(answer["result"]["offset"])

        try:
            timeout = self.pool.options.operation_timeout
            return int(await persist(self.pool, once, timeout, f"asking for the end of {segment.name}"))
        except NotFoundError:
            if segment.active:
                raise
            return 0  # deleted by retention; attaching will find that out

    # -- segments --------------------------------------------------------------------------------------------

    def layout_changed(self, layout: TopicLayout) -> None:
        """Read every segment whose parents are done."""
        for segment in layout.segments.values():
            if segment.segment_id in self.attachments or segment.segment_id in self._finished:
                continue
            if any(p in layout.segments and p not in self._finished for p in segment.parents):
                continue
            start = self._started.setdefault(segment.segment_id, 0)
            attachment = Attachment(self, segment.segment_id, segment.name, READER, start)
            self.attachments[segment.segment_id] = attachment
            attachment.begin()

    def attached(self, attachment: Attachment) -> None:
        """Retention may have moved the start."""
        segment_id = attachment.segment_id
        if attachment.position > self._standing(segment_id):
            self._started[segment_id] = attachment.position
        super().attached(attachment)

    def detached(self, attachment: Attachment) -> None:
        """Go on where delivery stands."""
        super().detached(attachment)
        attachment.expected = self._standing(attachment.segment_id)

    def _standing(self, segment_id: int) -> int:
        """The next offset to deliver."""
        start = self._started.get(segment_id, 0)
        return int(max(start, self._queue.positions.get(segment_id, 0)))

    def segment_missing(self, attachment: Attachment, error: EngineError) -> bool:
        """A sealed segment may have been deleted by retention: skip it (SEMANTICS 28)."""
        view = self.session.layout.segments.get(attachment.segment_id)
        if view is not None and view.active:
            self.fail(error)
        else:
            self._finish(attachment)
        return False

    def end_reached(self, attachment: Attachment) -> None:
        """Sealed, and all of it is here: its children may come when all of it is delivered."""
        self._ending = True
        self._end_delivered()

    def _popped(self) -> None:
        super()._popped()
        if self._ending:
            self._end_delivered()

    def _must_look(self) -> bool:
        return self._ending or super()._must_look()

    def _return_credit(self) -> None:
        super()._return_credit()
        if self._ending:
            self._end_delivered()

    def _end_delivered(self) -> None:
        """Finish the sealed segments that were delivered to their end."""
        ended = [a for a in self.attachments.values() if a.end is not None]
        done = [a for a in ended if self._standing(a.segment_id) >= (a.end or 0)]
        self._ending = len(done) < len(ended)
        for attachment in done:
            self._finish(attachment)

    def _finish(self, attachment: Attachment) -> None:
        self._finished.add(attachment.segment_id)
        self.attachments.pop(attachment.segment_id, None)
        attachment.give_up()
        if not self._closed:
            self.layout_changed(self.session.layout)
