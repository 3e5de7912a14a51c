"""A consumer's attachment to one segment: subscribe at its owner, grant credit, acknowledge, attach again after a loss.

Attaching. SUBSCRIBE at the segment's owner, as the newest layout names it; the answer tells the durable cursor. Errors
that pass (lost connection, stale layout, another consumer that has not detached yet) lead to another attempt; others
end the consumer. What comes next happens in this order, and that is what prevents a message from being delivered twice
or never:

    1. Acknowledgements that were lost with the attachment before are sent again, and confirmed.
    2. What of them is queued here a second time is dropped from the queue.
    3. Credit is granted (FLOW), so the first message arrives behind both.

Credit. The window is the attachment's part of the consumer's budget (credit.py). The broker sends what the window
allows; what was consumed is granted again.

Losing. What arrived and was not delivered is dropped from the consumer's queue, without credit: the broker sends it
again, from the cursor (or, for a reader, from where this reader stands), over an attachment with a window of its own.

A bad entry. An attachment whose broker cannot read on is *broken*: it still acknowledges, and delivers nothing before
it is attached again for another reason. Any state may be broken, and the thread that receives may be what finds it, so
that is a flag beside the states, which belong to the loop:

    DELIVERING    attaches, and attaches again after a loss; what arrives is queued for the consumer
    DRAINING      its segment has left the consumer's share (semantics 18): what arrives is parked, acknowledgements go
                  through, and it is not attached again. Assigned again meanwhile, it delivers what was parked
    CLOSED        frames are ignored: there may be another attachment to the segment by now
"""

from __future__ import annotations

import asyncio
import builtins
import enum
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from engine._native.consume.bucket_marks import BucketMarks
from engine._native.consume.entry_queue import EntryQueue
from engine._native.consume.receiving import Arriving
from engine._native.format.offsets import pack
from engine.client.base.options import ConsumerOptions
from engine.client.base.starting import Starting
from engine.client.consume.acknowledging import Acknowledging, Finish
from engine.client.consume.gaps import SegmentGaps
from engine.client.consume.progress import Buckets, Progress
from engine.client.net.connection import ignore_outcome
from engine.client.net.deadlines import Deadlines
from engine.client.net.link import CONSUMER, Link
from engine.client.net.pool import Pool
from engine.client.topic.layout import TopicLayout
from engine.client.topic.session import TopicSession
from engine.client.transact.scope import Scope
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
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands
from engine.wire.commands import LAZY_ACKS, Header

log = logging.getLogger(__name__)

BUSY_S_MAX = 0.2  # between two attempts while another consumer is attached to the segment
BUSY_WARNED = 10  # refusals after which the other one is perhaps not about to detach


class AttachmentState(enum.Enum):
    """See the head of this file."""

    DELIVERING = "delivering"
    DRAINING = "draining"
    CLOSED = "closed"


_MOVES = {
    AttachmentState.DELIVERING: {AttachmentState.DRAINING, AttachmentState.CLOSED},
    AttachmentState.DRAINING: {AttachmentState.DELIVERING, AttachmentState.CLOSED},
    AttachmentState.CLOSED: {AttachmentState.CLOSED},
}

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
        """Delivery begins, or begins again, at `attachment.progress.position`: grant credit."""

    def detached(self, attachment: Attachment) -> None:
        """What is queued from it will be delivered again."""

    def acknowledged_again(self, attachment: Attachment, ranges: Any) -> None:
        """These ranges are acknowledged now, and may be queued a second time."""

    def broken_off(self, attachment: Attachment, error: CorruptionError) -> None:
        """The broker cannot read on in its segment."""

    def gaps_reported(self, count: int) -> None:
        """More gaps were passed: messages may be lost there."""

    def end_reached(self, attachment: Attachment) -> None:
        """`attachment.end` is known now."""

    def segment_missing(self, attachment: Attachment, error: EngineError) -> bool:
        """The broker knows no such segment or subscription. Whether to try again."""

    def fail(self, error: EngineError) -> None:
        """The consumer cannot go on."""


