"""A subscription in an open segment: its cursor, who is attached in which mode, and when it is drained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine._native.format.offsets import range_set, runs
from engine.aio.bag import Bag
from engine.broker.delivery.consumer import Consumer, LoneReader, Range
from engine.broker.delivery.pending_acks import Participation, PendingAcks
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

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.session.connection import Connection
    from engine.storage.cursor.cursor import Cursor

SAVE_AGAIN_S = 1.0  # a cursor that could not be saved, and that others wait for, is saved again after this time


class HostedSubscription:
    """One subscription in one segment: its cursor, and who is attached. Loop thread only.

    Those are either one exclusive consumer, or stream consumers that share the segment, or queue consumers.
    """

    __slots__ = ("_deleted", "_dispatcher", "_drained", "_lone", "_looking", "_shared", "cursor", "hosted", "left",
                 "name", "out", "pending", "reassignments", "redeliveries", "seeks", "was_queue",
                 "was_shared")  # fmt: skip

    def __init__(self, hosted: HostedSegment, name: str, cursor: Cursor, parts: Participation) -> None:
        self.hosted = hosted
        self.name = name
        self.cursor = cursor
        self.out = Rate(asyncio.get_running_loop().time, heir=hosted.incoming.heir)
        self.left: dict[str, Rate] = {}  # what went lately to consumers that are not attached any more, by their names
        self._deleted: EngineError | None = None  # what ends consumers that come too late
        self._lone: LoneReader | None = None
        self._dispatcher: QueueDispatcher | None = None
        self._shared: SharedDispatcher | None = None
        self.was_shared = False
        self.reassignments = 0  # of buckets, from one sharer to another
        self.seeks = 0  # since the segment was opened
        self._drained: Bag[Callable[[], None]] = Bag()
        self._looking = False  # look() will be called when the cursor is saved, or after a while
        # How often each message came back; kept while no queue consumer is attached, forgotten at a restart.
        self.redeliveries = RedeliveryCounts()
        self.was_queue = False  # by whom it was read last
        self.pending = PendingAcks(self, parts)

    @property
    def in_use(self) -> bool:
        """Whether anybody is attached or waits, or there are counts of redeliveries, which are nowhere else.

        Likewise while a transaction acknowledges here: it is to take effect as soon as it has ended.
        """
        return bool(self.consumers or self._drained or self.redeliveries or self.pending.in_use)

    @property
    def consumers(self) -> list[Consumer]:
        """Who is attached now."""
        if self._lone is not None:
            return [self._lone]
        dispatcher = self._dispatcher or self._shared
        return list(dispatcher.consumers) if dispatcher is not None else []

    @property
    def mode(self) -> str | None:
        """In which mode consumers are attached; None while there are none."""
        return next((consumer.mode for consumer in self.consumers), None)

    @property
    def sharing(self) -> Sharing | None:
        """How stream consumers share the segment; None when they have not done so since the broker opened it."""
        if self._shared is not None:
            return self._shared.sharing
        return Sharing(len(self.hosted.spec.bucket_ends), self.reassignments) if self.was_shared else None

    @property
    def delayed(self) -> int:
        """How many messages queue consumers do not get yet, though they could."""
        return 0 if self._dispatcher is None else self._dispatcher.delayed

    @property
    def start(self) -> int:
        """The first offset to deliver."""
        return max(self.cursor.position, self.hosted.segment.first_offset)

    def __str__(self) -> str:
        return f"subscription {self.name!r} of {self.hosted.name}"

    # -- attaching -------------------------------------------------------------------------------------------------

    def attach_exclusive(
        self, connection: Connection, ident: int, name: str, transactions: Collection[int] = ()
    ) -> LoneReader:
        """The consumer that reads alone; one of the same name is its own earlier session and makes room.

        `transactions`: those in which it has acknowledged here itself; it waits for all others.
        Raises ConsumerBusyError, SubscriptionKindError, NotOwnerError, SubscriptionNotFoundError.
        """
        self._make_room(name, self.consumers)
        self._lone = LoneReader(connection, ident, self.hosted, name, start=self.start, subscription=self)
        self._lone.wait_for(self.pending.held_by_others(transactions))
        return self._lone

    def attach_shared(self, connection: Connection, ident: int, name: str) -> SharedConsumer:
        """One more of those that share the segment; it takes the place of its own earlier session. Raises as above."""
        self._make_room(name, [] if self.mode == SharedConsumer.mode else self.consumers)
        if self._shared is None:
            self._shared, self.was_shared = SharedDispatcher(self), True
        consumer = SharedConsumer(connection, ident, name, self._shared)
        self._shared.attach(consumer)
        return consumer

    def _make_room(self, name: str, attached: list[Consumer]) -> None:
        """Close the earlier session of a stream consumer; nobody else's."""
        self._check_open()
        self.was_queue = self._dispatcher is not None
        if self._dispatcher is not None:
            raise SubscriptionKindError(
                f"{self} is read by queue consumers, which a stream consumer cannot join; "
                "queue_consumer(…) or another subscription is right"
            )
        for other in attached:
            if other.name != name:
                raise ConsumerBusyError(f"{self} is read by the {other.mode} consumer {other.name!r}")
        for own in attached:
            own.close(FencedError(f"the consumer {name!r} attached to {self} again elsewhere"))

    def attach_queue(self, connection: Connection, ident: int, name: str, priority: int) -> QueueConsumer:
        """One more consumer of the queue. Raises SubscriptionKindError, NotOwnerError, SubscriptionNotFoundError."""
        self._check_open()
        if self._dispatcher is None and (attached := self.consumers):
            raise SubscriptionKindError(
                f"{self} is read by the stream consumer {attached[0].name!r}, which a queue consumer cannot join; "
                "stream_consumer(…) or another subscription is right"
            )
        self.was_queue = True
        if self._dispatcher is None:
            self._dispatcher = QueueDispatcher(self)
        consumer = QueueConsumer(connection, ident, name, self._dispatcher, priority)
        self._dispatcher.attach(consumer)
        return consumer

    def rivals(self, name: str, mode: str) -> list[Connection]:
        """The connections of consumers that keep one called `name` from attaching in that mode."""
        if mode != LoneReader.mode and self.mode == mode:
            return []
        streams = QueueConsumer.mode not in (mode, self.mode)  # else one of that name is another consumer even so
        return [consumer.connection for consumer in self.consumers if not (streams and consumer.name == name)]

    def is_read_elsewhere(self, connection: Connection, name: str) -> bool:
        """Whether a stream consumer of that name is attached over another connection."""
        return any(c.name == name and c.connection is not connection for c in self.consumers)

    def lone_left(self, consumer: LoneReader) -> None:
        """The exclusive consumer has detached."""
        if self._lone is consumer:
            self._lone = None
            self.left[consumer.name] = consumer.sent

    def sample(self) -> None:
        """Bring the rates up to date, and forget those of consumers that left long ago."""
        for rate in (self.out, *(consumer.sent for consumer in self.consumers), *self.left.values()):
            rate.sample()
        self.left = {name: rate for name, rate in self.left.items() if not rate.silent}

    def shared_left(self, dispatcher: SharedDispatcher) -> None:
        """The last of those that shared the segment has detached."""
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
        """It is no more: its consumers are told, also one that is just being attached."""
        self._deleted = error
        self.close(error)

    def close(self, error: EngineError) -> None:
        """Its consumers are told."""
        if self._shared is not None:
            self._shared.close(error)
            return
        for consumer in self.consumers:
            consumer.close(error)

    # -- acknowledging ---------------------------------------------------------------------------------------------

    def ack_cumulative(self, position: int) -> asyncio.Future[None]:
        """Everything before `position`. Done when durable."""
        if self.redeliveries and position > 0:
            self.redeliveries.clear(range_set(0, position - 1))
        return self._then_look(self.cursor.ack_cumulative(position))

    def ack_individual(self, ranges: list[Range]) -> asyncio.Future[None]:
        """These, inclusive. Done when durable."""
        return self.ack_runs(0, [(first, last + 1) for first, last in ranges])

    def ack_set(self, offsets: BitMap64, below: int = 0) -> asyncio.Future[None]:
        """These, and everything `below`, with what nobody gets among them. Done when durable."""
        if offsets and (hidden := self.hosted.hidden(self.cursor.position, offsets.max())) is not None:
            offsets = offsets | hidden
        return self._then_look(self.cursor.ack_set(offsets, below))

    def ack_runs(self, below: int, runs: list[Range]) -> asyncio.Future[None]:
        """Everything `below`, and these runs [start, stop), likewise. Done when durable."""
        if runs and self.hosted.hidden(self.cursor.position, max(stop for _, stop in runs)) is not None:
            offsets = BitMap64()
            for start, stop in runs:
                offsets.add_range(start, stop)
            return self.ack_set(offsets, below)
        return self._then_look(self.cursor.ack_individual(runs, below))

    # -- in transactions -------------------------------------------------------------------------------------------

    def free(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The runs [start, stop) of what is neither acknowledged nor held for a transaction inside [start, stop)."""
        found = self.cursor.unacked(start, stop)
        if not self.pending or not found:
            return found
        left = self.unacked(start, stop)
        left -= self.pending.offsets
        return [(first, last + 1) for first, last in runs(left)]

    def unacked(self, start: int, stop: int) -> BitMap64:
        """What is not acknowledged inside [start, stop)."""
        left = BitMap64()
        for first, end in self.cursor.unacked(start, stop):
            left.add_range(first, end)
        return left

    def due_from(self, offset: int) -> int:
        """The first offset from this one on that is not acknowledged: what is before it need not be read."""
        end = self.cursor.acked_end
        if offset >= end or self.cursor.unacked(offset, offset + 1):
            return offset
        left = self.cursor.unacked(offset, end)
        return left[0][0] if left else end

    async def skip(self, first: int, last: int) -> None:
        """Acknowledge what an operator gives up. Its consumers attach again, and go on behind it. Durable then."""
        await self.ack_individual([(first, last)])
        self.close(NotOwnerError(f"{self} goes on behind the offsets {first}..{last}; attach again"))

    def unacked_count(self, start: int, stop: int) -> int:
        """How many of [start, stop) are not acknowledged."""
        return sum(end - first for first, end in self.cursor.unacked(start, stop))

    @property
    def free_from(self) -> int:
        """Everything from here on is free."""
        return max(self.cursor.acked_end, self.pending.offsets.max() + 1 if self.pending else 0)

    def take(self, offsets: BitMap64) -> asyncio.Future[None]:
        """What a transaction has acknowledged takes effect. Done when durable."""
        self.redeliveries.clear(offsets)
        return self.ack_set(offsets)

    def take_back(self, offsets: BitMap64) -> None:
        """What a transaction has acknowledged is due again: it was aborted.

        In a queue to anybody, as if it was handed back. Who reads a stream begins again at the cursor: he has gone on,
        and would acknowledge these with what is behind them.
        """
        if self.hosted.closed:
            return
        if self._dispatcher is not None:
            self._dispatcher.due_again(offsets)
        elif self.was_queue:
            self.redeliveries.increment(offsets)
        else:
            self.seeks += 1
            self.close(
                NotOwnerError(f"{self}: a transaction was aborted, and what it acknowledged is due; attach again")
            )

    def resume(self) -> None:
        """Something is not held any more: who reads the stream and waits for it goes on."""
        if self.hosted.closed:
            return
        if self._lone is not None:
            self._lone.pump()
        elif self._shared is not None:
            self._shared.resume()

    async def end(self) -> None:
        """Finish saving; nothing is acknowledged here any more. Idempotent."""
        await self.pending.close()
        await self.cursor.close()

    # -- what is left ----------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Messages not acknowledged. Those of transactions that are open count, those that nobody gets do not."""
        return self.backlog_below(self.hosted.segment.durable_offset)

    def backlog_below(self, offset: int) -> int:
        """Those that lie below an offset."""
        cursor, first = self.cursor, self.hosted.segment.first_offset
        gone = cursor.backlog(first)  # retention took it, or it was gone before the start
        unacknowledged = max(0, cursor.backlog(offset) - gone)
        hidden = self.hosted.hidden(max(first, cursor.position), offset) if unacknowledged else None
        return unacknowledged if hidden is None else unacknowledged - cursor.unacked_of(hidden, offset)

    async def settled(self) -> int:
        """The offset below which nothing is needed any more, once that is durable. Raises as an acknowledgement."""
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
        asyncio.get_running_loop().call_soon(self.look)
        return lambda: self._drained.discard(callback)

    def look(self) -> None:
        """Tell those who wait for it, if the segment is drained."""
        if not self.hosted.segment.sealed or self.backlog:
            return
        if self.cursor.unsaved:
            self._look_when_saved()
            return
        callbacks, self._drained = self._drained, Bag()
        for callback in callbacks:
            callback()
        dispatcher = self._dispatcher or self._shared
        if dispatcher is not None:
            dispatcher.tell_end()

    def _then_look(self, saved: asyncio.Future[None]) -> asyncio.Future[None]:
        if self.hosted.segment.sealed:
            saved.add_done_callback(self._saved)
        return saved

    def _look_when_saved(self) -> None:
        """What was acknowledged is still on its way to the store, or did not get there."""
        if not self._looking:
            self._looking = True
            self.cursor.ack_individual(()).add_done_callback(self._looked)

    def _looked(self, saved: asyncio.Future[None]) -> None:
        self._looking = False
        self._saved(saved)

    def _saved(self, saved: asyncio.Future[None]) -> None:
        error = None if saved.cancelled() else saved.exception()
        if error is None:
            self.look()
        elif not isinstance(error, (AlreadyClosedError, FencedError)) and not self._looking:
            self._looking = True  # nobody has to acknowledge once more: it is saved as soon as that can be done
            asyncio.get_running_loop().call_later(SAVE_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        if not self.hosted.closed:
            self.look()
