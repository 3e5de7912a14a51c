"""`AsyncRangeReader`: reads given offsets of given segments, and then it is done.

What a consumer does without knowing where it will end, this does for a piece of work that was planned before: a task of
a cluster, a copy, a check. The segments are read one after the other in the order of their ids, so that parents come
before children (ids rise along every path); while one is being received, the next is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from engine._native.consume.batch import MessageBatch
from engine._native.consume.message import Message
from engine._native.format.entry import Entry
from engine._native.format.offsets import overlap
from engine._native.produce.hashing import KEY_HASHES, key32
from engine.client.base.options import ConsumerOptions, check_count
from engine.client.consume.attachment import Attachment
from engine.client.consume.receiver import Receiver
from engine.client.files.local_files import Block
from engine.client.net.pool import Pool
from engine.client.ranges.caller_reads import CallerReads
from engine.client.ranges.range_attachment import RangeAttachment
from engine.client.topic.layout import TopicLayout
from engine.errors import AlreadyClosedError, CorruptionError, InvalidArgumentError, NotFoundError
from engine.limits import READ_BLOCK_SIZE
from engine.model.names import TopicName
from engine.model.positions import Checkpoint
from engine.wire import commands

BATCH_MESSAGES = 65_536
# Reading ahead from files saves no waiting; and what was just read is copied from the processor's cache.
LOCAL_WINDOW_BYTES = 4 * READ_BLOCK_SIZE

Ranges = Mapping[int, tuple[int, int]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What is read. `ranges`: {segment id: (first offset, offset behind the last)}.

    `buckets`: only entries whose smallest bucket hash is in this range, both ends inclusive: with ranges that tile
    0..65535, each entry is in exactly one of them. `keys`: entries without any of these may be left out.
    `skip_deleted`: what retention has deleted is left out, and is no error.
    """

    ranges: Ranges
    buckets: tuple[int, int] | None = None
    keys: tuple[bytes, ...] | None = None
    skip_deleted: bool = False

    def __post_init__(self) -> None:
        for segment_id, (start, stop) in self.ranges.items():
            if not 0 <= start <= stop:
                raise InvalidArgumentError(
                    f"the range of segment {segment_id} must have 0 <= start <= stop, got {start}..{stop}"
                )
        if self.buckets is not None and not 0 <= self.buckets[0] <= self.buckets[1] <= 0xFFFF:
            raise InvalidArgumentError(f"buckets must be (first, last) within 0..65535, got {self.buckets}")


