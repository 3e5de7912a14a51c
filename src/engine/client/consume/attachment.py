"""A consumer's attachment to one segment: subscribe at its owner, grant credit, attach again after a loss.

What arrives goes to the consumer's one queue. When an attachment ends, what it has queued and not delivered is
dropped: the broker delivers it again, from the cursor (or, for a reader, from where this reader stands).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from engine._native.consume.bucket_marks import BucketMarks
from engine._native.consume.entry_queue import EntryQueue
from engine.client.base.options import ConsumerOptions
from engine.client.consume.acknowledging import Acknowledging
from engine.client.consume.gaps import SegmentGaps
from engine.client.net.connection import Connection, ignore_outcome
from engine.client.net.pool import Pool
from engine.client.topic.session import TopicLayout, TopicSession
from engine.errors import (
    AlreadyClosedError,
    ConnectError,
    ConsumerBusyError,
    CorruptionError,
    EngineError,
    NotFoundError,
    NotOwnerError,
    SubscriptionKindError,
    SubscriptionNotFoundError,
    TimeoutError,
)
from engine.wire import commands
from engine.wire.commands import Header

log = logging.getLogger(__name__)

EXCLUSIVE = "exclusive"
SHARED = "shared"
QUEUE = "queue"
READER = "reader"

BUSY_S_MAX = 0.2  # between two looks at whether the segment's consumer before us has let go
BUSY_TOLD = 10  # refusals after which it is perhaps no handover

_PASSING = (ConnectError, TimeoutError, ConsumerBusyError, AlreadyClosedError)


class AttachmentOwner(Protocol):
    """What an attachment wants from its consumer."""

    pool: Pool
    session: TopicSession
    options: ConsumerOptions
    subscription_ms: int | None

    def blocks_came(self, attachment: Attachment, header: commands.Message, payload: memoryview) -> None:
        """A MESSAGE frame."""

    def attached(self, attachment: Attachment) -> None:
        """It begins, or begins again, at `attachment.position`: grant it credit."""

    def detached(self, attachment: Attachment) -> None:
        """What is queued of it will be delivered again."""

    def acknowledged_again(self, attachment: Attachment, ranges: Any) -> None:
        """These are acknowledged now, and may be queued from before."""

    def broken_off(self, attachment: Attachment, error: CorruptionError) -> None:
        """Its broker cannot read on."""

    def gaps_told(self, count: int) -> None:
        """So many more gaps are passed: messages may be lost there."""

    def end_reached(self, attachment: Attachment) -> None:
        """`attachment.end` is known now."""

    def segment_missing(self, attachment: Attachment, error: EngineError) -> bool:
        """The broker does not know the segment or the subscription. Whether to try again."""

    def fail(self, error: EngineError) -> None:
        """The consumer cannot go on."""


class Attachment(Acknowledging):
    """Loop thread only.

    `end`: where a sealed segment ends, None before. `arrived`: behind everything that ever came. `pushed`: how many
    messages were queued and not dropped again. `rewound`: the cursor was moved since it was attached before. `looks`:
    those of the session when the segment was first said to be missing. `parked`: while it drains, what came and waits.
    `window`: the messages and bytes that it may be sent ahead, None until it has got credit. `broken`: it stands at
    something bad; it acknowledges, and delivers nothing before it is attached anew for another reason.
    """

    def __init__(
        self,
        owner: AttachmentOwner,
        segment_id: int,
        name: str,
        mode: str,
        start: int | None = None,
        bucket_ends: tuple[int, ...] = (),
    ) -> None:
        super().__init__(owner, segment_id, name, start or 0)
        self.mode = mode
        self.bucket_ends = bucket_ends  # of a shared segment
        self.end: int | None = None
        self.gaps = SegmentGaps()
        self.arrived = 0
        self.pushed = 0
        self.rewound = False
        self._seeks: tuple[str | None, int] | None = None  # those that the owner knew, as it was attached before
        self.looks: int | None = None
        self.parked: EntryQueue | None = None
        self.window: tuple[int, int] | None = None
        self.broken = False
        self.tried = asyncio.Event()  # the first attempt has ended, either way
        self._url: str | None = None  # the owner's, when it was attached
        self._opening: tuple[Connection, int] | None = None  # asked for and not answered yet
        self._ended_id = 0
        self._attaching = False
        self.seen: commands.Ranges | None = None  # what the broker is told by close() of what it holds: CLOSE_CONSUMER

    @property
    def connected(self) -> bool:
        """Whether the broker serves it now."""
        return self._connection is not None

    @property
    def draining(self) -> bool:
        """Whether it delivers no more for now; acknowledgements still go through."""
        return self.parked is not None

    # -- Attached --------------------------------------------------------------------------------------------

    def frame_received(self, header: Header, payload: memoryview) -> None:
        """Messages, and how the attachment ends."""
        if self.closed:
            return  # another one may have the segment by now
        if isinstance(header, commands.Message):
            if not self.broken:
                self._owner.blocks_came(self, header, payload)
        elif isinstance(header, commands.ReachedEnd):
            self.end = header.end
            self._owner.end_reached(self)
        elif isinstance(header, commands.CloseConsumer) and header.request_id is None:
            self._ended_id = header.consumer_id
            error = EngineError.from_code(header.code or ConnectError.code, header.message or "closed")
            self._detach()
            if isinstance(error, CorruptionError):
                self._break_off(error)
                self.begin()
            else:
                self._lost(error)

    def resume_writing(self) -> None:
        """Acknowledgements and credit are never held back."""

    def connection_lost(self, error: EngineError) -> None:
        """Attach again over the next connection."""
        self._connection = None
        self._lost(error)

    def _break_off(self, error: CorruptionError) -> None:
        """What was damaged on its disk stays so. What is queued is good, and can be acknowledged."""
        if not self.broken and not self.closed:
            self._attached_again.clear()
            self._owner.broken_off(self, error)

    def _lost(self, error: EngineError) -> None:
        if self.closed:
            return
        self.broken = False
        self._attached_again.clear()
        self.again_upto = self.arrived
        self._owner.detached(self)
        if not self.draining and self._survives(error):
            self.begin()

    def moved(self, layout: TopicLayout) -> None:
        """The segment may have another owner by now: attach there."""
        connection, url = self._connection, layout.url_of(self.segment_id)
        if connection is not None and url not in (None, self._url) and not self.draining:
            self._detach()
            self._say_close(connection, self._consumer_id)
            self._lost(NotOwnerError(f"{self.name} moved to {url}"))

    def rewind(self) -> None:
        """Attach again where it is attached, or about to be: what comes begins at the cursor."""
        connection, opening = self._connection, self._opening
        if opening is not None:
            self._say_close(*opening)
            self._ended_id = opening[1]
        if connection is not None and not self.draining:
            self._detach()
            self._say_close(connection, self._consumer_id)
            self._lost(NotOwnerError(f"{self.name} is read again from the cursor"))
        self.again_upto = 0  # what comes again is what counts
        self.readings += 1

    # -- attaching -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Attach in the background, as often as it takes."""
        if not self._attaching and not self.closed:
            self._attaching = True
            self._owner.pool.tasks.spawn(self._attach_in_background(), name=f"subscribe {self.name}")

    async def _attach_in_background(self) -> None:
        backoff = self._owner.pool.retry_delays()
        session = self._owner.session
        busy = refused = 0
        try:
            while not self.closed and not self.draining:
                seen = session.layout
                try:
                    await session.at(lambda layout: layout.url_of(self.segment_id), self._attach)
                    if self.connected:
                        return
                    error: EngineError = NotOwnerError(f"{self.name}: the attachment ended as it began")
                except EngineError as e:
                    if self.closed or not self._survives(e):
                        return
                    error = e
                self.tried.set()
                busy += isinstance(error, ConsumerBusyError)
                if busy == BUSY_TOLD:
                    log.warning("%s gets no messages yet: %s", self._owner.options.name, error)
                if isinstance(error, ConsumerBusyError):
                    await asyncio.sleep(min(backoff.next(), BUSY_S_MAX))
                    continue
                refused += 1
                session.refused(refused)
                await session.wait_changed(seen, backoff.next())
        except EngineError as e:  # the topic is gone
            self._owner.fail(e)
        finally:
            self._attaching = False
            self.tried.set()

    def _survives(self, error: EngineError) -> bool:
        """Whether to attach again after this; if not, its consequences."""
        if self._owner.pool.closed:
            return False
        if isinstance(error, SubscriptionKindError | SubscriptionNotFoundError):
            self._owner.fail(error)
            return False
        if isinstance(error, CorruptionError):  # the segment cannot even be opened
            self._break_off(error)
            return False
        if error.layout_stale or isinstance(error, _PASSING):
            return True
        if isinstance(error, NotFoundError):
            return self._owner.segment_missing(self, error)
        self._owner.fail(error)
        return False

    def _subscribe(self, consumer_id: int) -> commands.Subscribe:
        options = self._owner.options
        return commands.Subscribe(
            consumer_id=consumer_id,
            topic=self.name,
            subscription=options.subscription,
            consumer_name=options.name,
            mode=self.mode,
            start=self.expected if self.mode == READER else None,
            initial_position=options.initial_position if options.subscription is not None else None,
            created_ms=self._owner.subscription_ms,
            priority=options.priority or None,
            transactions=sorted(self.transactions) if self.mode == EXCLUSIVE and self.transactions else None,
            bucketBoundaries=list(self.bucket_ends) if self.mode == SHARED else None,
        )

    async def _attach(self, url: str | None) -> None:
        owner = self._owner
        connection = await owner.pool.get(url)
        if self.closed or self.draining:
            return
        consumer_id = connection.next_id()
        request = self._subscribe(consumer_id)
        self._ended_id, self._opening = 0, (connection, consumer_id)  # ids repeat from connection to connection
        connection.attach(consumer_id, self)
        try:
            answer = await connection.request(request, owner.pool.options.operation_timeout)
        except BaseException as e:
            connection.detach(consumer_id)
            if not isinstance(e, EngineError) or isinstance(e, TimeoutError):
                self._say_close(connection, consumer_id)
            raise
        finally:
            self._opening = None
        if self.closed or self.draining:
            self._say_close(connection, consumer_id)
            return
        if connection.lost is not None:  # right behind the answer; connection_lost() left it to this attempt
            raise connection.lost
        if self._ended_id == consumer_id:
            connection.detach(consumer_id)
            raise NotOwnerError(f"{self.name}: the attachment ended as it began")
        owner.subscription_ms = owner.subscription_ms or answer.created_ms
        self._connection, self._consumer_id, self.looks = connection, consumer_id, None
        self._url = url or connection.broker_url  # asked of any broker, it was the owner
        before, self._seeks = self._seeks, (url, answer.seeks or 0)
        moved = before is not None and before[0] == url and before != self._seeks
        self.rewound = moved or answer.position < self.confirmed
        if self.rewound and self.mode != QUEUE:
            self.again_upto = 0  # what was delivered before the cursor was moved back was another reading
            self.readings += 1
        owner.gaps_told(self.gaps.told(answer.gaps or (), self.name, owner.options.subscription))
        self.position = self.confirmed = answer.position
        self.expected = self.gaps.skip(self.position)
        self.marks = BucketMarks(self.segment_id, self.bucket_ends, True) if self.mode == SHARED else None
        self._attached_again.set()
        if not self._owed:
            self._begin_delivery()

    def _begin_delivery(self) -> None:
        if not self.broken:
            self._owner.attached(self)

    def _acknowledged_again(self, ranges: Any) -> None:
        self._owner.acknowledged_again(self, ranges)

    # -- credit ----------------------------------------------------------------------------------------------

    def grant(self, messages: int, size: int) -> None:
        """The consumer has room for so many messages and bytes more."""
        if self._connection is not None and not self.broken and (messages > 0 or size > 0):
            flow = commands.Flow(consumer_id=self._consumer_id, messages=messages, bytes=size)
            self._connection.stream.send(flow)

    def redeliver(self, ranges: commands.Ranges, backoff: list[float] | None) -> None:
        """Hand messages back, as REDELIVER says; nothing while the connection is lost."""
        if self._connection is not None:
            back = commands.Redeliver(consumer_id=self._consumer_id, ranges=ranges, backoff=backoff)
            self._connection.stream.send(back)

    # -- ending ----------------------------------------------------------------------------------------------

    def _detach(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.detach(self._consumer_id)

    @staticmethod
    def _say_close(connection: Connection, consumer_id: int) -> None:
        if connection.lost is None:
            future = connection.start_request(commands.CloseConsumer(consumer_id=consumer_id))
            future.add_done_callback(ignore_outcome)

    def give_up(self) -> None:
        """End it without waiting for the broker's word. Idempotent."""
        connection = self._end()
        if connection is not None:
            self._say_close(connection, self._consumer_id)

    def _end(self) -> Connection | None:
        """The connection over which the broker is still to be told."""
        self.closed = True
        connection = self._connection
        self._detach()
        if self._opening is not None:
            self._say_close(*self._opening)
        self._attached_again.set()
        self.tried.set()
        return connection

    async def close(self) -> None:
        """End it and wait for the broker to confirm. Acknowledges nothing. Idempotent."""
        connection = self._end()
        if connection is not None and connection.lost is None:
            try:
                closing = commands.CloseConsumer(consumer_id=self._consumer_id, seen=self.seen)
                await connection.request(closing, self._owner.pool.options.operation_timeout)
            except EngineError as e:
                log.debug("%s: closing the consumer: %s", self.name, e)