class Attachment(Arriving):
    """Loop thread only.

    `end`: where a sealed segment ends, None before that is known. `pushed`: messages queued and not dropped again.
    `rewound`: the cursor was moved back since the attachment before. `lookups`: the session's count of lookups when the
    segment was first reported missing. `parked`: while it drains, the queue of what arrived. `window`: the messages and
    bytes that may be sent ahead, None before credit was granted. `announced_window`: the consumer's window in messages
    where that is not fixed. `state`, `broken`: see above.
    """

    owner: AttachmentOwner

    def __init__(
        self,
        owner: AttachmentOwner,
        segment_id: int,
        name: str,
        mode: DeliveryMode,
        start: int | None = None,
        bucket_ends: tuple[int, ...] = (),
    ) -> None:
        ordered = mode not in (DeliveryMode.QUEUE, DeliveryMode.SHARED)
        super().__init__(owner, commands.Message, ordered=ordered, by_cursor=mode is not DeliveryMode.QUEUE)
        self.segment_id = segment_id
        self.name = name
        self.mode = mode
        self.bucket_ends = bucket_ends  # of a shared segment
        self.progress = Progress(segment_id, name, start or 0)
        self.gaps = SegmentGaps()
        self.end: int | None = None
        self.pushed = 0
        self.rewound = False
        self.lookups: int | None = None
        self.parked: EntryQueue | None = None
        self.announced_window = owner.options.announced_window
        self.window: tuple[int, int] | None = None
        self.state = AttachmentState.DELIVERING
        self.tried = asyncio.Event()  # the first attempt has ended, either way
        self.transactions: set[str] = set()  # open ones, as far as known, in which it has acknowledged
        self.deadlines = Deadlines[Acknowledging](Acknowledging.missed)  # of ACKs under way
        self.parting: dict[str, Any] = {}  # further fields of the frame that close() sends
        self._link: Link | None = None  # while it is open
        self._opening: Link | None = None
        self._attaching = False  # in the background
        self._url: str | None = None  # the owner's, when it was attached
        self._seeks: tuple[str | None, int] | None = None  # (owner, its count of seeks) at the attachment before
        self._attached_again = asyncio.Event()
        self._lazy = False  # something was acknowledged lazily since hurry()
        self._owed = 0  # acknowledgements lost with an attachment: no credit is granted before they are through

    @property
    def connected(self) -> bool:
        """Whether the broker serves it now."""
        return self._link is not None

    @property
    def draining(self) -> bool:
        """Whether it delivers nothing for now; acknowledgements still go through."""
        return self.state is AttachmentState.DRAINING

    def move_to(self, state: AttachmentState) -> None:
        assert state in _MOVES[self.state], f"an attachment cannot move from {self.state} to {state}"
        self.state = state
        self.closed = state is AttachmentState.CLOSED

    def drain(self, parked: EntryQueue) -> None:
        """Deliver nothing more: what arrives goes to `parked`."""
        self.move_to(AttachmentState.DRAINING)
        self.parked = parked

    def deliver_again(self) -> None:
        """It drains no more: what arrives goes to the consumer's queue."""
        self.move_to(AttachmentState.DELIVERING)
        self.parked = None

    # -- Attached --------------------------------------------------------------------------------------------

    def other_received(self, header: Header) -> None:
        """Where a sealed segment ends."""
        if isinstance(header, commands.ReachedEnd):
            self.end = header.end
            self.owner.end_reached(self)

    def resume_writing(self) -> None:
        """Acknowledgements and credit are never held back."""

    def link_ended(self, error: EngineError) -> None:
        """Attach again. One that the broker cannot read on acknowledges, and delivers nothing."""
        if self.closed:
            return
        self._link = None
        if isinstance(error, CorruptionError):
            self._break_off(error)
            self.begin()
        else:
            self._lost(error)

    def _break_off(self, error: CorruptionError) -> None:
        """What is queued is good, and can be acknowledged; nothing follows it."""
        if not self.broken and not self.closed:
            self._attached_again.clear()
            self.owner.broken_off(self, error)

    def _lost(self, error: EngineError) -> None:
        if self.closed:
            return
        self.broken = False
        self._attached_again.clear()
        self.progress.lost()
        self.owner.detached(self)
        if self._attaches and self._survives(error):
            self.begin()

    def moved(self, layout: TopicLayout) -> None:
        """Attach to the segment's owner in this layout, if that is another one."""
        url = layout.url_of(self.segment_id)
        if self._link is not None and url not in (None, self._url) and self._attaches:
            self._close_link()
            self._lost(NotOwnerError(f"{self.name} moved to {url}"))

    def rewind(self) -> None:
        """Attach again, so that delivery begins at the cursor."""
        if self._opening is not None:
            self._opening.close()
        if self._link is not None and self._attaches:
            self._close_link()
            self._lost(NotOwnerError(f"{self.name} is read again from the cursor"))
        self.progress.moved_back()

    # -- attaching -------------------------------------------------------------------------------------------

    @property
    def _attaches(self) -> bool:
        return self.state is AttachmentState.DELIVERING

    def begin(self) -> None:
        """Attach in the background, as often as it takes."""
        if not self._attaching and not self.closed:
            self._attaching = True
            self.owner.pool.tasks.spawn(self._attach_in_background(), name=f"subscribe {self.name}")

    async def _attach_in_background(self) -> None:
        backoff = self.owner.pool.retry_delays()
        session = self.owner.session
        busy = refused = 0
        try:
            while self._attaches:
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
                    if isinstance(e, ConnectError) and self.broken:
                        self._lost(e)  # another broker may be able to read on, from what is not acknowledged
                self.tried.set()
                busy += isinstance(error, ConsumerBusyError)
                if busy == BUSY_WARNED:
                    log.warning("%s gets no messages yet: %s", self.owner.options.name, error)
                if isinstance(error, ConsumerBusyError):
                    await asyncio.sleep(min(backoff.next(), BUSY_S_MAX))
                    continue
                refused += 1
                session.refused(refused)
                await session.wait_changed(seen, backoff.next())
        except EngineError as e:  # the topic is gone
            self.owner.fail(e)
        finally:
            self._attaching = False
            self.tried.set()

    def _survives(self, error: EngineError) -> bool:
        """Whether to attach again after this; if not, its consequences."""
        if self.owner.pool.closed:
            return False
        if isinstance(error, SubscriptionKindError | SubscriptionNotFoundError):
            self.owner.fail(error)
            return False
        if isinstance(error, CorruptionError):  # the segment cannot even be opened
            self._break_off(error)
            return False
        if error.layout_stale or isinstance(error, _PASSING):
            return True
        if isinstance(error, NotFoundError):
            return self.owner.segment_missing(self, error)
        self.owner.fail(error)
        return False

    def _subscribe(self, consumer_id: int) -> commands.Subscribe:
        options = self.owner.options
        return commands.Subscribe(
            consumer_id=consumer_id,
            topic=self.name,
            subscription=options.subscription,
            consumer_name=options.name,
            mode=self.mode,
            start=self.progress.expected if self.mode is DeliveryMode.READER else None,
            initial_position=options.initial_position if options.subscription is not None else None,
            created_ms=self.owner.subscription_ms,
            priority=options.priority or None,
            transactions=(sorted(self.transactions) or None) if self.mode is DeliveryMode.EXCLUSIVE else None,
            bucketBoundaries=list(self.bucket_ends) if self.mode is DeliveryMode.SHARED else None,
        )

    async def _attach(self, url: str | None) -> None:
        if not self._attaches:  # it was ended before this attempt had a link that could be closed
            return
        owner = self.owner
        link = self._opening = Link(owner.pool, CONSUMER, self)
        try:
            answer = await link.open(url, self._subscribe, owner.pool.options.operation_timeout)
        finally:
            self._opening = None
        if answer is None:
            return
        owner.subscription_ms = owner.subscription_ms or answer.created_ms
        self._link, self.lookups = link, None
        self._url = url or link.connection.broker_url  # any broker was asked, and it was the owner
        before, self._seeks = self._seeks, (url, answer.seeks or 0)
        moved = before is not None and before[0] == url and before != self._seeks
        self.rewound = moved or answer.position < self.progress.confirmed
        if self.rewound and self.mode is not DeliveryMode.QUEUE:
            self.progress.moved_back()
        owner.gaps_reported(self.gaps.add(answer.gaps or (), self.name, owner.options.subscription))
        position = answer.position
        marks = BucketMarks(self.segment_id, self.bucket_ends, True) if self.mode is DeliveryMode.SHARED else None
        self.progress.begin(position, self.gaps.skip(position), marks)
        self._attached_again.set()
        if not self._owed:
            self._begin_delivery()

    def _begin_delivery(self) -> None:
        if not self.broken:
            self.owner.attached(self)

    # -- acknowledging ---------------------------------------------------------------------------------------

    def start_ack(
        self,
        ack_type: str,
        *,
        position: int | None = None,
        ranges: Any = None,
        buckets: Buckets | None = None,
        scope: Scope | None = None,
        lazy: bool = False,
    ) -> asyncio.Future[Any] | None:
        """Send an ACK; its future ends when the acknowledgement is durable. None while it is not attached.

        `lazy`: nothing waits for that, until hurry().
        """
        link = self._link
        if link is None:
            return None
        lazy = self._may_be_lazy(link, lazy)
        sent = link.connection.start_request(_ack_of(link, ack_type, position, ranges, buckets, scope, lazy=lazy))
        sent.add_done_callback(ignore_outcome)  # the caller may be cancelled by then
        return sent

    def acknowledge(
        self, starting: Starting, finish: Finish, ack_type: str, *,
        position: int | None = None,
        ranges: Any = None,
        buckets: Buckets | None = None,
        lazy: bool = False,
    ) -> asyncio.Future[None] | None:  # fmt: skip
        """Send an ACK outside of transactions; the future ends when it is durable, or as `finish` says.

        It is sent again after a loss. None while it is not attached. `lazy`: as start_ack().
        """
        link = self._link
        if link is None:
            return None
        until = self.owner.pool.options.operation_timeout + starting.now()
        fields = {"ack_type": ack_type, "position": position, "ranges": ranges, "buckets": buckets, "scope": None}
        under_way = Acknowledging(self, link, fields, starting, finish, until)
        self.deadlines.add(under_way, until)
        link.connection.ask(_ack_of(link, **fields, lazy=self._may_be_lazy(link, lazy)), under_way)
        return under_way.future

    def _may_be_lazy(self, link: Link, lazy: bool) -> bool:
        lazy = lazy and LAZY_ACKS in link.connection.features
        self._lazy = self._lazy or lazy
        return lazy

    def hurry(self) -> None:
        """Have the broker save what was acknowledged lazily."""
        link, lazy, self._lazy = self._link, self._lazy, False
        if link is not None and lazy:
            ack = _ack_of(link, "settle", None, None, None, None)
            link.connection.start_request(ack).add_done_callback(ignore_outcome)

    def lost_with(self, link: Link, error: EngineError) -> bool:
        """Whether what was sent over the link was lost with it, or with its connection, and not refused."""
        return isinstance(error, ConnectError) or error.layout_stale or self._link is not link

    async def acknowledged(
        self,
        sent: asyncio.Future[Any] | None,
        ack_type: str,
        *,
        position: int | None = None,
        ranges: Any = None,
        buckets: Buckets | None = None,
        scope: Scope | None = None,
    ) -> bool:
        """Wait for an ACK that start_ack() has sent; send it again after a loss. True when it is durable.

        In a transaction it is recorded then, and nothing is acknowledged before note() is called.

        False when the attachment was given up first: another consumer may have its messages by then. Raises what the
        broker answers, TimeoutError.
        """
        timeout = self.owner.pool.options.operation_timeout
        fields = {"ack_type": ack_type, "position": position, "ranges": ranges, "buckets": buckets, "scope": scope}
        try:
            async with asyncio.timeout(timeout):
                durable = sent is not None and await self._confirmed(sent)
                if not durable and not await self.send_again(fields):
                    return False
        except builtins.TimeoutError as e:
            if isinstance(e, EngineError):
                raise
            raise self.not_confirmed() from e
        if scope is None:
            self.note(position, ranges or (), buckets or ())
        return True

    def not_confirmed(self) -> TimeoutError:
        timeout = self.owner.pool.options.operation_timeout
        return TimeoutError(f"{self.name}: an acknowledgement was not confirmed within {timeout:g} s")

    def note_fields(self, fields: dict[str, Any]) -> None:
        """note() of what an ACK has said."""
        self.note(fields["position"], fields["ranges"] or (), fields["buckets"] or ())

    def note(self, position: int | None, ranges: Any, buckets: Buckets) -> None:
        """This is durable, and acknowledged."""
        ends: tuple[int, ...] = ()
        if buckets and self.progress.marks is None:
            view = self.owner.session.layout.segments.get(self.segment_id)
            ends = () if view is None else view.bucket_ends
        again = self.progress.note(position, ranges, buckets, ends)
        if again is not None:
            self.owner.acknowledged_again(self, again)

    async def send_again(self, fields: dict[str, Any]) -> bool:
        """Send it over the next attachment, before credit is granted there: else the messages come again (C2, O2).

        False when there is no next attachment. Raises TransactionConflictError when delivery begins there before what
        this would acknowledge in a transaction.
        """
        self.owner.pool.check_open()
        self._owed += 1
        readings = self.progress.readings
        backoff = self.owner.pool.retry_delays()
        try:
            while self._attaches:
                await self._attached_again.wait()
                if fields["scope"] is not None and self.progress.readings != readings:
                    raise self.progress.conflict()
                sent = self.start_ack(**fields)
                if sent is not None and await self._confirmed(sent):
                    return True
                if self._attached_again.is_set():  # refused by the broker that still serves it: pause
                    await asyncio.sleep(backoff.next())
            return False
        finally:
            self._owed -= 1
            if not self._owed and self._link is not None:
                self._begin_delivery()

    async def _confirmed(self, sent: asyncio.Future[Any]) -> bool:
        """Whether it was confirmed; False when it was lost with its attachment."""
        link = self._link
        try:
            await sent
            return True
        except EngineError as e:
            if link is None or self.lost_with(link, e):
                self.owner.pool.check_open()
                return False
            raise

    # -- credit ----------------------------------------------------------------------------------------------

    def grant(self, messages: int, size: int) -> None:
        """Grant credit for more messages and bytes."""
        link = self._link
        if link is not None and not self.broken and (messages > 0 or size > 0):
            flow = commands.Flow(consumer_id=link.ident, messages=messages, bytes=size, window=self.announced_window)
            link.connection.stream.send(flow)

    def redeliver(self, ranges: commands.Ranges, backoff: list[float] | None) -> None:
        """Send REDELIVER; nothing while it is not attached."""
        link = self._link
        if link is not None:
            back = commands.Redeliver(consumer_id=link.ident, ranges=ranges, backoff=backoff)
            link.connection.stream.send(back)

    # -- ending ----------------------------------------------------------------------------------------------

    def _close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def give_up(self) -> None:
        """End it without waiting for the broker. Idempotent."""
        link = self._end()
        if link is not None:
            link.close()

    def _end(self) -> Link | None:
        """The link over which the broker still has to be told."""
        self.move_to(AttachmentState.CLOSED)
        link, self._link = self._link, None
        if self._opening is not None:
            self._opening.close()
        self._attached_again.set()
        self.tried.set()
        return link

    async def close(self) -> None:
        """End it and wait for the broker to confirm. Acknowledges nothing. Idempotent."""
        link = self._end()
        if link is not None:
            await link.close_and_wait(self.parting)


def _ack_of(
    link: Link,
    ack_type: str,
    position: int | None,
    ranges: Any,
    buckets: Buckets | None,
    scope: Scope | None,
    *,
    lazy: bool = False,
) -> commands.Ack:
    return commands.Ack(
        consumer_id=link.ident,
        ack_type=ack_type,
        position=position,
        ranges=None if ranges is None else pack(ranges),
        buckets=None if buckets is None else [list(pair) for pair in buckets],
        transaction=None if scope is None else scope.id,
        attempt=None if scope is None else scope.attempt,
        lazy=True if lazy else None,
    )


async def all_acknowledged(waits: list[Coroutine[Any, Any, bool]]) -> list[bool]:
    """The outcome of each. A single one needs no task."""
    if len(waits) == 1:
        return [await waits[0]]
    return await asyncio.gather(*waits)