class AsyncRangeReader(Receiver[Any]):
    """Made by `client.range_reader()`; usable with `async with`. Iterate it, or its batches(), to the end."""

    def __init__(self, pool: Pool, topic: TopicName, options: ConsumerOptions, plan: ReadPlan) -> None:
        super().__init__(pool, topic, options)
        self._plan = plan
        self._left = sorted(i for i, (start, stop) in plan.ranges.items() if start < stop)
        self._hashes: tuple[int, ...] | None = None
        self._deleted: dict[int, int] = {}
        self._arrived = self._exhausted = False  # all of it has arrived; and was received
        self._window = messages, size = self._budget.whole
        self._local_window = messages, min(size, LOCAL_WINDOW_BYTES)
        self.hands_over = False  # the caller uses next_batch_or_reads(), and reads files itself
        self._caller_reads: CallerReads | None = None

    async def start(self) -> None:
        """Check that all of it exists, and begin."""
        try:
            layout = await self._open()
            if self._plan.keys is not None:
                algorithm = KEY_HASHES[layout.key_hash]
                self._hashes = tuple(key32(key, algorithm) for key in self._plan.keys)
            await asyncio.gather(*map(self._check, self._left))
            self._follow()
            self._advance()
        except BaseException:
            await self.close()
            raise

    async def _check(self, segment_id: int) -> None:
        """Raise InvalidArgumentError for a range beyond the segment's end, which could be waited for for ever."""
        try:
            place = await self.session.place(segment_id, "latest")
        except NotFoundError:
            return  # deleted: _advance() handles it
        end, stop = place.offset, self._plan.ranges[segment_id][1]
        if stop > end:
            raise InvalidArgumentError(
                f"segment {segment_id} of {self._topic} ends at {end}, before {stop}, the end of the range"
            )

    # -- the user's side -------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Also when everything was received: nothing is lost with it then."""
        return self.closed or self._exhausted

    @property
    def deleted(self) -> dict[int, int]:
        """{segment id: messages of its range that retention had deleted}, as far as it has read. A new dict."""
        return dict(self._deleted)

    async def batches(self, max_messages: int = BATCH_MESSAGES) -> AsyncIterator[MessageBatch]:
        """Everything, in order, in batches of at most `max_messages`.

        Raises NotFoundError for what retention has deleted, and as receive_batch() of consumers.
        """
        while (batch := await self.next_batch(max_messages)) is not None:
            yield batch

    async def next_batch(self, max_messages: int = BATCH_MESSAGES) -> MessageBatch | None:
        """The next messages, None at the end. Raises as batches()."""
        return await self._or_end(self.receive_batch(max_messages))

    async def _or_end(self, receiving: Awaitable[T]) -> T | None:
        """None when everything was received."""
        try:
            return await receiving
        except AlreadyClosedError:
            if self._exhausted:
                return None
            raise

    # -- files that the receiving thread reads -----------------------------------------------------------------

    def _let_caller_read(self, attachment: RangeAttachment) -> None:
        if (files := attachment.local_files) is not None and self._failure is None:
            attachment.read_by_caller = True
            self._caller_reads = CallerReads(self.working, attachment, files)
            self._wake()

    async def next_batch_or_reads(self, max_messages: int) -> MessageBatch | CallerReads | None:
        """As next_batch(), or files for the caller to read in its own thread. For the blocking client."""
        check_count("max_messages", max_messages)

        def pop() -> MessageBatch | CallerReads | None:
            batch = self._pop_batch(max_messages, -1)
            return self._caller_reads if batch is None else batch

        if not self._receives and (found := pop()) is not None:
            self._popped()
            return found
        return await self._or_end(self._in_turn(pop, None))

    def _wake(self) -> None:
        if self._caller_reads is not None and self._receives:
            self._receives[0].wake(True)
        else:
            super()._wake()

    def take_queued(self, max_messages: int) -> MessageBatch | None:
        """Called by the thread that reads."""
        return None if self._closed else self._queue.pop_batch(max_messages, -1) or None

    def queue_local(
        self, attachment: RangeAttachment, block: Block, entries: list[Entry], begin: int, lost: Entry | None
    ) -> None:
        """Called by the thread that reads."""
        self._pushed_messages += block.messages
        self._pushed_bytes += len(block.data)
        wanted = [e for e in entries if e.first_offset < attachment.stop and self._is_wanted(e)]
        skip, _ = _up_to(attachment.stop, wanted, block.skip)
        attachment.pushed += self._queue.push(wanted, skip or None, None, begin)
        if lost is not None:
            self._break_off(attachment, lost)

    def given_back(self, reads: CallerReads) -> None:
        """It has ended, and everything that it has read was received."""
        if self._caller_reads is not reads:
            return  # given back before
        self._caller_reads = None
        self._queue.take_credit()
        self._credited_messages = self._pushed_messages - self._queue.messages
        self._credited_bytes = self._pushed_bytes - self._queue.bytes
        attachment = reads.attachment
        if self._failure is not None or attachment.broken:
            return
        attachment.go_on(reads.files, reads.error, self.working._let_caller_read)
        if attachment.progress.expected >= attachment.stop and not attachment.closed:
            self._finish(attachment)

    # -- bad entries -----------------------------------------------------------------------------------------

    def stop_at(self, entry: Entry, error: CorruptionError) -> None:
        """Fail: not everything can be read."""
        self.fail(error)

    def broken_off(self, attachment: Attachment, error: CorruptionError) -> None:
        """Detach: nothing is acknowledged, so the broker is not needed any more."""
        super().broken_off(attachment, error)
        attachment.give_up()

    async def _iterate(self) -> AsyncIterator[Message]:
        async for batch in self.batches():
            for message in batch:
                yield message

    # -- one segment after the other -------------------------------------------------------------------------

    def _advance(self) -> None:
        """Attach to the next segment."""
        while self._left:
            segment_id = self._left.pop(0)
            view = self.session.layout.segments.get(segment_id)
            start, stop = self._plan.ranges[segment_id]
            if view is None:
                self._lose(segment_id, stop - start)
                continue
            attachment = RangeAttachment(self.working, segment_id, view.name, start, stop)
            self.attachments[segment_id] = attachment
            attachment.begin()
            return
        self._arrived = True
        self._end_if_received()

    def _end_if_received(self) -> None:
        if self._failure is None and self._arrived and not self._queue.messages and not self.unread:
            self._exhausted = True
            self.fail(AlreadyClosedError(f"everything that was to be read of {self._topic} was received"))

    def _lose(self, segment_id: int, count: int) -> None:
        if count <= 0:
            return
        self._deleted[segment_id] = self._deleted.get(segment_id, 0) + count
        if not self._plan.skip_deleted:
            self.fail(NotFoundError(f"retention has deleted {count} messages of segment {segment_id} of {self._topic}"))

    def _standing(self, segment_id: int) -> int:
        """The next offset to deliver."""
        return max(self._plan.ranges[segment_id][0], self._queue.positions.get(segment_id, 0))

    def attached(self, attachment: Attachment) -> None:
        """Retention may have moved the start."""
        assert isinstance(attachment, RangeAttachment)
        standing = max(self._standing(attachment.segment_id), attachment.queued_upto)
        self._lose(attachment.segment_id, min(attachment.progress.position, attachment.stop) - standing)
        files, attachment.ungranted = attachment.local_files, attachment.stop - attachment.progress.expected
        self._budget.whole = self._window if files is None else self._local_window
        if attachment.ungranted <= 0:
            self._finish(attachment)
        elif files is not None and self.hands_over and not self.options.schema.evolves:
            self._let_caller_read(attachment)
        else:
            super().attached(attachment)

    def detached(self, attachment: Attachment) -> None:
        """Continue at the next offset to deliver."""
        assert isinstance(attachment, RangeAttachment)
        self._caller_reads = None
        attachment.dropped()
        super().detached(attachment)
        attachment.progress.expected = self._standing(attachment.segment_id)

    def blocks_came(self, attachment: Attachment, header: commands.Message, payload: memoryview) -> None:
        """Queue what belongs to the range, which may end with this block."""
        assert isinstance(attachment, RangeAttachment)
        super().blocks_came(attachment, header, payload)
        if self._failure is None and attachment.progress.expected >= attachment.stop and not attachment.broken:
            self._finish(attachment)

    def _push(self, attachment: Attachment, entries: list[Entry], header: commands.Message, begin: int) -> int:
        """Queue what is wanted; what is not, or lies before the start, is credited at once."""
        assert isinstance(attachment, RangeAttachment)
        stop, skip = attachment.stop, header.skip or []
        if entries and (first := entries[0].first_offset) < begin:
            lead = begin - first - overlap(skip, first, begin)
            attachment.ungranted += lead
            attachment.grant(lead, 0)
        wanted = [e for e in entries if e.first_offset < stop and self._is_wanted(e)]
        if len(wanted) < len(entries):
            kept = {e.first_offset for e in wanted}
            dropped = [e for e in entries if e.first_offset not in kept]
            messages = sum(e.count - overlap(skip, e.first_offset, e.first_offset + e.count) for e in dropped)
            self._grant({attachment.segment_id: (messages, sum(e.size for e in dropped))})
        skip, beyond = _up_to(stop, wanted, skip)
        self._credited_messages += beyond
        return self._queue.push(wanted, skip or None, None, begin)

    def _is_wanted(self, entry: Entry) -> bool:
        if self._plan.buckets is not None and not self._plan.buckets[0] <= entry.bucket_min <= self._plan.buckets[1]:
            return False
        if self._hashes is None:
            return True
        return any(
            entry.segment_hash_min <= h >> 16 <= entry.segment_hash_max
            and entry.bucket_min <= h & 0xFFFF <= entry.bucket_max
            for h in self._hashes
        )

    def end_reached(self, attachment: Attachment) -> None:
        """Sent to its end, which start() has found to be at or behind the range's."""
        if attachment.segment_id in self.attachments:
            self._finish(attachment)

    def segment_gone(self, attachment: Attachment) -> None:
        """Deleted by retention."""
        assert isinstance(attachment, RangeAttachment)
        self._lose(attachment.segment_id, attachment.stop - attachment.progress.expected)
        self._finish(attachment)

    def _finish(self, attachment: Attachment) -> None:
        self.attachments.pop(attachment.segment_id, None)
        attachment.give_up()
        if not self._closed and self._failure is None:
            self._advance()

    def layout_changed(self, layout: TopicLayout) -> None:
        """Nothing: the ranges are fixed."""

    def _forget_left(self) -> None:
        """Nothing: the positions of all segments are needed to the end."""

    def _owes_credit(self) -> bool:
        return self._arrived or super()._owes_credit()

    def _return_credit(self) -> None:
        super()._return_credit()
        self._end_if_received()


def _up_to(stop: int, entries: list[Entry], skip: Any) -> tuple[Any, int]:
    """`skip`, extended by what is at or above `stop`; how many messages that adds."""
    if not entries or (end := entries[-1].first_offset + entries[-1].count) <= stop:
        return skip, 0
    within = [[first, min(last, stop - 1)] for first, last in skip if first < stop]
    return [*within, [stop, end - 1]], end - stop - overlap(skip, stop, end)


def check_ranges(ranges: object) -> Ranges:
    """The ranges, checked. Raises InvalidArgumentError for anything that is not {segment id: (start, stop)}."""
    if isinstance(ranges, Checkpoint) or not isinstance(ranges, Mapping):
        raise InvalidArgumentError(f"ranges must be {{segment id: (start, stop)}}, got {type(ranges).__name__}")
    return {int(i): (int(start), int(stop)) for i, (start, stop) in ranges.items()}


def check_keys(keys: Iterable[bytes | str] | None) -> tuple[bytes, ...] | None:
    """The keys as bytes."""
    return None if keys is None else tuple(k.encode() if isinstance(k, str) else bytes(k) for k in keys)
