"""`HostedSubscription`: a subscription in an open segment: its cursor, its consumers, and when it is drained.

*Drained* means: the segment is sealed and everything in it acknowledged, durably (semantics 7). Only then do consumers
go on to the children of a segment that was split or merged. check_drained() is called whenever that may have become
true: the segment was sealed, an acknowledgement was saved, a consumer has read to the end. If messages are acknowledged
and the cursor is not saved, check_drained() runs again when it is; if it cannot be saved, a save is tried again
after SAVE_AGAIN_S. Once drained, the callbacks of when_drained() run and consumers are sent the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine._native.format.offsets import range_set, runs
from engine.aio.bag import Bag
from engine.broker.delivery.consumer import Consumer, LoneReader, Range
from engine.broker.delivery.opened import Participation
from engine.broker.delivery.pending_acks import PendingAcks
from engine.broker.delivery.queue import QueueConsumer, QueueDispatcher
from engine.broker.delivery.redelivery import RedeliveryCounts
from engine.broker.delivery.shared import SharedConsumer, SharedDispatcher, Sharing
from engine.broker.pools.rates import Rate
from engine.errors import (
    AlreadyClosedError,
    ConsumerBusyError,
    EngineError,
    FencedError,
    NotOwnerError,
    SubscriptionKindError,
)
from engine.model.subscriptions import DeliveryMode

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.ports import Peer
    from engine.storage.cursor.cursor import Cursor

SAVE_AGAIN_S = 1.0  # until a save of a cursor is tried again that has failed, and that drain callbacks wait for


class HostedSubscription:
    """One subscription in one segment. Loop thread only.

    Its consumers are of one kind: one exclusive consumer, or stream consumers that share the segment, or queue
    consumers.
    """

    __slots__ = (
        "_checking",
        "_deleted",
        "_dispatcher",
        "_drained",
        "_lone",
        "_shared",
        "cursor",
        "hosted",
        "left",
        "name",
        "out",
        "pending",
        "reassignments",
        "redeliveries",
        "seeks",
        "was_queue",
        "was_shared",
    )  # fmt: skip

    def __init__(self, hosted: HostedSegment, name: str, cursor: Cursor, parts: Participation) -> None:
        self.hosted = hosted
        self.name = name
        self.cursor = cursor
        self.out = Rate(asyncio.get_running_loop().time, heir=hosted.incoming.heir)
        self.left: dict[str, Rate] = {}  # recent rates of consumers that have detached, by name
        self._deleted: EngineError | None = None  # the error of later attachments
        self._lone: LoneReader | None = None
        self._dispatcher: QueueDispatcher | None = None
        self._shared: SharedDispatcher | None = None
        self.was_shared = False
        self.reassignments = 0  # of buckets, from one consumer to another
        self.seeks = 0  # since the segment was opened
        self._drained: Bag[Callable[[], None]] = Bag()
        self._checking = False  # check_drained() will be called when the cursor is saved, or by a timer
        # Redeliveries of each message; kept while no queue consumer is attached, lost at a restart.
        self.redeliveries = RedeliveryCounts()
        self.was_queue = False  # its last consumers were queue consumers
        self.pending = PendingAcks(self, parts)

    @property
    def in_use(self) -> bool:
        """Whether consumers or drain callbacks are attached, or memory holds what no file does.

        That is: counts of redeliveries, and acknowledgements of transactions that are not applied.
        """
        return bool(self.consumers or self._drained or self.redeliveries or self.pending.in_use)

    @property
    def consumers(self) -> list[Consumer]:
        """The attached consumers."""
        if self._lone is not None:
            return [self._lone]
        dispatcher = self._dispatcher or self._shared
        return list(dispatcher.consumers) if dispatcher is not None else []

    @property
    def mode(self) -> DeliveryMode | None:
        """The mode of the attached consumers; None while there are none."""
        return next((consumer.mode for consumer in self.consumers), None)

    @property
    def sharing(self) -> Sharing | None:
        """How stream consumers share the segment; None if they have not since the broker opened it."""
        if self._shared is not None:
            return self._shared.sharing
        return Sharing(len(self.hosted.spec.bucket_ends), self.reassignments) if self.was_shared else None

    @property
    def delayed(self) -> int:
        """Messages that are withheld from queue consumers until their time comes."""
        return 0 if self._dispatcher is None else self._dispatcher.delayed

    @property
    def start(self) -> int:
        """The first offset to deliver."""
        return max(self.cursor.position, self.hosted.segment.first_offset)

    def __str__(self) -> str:
        return f"subscription {self.name!r} of {self.hosted.name}"

    # -- attaching -------------------------------------------------------------------------------------------------

    def attach_exclusive(
        self, connection: Peer, ident: int, name: str, transactions: Collection[int] = ()
    ) -> LoneReader:
        """Attach the consumer that reads alone. One of the same name is its own earlier session, and is closed.

        `transactions`: open ones in which it has acknowledged here itself; it waits for the end of all others.
        Raises ConsumerBusyError, SubscriptionKindError, NotOwnerError, SubscriptionNotFoundError.
        """
        self._make_room(name, self.consumers)
        self._lone = LoneReader(connection, ident, self.hosted, name, start=self.start, subscription=self)
        self._lone.wait_for(self.pending.held_by_others(transactions))
        return self._lone

    def attach_shared(self, connection: Peer, ident: int, name: str) -> SharedConsumer:
        """Attach a consumer that shares the segment. It replaces its own earlier session. Raises as above."""
        self._make_room(name, [] if self.mode is DeliveryMode.SHARED else self.consumers)
        if self._shared is None:
            self._shared, self.was_shared = SharedDispatcher(self), True
        consumer = SharedConsumer(connection, ident, name, self._shared)
        self._shared.attach(consumer)
        return consumer

    def _make_room(self, name: str, attached: list[Consumer]) -> None:
        """Close the earlier session of a stream consumer; consumers of other names keep it from attaching."""
        self._check_open()
        self.was_queue = self._dispatcher is not None
        if self._dispatcher is not None:
            raise SubscriptionKindError(
                f"{self} is read by queue consumers, which a stream consumer cannot join; "
                "use queue_consumer(…) or another subscription"
            )
        for other in attached:
            if other.name != name:
                raise ConsumerBusyError(f"{self} is read by the {other.mode} consumer {other.name!r}")
        for own in attached:
            own.close(FencedError(f"the consumer {name!r} attached to {self} again elsewhere"))

    def attach_queue(self, connection: Peer, ident: int, name: str, priority: int) -> QueueConsumer:
        """Attach a queue consumer. Raises SubscriptionKindError, NotOwnerError, SubscriptionNotFoundError."""
        self._check_open()
        if self._dispatcher is None and (attached := self.consumers):
            raise SubscriptionKindError(
                f"{self} is read by the stream consumer {attached[0].name!r}, which a queue consumer cannot join; "
                "use stream_consumer(…) or another subscription"
            )
        self.was_queue = True
        if self._dispatcher is None:
            self._dispatcher = QueueDispatcher(self)
        consumer = QueueConsumer(connection, ident, name, self._dispatcher, priority)
        self._dispatcher.attach(consumer)
        return consumer

    def deal_with(self, make: Callable[[HostedSubscription], QueueDispatcher]) -> QueueDispatcher:
        """The dispatcher of its queue consumers; where there are none, one that `make` makes. Raises as attach_queue().

        Another protocol may deal in another way.
        """
        self._check_open()
        if self._dispatcher is None and (attached := self.consumers):
            raise SubscriptionKindError(f"{self} is read by the stream consumer {attached[0].name!r}")
        if self._dispatcher is None:
            self._dispatcher = make(self)
        return self._dispatcher

    def rivals(self, name: str, mode: DeliveryMode) -> list[Peer]:
        """The connections of consumers that keep one of that name from attaching in that mode."""
        if mode is not DeliveryMode.EXCLUSIVE and self.mode is mode:
            return []
        streams = DeliveryMode.QUEUE not in (mode, self.mode)  # among those, one of that name is an earlier session
        return [consumer.connection for consumer in self.consumers if not (streams and consumer.name == name)]

    def is_read_elsewhere(self, connection: Peer, name: str) -> bool:
        """Whether a stream consumer of that name is attached over another connection."""
        return any(c.name == name and c.connection is not connection for c in self.consumers)

    def lone_left(self, consumer: LoneReader) -> None:
        """The exclusive consumer has detached."""
        if self._lone is consumer:
            self._lone = None
            self.left[consumer.name] = consumer.sent

    def sample(self) -> None:
        """Bring the rates up to date, and forget those of consumers that detached long ago."""
        for rate in (self.out, *(consumer.sent for consumer in self.consumers), *self.left.values()):
            rate.sample()
        self.left = {name: rate for name, rate in self.left.items() if not rate.silent}

    def shared_left(self, dispatcher: SharedDispatcher) -> None:
        """The last consumer that shared the segment has detached."""
        if self._shared is dispatcher:
            self._shared = None

    def queue_left(self, dispatcher: QueueDispatcher) -> None:
        """The last queue consumer has detached."""
        if self._dispatcher is dispatcher:
            self._dispatcher = None

    def _check_open(self) -> None:
        self.hosted.check_open()
        if self._deleted is not None:
            raise self._deleted

    def delete(self, error: EngineError) -> None:
        """It was deleted: close its consumers, and refuse any that is being attached."""
        self._deleted = error
        self.close(error)

    def close(self, error: EngineError) -> None:
        """Close its consumers with an error."""
        if self._shared is not None:
            self._shared.close(error)
            return
        for consumer in self.consumers:
            consumer.close(error)

    # -- acknowledging ---------------------------------------------------------------------------------------------

    def ack_cumulative(self, position: int, *, lazy: bool = False) -> asyncio.Future[None]:
        """Acknowledge everything before `position`. Done when durable. `lazy`: nothing waits for that."""
        if self.redeliveries and position > 0:
            self.redeliveries.clear(range_set(0, position - 1))
        return self._then_check_drained(self.cursor.ack_cumulative(position, lazy=lazy and self._deferrable))

    def ack_individual(self, ranges: list[Range]) -> asyncio.Future[None]:
        """Acknowledge ranges, inclusive. Done when durable."""
        return self.ack_runs(0, [(first, last + 1) for first, last in ranges])

    def ack_set(self, offsets: BitMap64, below: int = 0, *, lazy: bool = False) -> asyncio.Future[None]:
        """Acknowledge offsets, everything `below`, and hidden messages among them. Done when durable."""
        if offsets and (hidden := self.hosted.hidden(self.cursor.position, offsets.max())) is not None:
            offsets = offsets | hidden
        return self._then_check_drained(self.cursor.ack_set(offsets, below, lazy=lazy and self._deferrable))

    def ack_runs(self, below: int, runs: list[Range], *, lazy: bool = False) -> asyncio.Future[None]:
        """Acknowledge runs [start, stop), and as ack_set(). Done when durable."""
        if runs and self.hosted.hidden(self.cursor.position, max(stop for _, stop in runs)) is not None:
            offsets = BitMap64()
            for start, stop in runs:
                offsets.add_range(start, stop)
            return self.ack_set(offsets, below, lazy=lazy)
        return self._then_check_drained(self.cursor.ack_individual(runs, below, lazy=lazy and self._deferrable))

    @property
    def _deferrable(self) -> bool:
        """Whether a save may wait: those that drain a sealed segment release the segments behind it."""
        return not self.hosted.segment.sealed

    # -- in transactions -------------------------------------------------------------------------------------------

    def free(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The runs of [start, stop) that are neither acknowledged nor held by a transaction."""
        found = self.cursor.unacked(start, stop)
        if not self.pending or not found:
            return found
        left = self.unacked(start, stop)
        left -= self.pending.offsets
        return [(first, last + 1) for first, last in runs(left)]

    def unacked(self, start: int, stop: int) -> BitMap64:
        """The offsets in [start, stop) that are not acknowledged."""
        left = BitMap64()
        for first, end in self.cursor.unacked(start, stop):
            left.add_range(first, end)
        return left

    def due_from(self, offset: int) -> int:
        """The first offset from this one on that is not acknowledged."""
        end = self.cursor.acked_end
        if offset >= end or self.cursor.unacked(offset, offset + 1):
            return offset
        left = self.cursor.unacked(offset, end)
        return left[0][0] if left else end

    async def skip(self, first: int, last: int) -> None:
        """Acknowledge messages that an operator gives up, durably. Consumers attach again, and do not get them."""
        await self.ack_individual([(first, last)])
        self.close(NotOwnerError(f"{self} skips the offsets {first}..{last}; attach again"))

    def unacked_count(self, start: int, stop: int) -> int:
        """The number of offsets in [start, stop) that are not acknowledged."""
        return sum(end - first for first, end in self.cursor.unacked(start, stop))

    @property
    def free_from(self) -> int:
        """From here on no offset is acknowledged or held by a transaction."""
        return max(self.cursor.acked_end, self.pending.offsets.max() + 1 if self.pending else 0)

    def take(self, offsets: BitMap64) -> asyncio.Future[None]:
        """Apply acknowledgements of a committed transaction. Done when durable."""
        self.redeliveries.clear(offsets)
        return self.ack_set(offsets)

    def take_back(self, offsets: BitMap64) -> None:
        """Deliver messages again that an aborted transaction has acknowledged.

        A queue treats them as handed back. A stream reader is reset to the cursor; a later cumulative acknowledgement
        would otherwise cover these messages.
        """
        if self.hosted.closed:
            return
        if self._dispatcher is not None:
            self._dispatcher.due_again(offsets)
        elif self.was_queue:
            self.redeliveries.increment(offsets)
        else:
            self.seeks += 1
            self.close(NotOwnerError(f"{self}: messages of an aborted transaction are due again; attach again"))

    def resume(self) -> None:
        """A transaction has ended: stream consumers that waited for it go on."""
        if self.hosted.closed:
            return
        if self._lone is not None:
            self._lone.pump()
        elif self._shared is not None:
            self._shared.resume()

    async def end(self) -> None:
        """Save the cursor, and take no more acknowledgements. Idempotent."""
        await self.pending.close()
        await self.cursor.close()

    # -- the backlog -----------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Messages not acknowledged. Those held by open transactions count, hidden ones do not."""
        return self.backlog_below(self.hosted.segment.durable_offset)

    def backlog_below(self, offset: int) -> int:
        """The backlog below an offset."""
        return self.cursor.waiting(self.hosted.segment.first_offset, offset, self.hosted.hidden)

    async def settled(self) -> int:
        """The offset below which all is acknowledged, once that is durable. Raises as an acknowledgement."""
        hidden = self.hosted.hidden(self.cursor.position, self.hosted.readable)
        position = self.cursor.position if hidden is None else self.cursor.position_over(hidden)
        await self.cursor.settled()
        return position

    @property
    def drained(self) -> bool:
        """The segment is sealed and everything in it acknowledged, durably (semantics 7)."""
        return self.hosted.segment.sealed and not self.cursor.unsaved and self.backlog == 0

    def when_drained(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call it once, soon, when `drained`. The result cancels."""
        self._drained.add(callback)
        asyncio.get_running_loop().call_soon(self.check_drained)
        return lambda: self._drained.discard(callback)

    def check_drained(self) -> None:
        """Run the drain callbacks and send the end, if the segment is drained."""
        if not self.hosted.segment.sealed or self.backlog:
            return
        if self.cursor.unsaved:
            self._check_when_saved()
            return
        callbacks, self._drained = self._drained, Bag()
        for callback in callbacks:
            callback()
        dispatcher = self._dispatcher or self._shared
        if dispatcher is not None:
            dispatcher.send_end()

    def _then_check_drained(self, saved: asyncio.Future[None]) -> asyncio.Future[None]:
        if self.hosted.segment.sealed:
            saved.add_done_callback(self._saved)
        return saved

    def _check_when_saved(self) -> None:
        """Acknowledgements are being saved, or their last save has failed."""
        if not self._checking:
            self._checking = True
            self.cursor.ack_individual(()).add_done_callback(self._checked)

    def _checked(self, saved: asyncio.Future[None]) -> None:
        self._checking = False
        self._saved(saved)

    def _saved(self, saved: asyncio.Future[None]) -> None:
        error = None if saved.cancelled() else saved.exception()
        if error is None:
            self.check_drained()
        elif not isinstance(error, (AlreadyClosedError, FencedError)) and not self._checking:
            self._checking = True  # save again without another acknowledgement
            asyncio.get_running_loop().call_later(SAVE_AGAIN_S, self._check_again)

    def _check_again(self) -> None:
        self._checking = False
        if not self.hosted.closed:
            self.check_drained()
