"""An open segment on this broker, and who is attached to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from engine.aio.bag import Bag
from engine.aio.turns import Turns
from engine.broker.consumers import Consumer, LoneReader, Range, SegmentReader
from engine.broker.dispatcher import QueueConsumer, QueueDispatcher
from engine.broker.producers import Producer
from engine.broker.rates import Rate
from engine.broker.redelivery import RedeliveryCounts, range_set
from engine.errors import (
    AlreadyClosedError,
    ConsumerBusyError,
    EngineError,
    FencedError,
    InvalidArgumentError,
    NotOwnerError,
    ProducerBusyError,
    SegmentSealedError,
    SubscriptionKindError,
)

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from engine.broker.connection import Connection
    from engine.control.ports import SegmentSpec
    from engine.model.names import SegmentName
    from engine.storage.cursor import Cursor
    from engine.storage.segment import Segment

log = logging.getLogger(__name__)

SHARED = "shared"
EXCLUSIVE = "exclusive"
FENCING = "exclusive_with_fencing"
WAIT = "wait_for_exclusive"
ACCESS_MODES = (SHARED, EXCLUSIVE, FENCING, WAIT)

SAVE_AGAIN_S = 1.0  # a cursor that could not be saved, and that others wait for, is saved again after this time


class HostedSubscription:
    """One subscription in one segment: its cursor, and either one exclusive consumer or a queue. Loop thread only."""

    __slots__ = ("_dispatcher", "_drained", "_lone", "_looking", "cursor", "hosted", "left", "name", "out",
                 "redeliveries")  # fmt: skip

    def __init__(self, hosted: HostedSegment, name: str, cursor: Cursor) -> None:
        self.hosted = hosted
        self.name = name
        self.cursor = cursor
        self.out = Rate(asyncio.get_running_loop().time, heir=hosted.incoming.heir)
        self.left: dict[str, Rate] = {}  # what went lately to consumers that are not attached any more, by their names
        self._lone: LoneReader | None = None
        self._dispatcher: QueueDispatcher | None = None
        self._drained: Bag[Callable[[], None]] = Bag()
        self._looking = False  # look() will be called when the cursor is saved, or after a while
        # How often each message came back; kept while no queue consumer is attached, forgotten at a restart.
        self.redeliveries = RedeliveryCounts()

    @property
    def in_use(self) -> bool:
        """Whether anybody is attached or waits, or there are counts of redeliveries, which are nowhere else."""
        return bool(self.consumers or self._drained or self.redeliveries)

    @property
    def consumers(self) -> list[Consumer]:
        """Who is attached now."""
        if self._lone is not None:
            return [self._lone]
        return list(self._dispatcher.consumers) if self._dispatcher is not None else []

    @property
    def start(self) -> int:
        """The first offset to deliver."""
        return max(self.cursor.position, self.hosted.segment.first_offset)

    def __str__(self) -> str:
        return f"subscription {self.name!r} of {self.hosted.name}"

    # -- attaching -------------------------------------------------------------------------------------------------

    def attach_exclusive(self, connection: Connection, ident: int, name: str) -> LoneReader:
        """The consumer that reads alone; one of the same name is its own earlier session and makes room.

        Raises ConsumerBusyError, SubscriptionKindError, NotOwnerError.
        """
        self.hosted.check_open()
        if self._dispatcher is not None:
            raise SubscriptionKindError(
                f"{self} is read by queue consumers, which a stream consumer cannot join; "
                "queue_consumer(…) or another subscription is right"
            )
        if self._lone is not None:
            if self._lone.name != name:
                raise ConsumerBusyError(f"{self} is read by the consumer {self._lone.name!r}")
            self._lone.close(FencedError(f"the consumer {name!r} attached to {self} again elsewhere"))
        self._lone = LoneReader(connection, ident, self.hosted, name, start=self.start, subscription=self)
        return self._lone

    def attach_queue(self, connection: Connection, ident: int, name: str, priority: int) -> QueueConsumer:
        """One more consumer of the queue. Raises SubscriptionKindError, NotOwnerError."""
        self.hosted.check_open()
        if self._lone is not None:
            raise SubscriptionKindError(
                f"{self} is read by the stream consumer {self._lone.name!r}, which a queue consumer cannot join; "
                "stream_consumer(…) or another subscription is right"
            )
        if self._dispatcher is None:
            self._dispatcher = QueueDispatcher(self)
        consumer = QueueConsumer(connection, ident, name, self._dispatcher, priority)
        self._dispatcher.attach(consumer)
        return consumer

    def rivals(self, name: str, *, queue: bool) -> list[Connection]:
        """The connections of consumers that keep one called `name` from attaching."""
        if self._lone is not None:
            return [self._lone.connection] if queue or self._lone.name != name else []
        return [] if queue else [c.connection for c in self.consumers]

    def is_read_elsewhere(self, connection: Connection) -> bool:
        """Whether an exclusive consumer is attached over another connection."""
        return self._lone is not None and self._lone.connection is not connection

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

    def queue_left(self, dispatcher: QueueDispatcher) -> None:
        """The last queue consumer has detached."""
        if self._dispatcher is dispatcher:
            self._dispatcher = None

    def close(self, error: EngineError) -> None:
        """Its consumers are told."""
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
        return self._then_look(self.cursor.ack_individual((first, last + 1) for first, last in ranges))

    def ack_set(self, offsets: BitMap64) -> asyncio.Future[None]:
        """These. Done when durable."""
        return self._then_look(self.cursor.ack_set(offsets))

    @property
    def backlog(self) -> int:
        """Messages not acknowledged."""
        segment, cursor = self.hosted.segment, self.cursor
        gone = cursor.backlog(segment.first_offset)  # retention took it, or it was gone before the start
        return cursor.backlog(segment.durable_offset) - gone

    @property
    def drained(self) -> bool:
        """The segment is sealed and everything in it acknowledged, durably (SEMANTICS 7)."""
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
        if self._dispatcher is not None:
            self._dispatcher.tell_end()

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


class HostedSegment:
    """One open segment. Loop thread only."""

    __slots__ = ("_turns", "_vacancy", "closed", "idle_since", "incoming", "name", "producers", "readers", "segment",
                 "sent_bytes", "sent_messages", "spec", "subscriptions", "term")  # fmt: skip

    def __init__(self, spec: SegmentSpec, segment: Segment, term: int) -> None:
        self.spec = spec
        self.name: SegmentName = spec.name
        self.segment = segment
        self.term = term
        self.incoming = Rate(asyncio.get_running_loop().time)
        self.sent_messages = 0  # to all consumers and readers, since it was opened
        self.sent_bytes = 0
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, HostedSubscription] = {}
        self.readers: Bag[SegmentReader] = Bag()
        self.closed = False  # unloaded; nobody may attach any more
        self.idle_since: float | None = None  # the loop's time since when nobody was seen here
        self._turns = Turns()
        self._vacancy: list[asyncio.Future[None]] = []  # those who wait for a producer to leave, first come first

    # -- producers -------------------------------------------------------------------------------------------------

    def producer_rivals(self, name: str, access: str) -> list[Producer]:
        """Who is in the way of a producer called `name` with that access mode."""
        if access not in ACCESS_MODES:
            raise InvalidArgumentError(f"access mode {access!r}; one of {', '.join(ACCESS_MODES)} is right")
        if access == SHARED:
            return [p for p in self.producers.values() if p.access != SHARED or p.name == name]
        return list(self.producers.values())

    def attach_producer(self, connection: Connection, ident: int, name: str, access: str) -> Producer:
        """A producer. One of the same name on the same connection is its own earlier attachment and makes room.

        Raises ProducerBusyError, NotOwnerError, SegmentSealedError.
        """
        self.check_open()
        self.check_active()
        for rival in self.producer_rivals(name, access):
            if rival.name == name and rival.connection is connection:
                rival.close(FencedError(f"the producer {name!r} attached again"))
            elif access == FENCING:
                rival.close(FencedError(f"the producer {name!r} took over {self.name}"))
            else:
                raise ProducerBusyError(f"{self.name} is held by the {rival.access} producer {rival.name!r}")
        self.segment.producer_attached(name)
        producer = self.producers[name] = Producer(connection, ident, self, name, access)
        return producer

    def check_active(self) -> None:
        """Raise SegmentSealedError when nothing can be appended any more."""
        if self.segment.sealed:
            raise SegmentSealedError(f"{self.name} is sealed at {self.segment.next_offset}")

    async def seal(self) -> int:
        """Take no more appends, for ever; the end. Everybody concerned is told, also when the caller has gone.

        Raises what Segment.seal raises.
        """
        return await self._turns.take(self._seal)

    async def _seal(self) -> int:
        end = await self.segment.seal(self.term)
        self._tell_end()
        return end

    def _tell_end(self) -> None:
        """Producers are told, and consumers that have everything."""
        self.close_producers(SegmentSealedError(f"{self.name} is sealed at {self.segment.next_offset}"))
        for subscription in self.subscriptions.values():
            subscription.look()
        for reader in list(self.readers):
            if not reader.busy:
                reader.step(None)

    def detach_producer(self, producer: Producer) -> None:
        """It has left."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        waiting, self._vacancy = self._vacancy, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def producer_left(self) -> asyncio.Future[None]:
        """Done when the next producer leaves."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._vacancy.append(future)
        return future

    # -- both ------------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> Iterator[Consumer]:
        """Everybody attached through a subscription."""
        for subscription in self.subscriptions.values():
            yield from subscription.consumers

    @property
    def in_use(self) -> bool:
        """Whether anybody is attached, or something is on its way or remembered that a file does not hold."""
        segment = self.segment
        if self.producers or self.readers or segment.next_offset != segment.durable_offset or segment.sealing:
            return True
        return any(subscription.in_use for subscription in self.subscriptions.values())

    def check_open(self) -> None:
        """Raise NotOwnerError when it was unloaded since it was looked up: look again."""
        if self.closed:
            raise NotOwnerError(f"{self.name} was idle and has just been closed; attach again")

    def reading_failed(self, reader: SegmentReader, error: BaseException) -> None:
        """A read from disk failed: those who wait for it are told, nobody is given less than was stored (D6)."""
        if not isinstance(error, EngineError):
            log.error("reading %s failed", self.name, exc_info=error)
            error = EngineError(f"the broker failed: {type(error).__name__}: {error}")
        reader.owner_close(error)

    def close(self, error: EngineError) -> None:
        """Everybody attached is told."""
        self.close_producers(error)
        self.close_consumers(error)

    def close_consumers(self, error: EngineError) -> None:
        """Consumers and readers are told to go elsewhere."""
        for reader in list(self.readers):
            reader.owner_close(error)

    def close_producers(self, error: EngineError) -> None:
        """Producers are told to go elsewhere."""
        for producer in list(self.producers.values()):
            producer.close(error)

    def sample(self) -> None:
        """Bring the rates up to date."""
        self.incoming.sample()
        for subscription in self.subscriptions.values():
            subscription.sample()
