"""Consumers attached to a segment: credit, blocks of messages, and the kinds that read a segment alone.

A client grants credit in messages and bytes (FLOW). A consumer is sent blocks of entries as long as it has credit for
both and its connection is writable. One block may exceed the credit for bytes. The credit for messages may be exceeded
where the client has said that its window follows its pace, and where the window is as wide as any entry; else the last
entry is sent in parts (parts.py).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from engine._native.format.offsets import check_position, offset_set, range_set, runs
from engine._native.serve.delivery import LoneOutlet, Outlet
from engine.broker.delivery import transactional_acks
from engine.broker.delivery.bucket_acks import acknowledge_alone, positions_of
from engine.broker.delivery.parts import payload_between
from engine.broker.delivery.transactional_acks import transaction_of
from engine.broker.pools.rates import Rate
from engine.broker.segment.reader import SegmentReader
from engine.errors import EngineError, InvalidArgumentError, UnsupportedError
from engine.limits import READ_BLOCK_SIZE
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands

if TYPE_CHECKING:
    from engine._native.serve.blocks import Block
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.limits.attendance import Attendance
    from engine.broker.limits.limits import BrokerLimits
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.ports import Peer

CREDIT_MAX = 2**48  # more than any client has room for, and still an int64

Range = tuple[int, int]  # inclusive


def consumer_key(subscription: str | None, name: str) -> str:
    """What it counts as, where consumers are counted."""
    return f"{subscription or ''}\n{name}"


class Consumer(Outlet, ABC):
    """One attachment of a consumer. Loop thread only."""

    __slots__ = ()
    mode: DeliveryMode
    connection: Peer
    hosted: HostedSegment
    subscription: HostedSubscription | None
    attendance: Attendance | None

    def __init__(
        self,
        connection: Peer,
        ident: int,
        hosted: HostedSegment,
        name: str,
        subscription: HostedSubscription | None,
    ) -> None:
        time, heir = asyncio.get_running_loop().time, hosted.incoming.heir
        before = None if subscription is None else subscription.left.pop(name, None)
        out = Rate(time) if subscription is None else subscription.out
        sent = Rate(time, heir=heir) if before is None else before
        super().__init__(connection, ident, hosted, subscription, commands.Message, out, sent)
        self.name = name
        self.seeks = 0 if subscription is None else subscription.seeks

    def add_credit(self, messages: int, size: int, window: int | None = None) -> None:
        """The client has room for more. `window`: its present one, in messages, where that follows its pace."""
        self.paced = window is not None
        if window is not None:
            self.window = min(max(window, 1), CREDIT_MAX)
        messages, size = min(max(messages, 0), CREDIT_MAX), min(max(size, 0), CREDIT_MAX)
        if self.attendance is not None and (throttle := self.attendance.throttle) is not None:
            throttle.ask(messages, size)
        else:
            self._credit(messages, size)

    def _credit(self, messages: int, size: int) -> None:
        self.messages_credit = min(self.messages_credit + messages, CREDIT_MAX)
        self.bytes_credit = min(self.bytes_credit + size, CREDIT_MAX)
        if not self.paced:
            self.window = max(self.window, self.messages_credit)
        self.pump()

    def limit(self, limits: BrokerLimits) -> None:
        """Go by these limits from now on: credit is withheld while the rates do not allow it."""
        if self.closed:
            return
        topic, role = self.hosted.name.topic, self.connection.role
        if self.attendance is None:
            subscription = self.subscription
            name = consumer_key(None if subscription is None else subscription.name, self.name)
            several = subscription is None or self.mode is DeliveryMode.QUEUE
            self.attendance = limits.attend_consumer(self.hosted.name, role, name, self.connection, several=several)
        buckets, throttle = limits.buckets(topic, role, "dispatch"), self.attendance.throttle
        if throttle is not None:
            throttle.change(buckets)
            self.attendance.throttle = throttle if buckets else None
        elif buckets:
            from engine.broker.limits.throttle import Throttle

            withheld = max(self.messages_credit, 0), max(self.bytes_credit, 0)
            self.messages_credit -= withheld[0]
            self.bytes_credit -= withheld[1]
            self.attendance.throttle = Throttle(buckets, self._credit)
            self.attendance.throttle.ask(*withheld)

    def _absent(self) -> None:
        self.closed = True
        if self.attendance is not None:
            if (throttle := self.attendance.throttle) is not None:  # else one that comes back gets it for nothing
                throttle.charge(max(-self.messages_credit, 0), max(-self.bytes_credit, 0))
            self.attendance.close()

    def send_end(self, end: int) -> None:
        """Report that the segment ends at `end`, and that the consumer has all of it."""
        self.connection.send(commands.ReachedEnd(consumer_id=self.ident, end=end))

    def close(self, error: EngineError | None = None) -> None:
        """End the attachment; an error is sent to the client."""
        if self.closed:
            return
        self._absent()
        self.detach()
        self.connection.forget(self)
        if error is not None:
            closing = commands.CloseConsumer(consumer_id=self.ident, code=error.code, message=str(error))
            self.connection.send(closing)

    def connection_lost(self) -> None:
        """The connection is closed: end the attachment."""
        if not self.closed:
            self._absent()
            self.detach()

    @property
    @abstractmethod
    def pending(self) -> int:
        """Messages that it was sent and has not acknowledged."""

    @abstractmethod
    def pump(self) -> None:
        """Send blocks until credit, room or durable messages run out."""

    @abstractmethod
    def detach(self) -> None:
        """Stop reading the segment."""

    @abstractmethod
    def acknowledge(self, header: commands.Ack) -> Awaitable[Any]:
        """Done when the acknowledgement is durable. Raises EngineError."""

    async def settled(self) -> None:
        """Hurry the acknowledgements of the subscription; done when all so far are durable. Raises EngineError."""
        if self.subscription is not None:
            await self.subscription.cursor.settled()

    def leaving(self, header: commands.CloseConsumer) -> None:
        """The client closes it, with CLOSE_CONSUMER's header."""

    def redeliver(self, header: commands.Redeliver) -> None:
        """Deliver `ranges` again. Raises UnsupportedError for all but queue consumers."""
        raise UnsupportedError("REDELIVER requires a queue consumer; a stream consumer attaches again instead")


class LoneReader(LoneOutlet, Consumer):
    """Reads a segment alone and in order: an exclusive consumer of a subscription, or a reader without one."""

    __slots__ = ("_end_sent",)
    mode = DeliveryMode.EXCLUSIVE
    waits_for: BitMap64 | None

    def __init__(
        self,
        connection: Peer,
        ident: int,
        hosted: HostedSegment,
        name: str,
        *,
        start: int,
        subscription: HostedSubscription | None = None,
    ) -> None:
        Consumer.__init__(self, connection, ident, hosted, name, subscription)
        self._end_sent = False
        self.read_with(SegmentReader(hosted, self.step, self.close), start)
        hosted.readers.add(self.reader)

    @property
    def pending(self) -> int:
        """The messages between the cursor and the last one sent."""
        if self.subscription is None:
            return 0
        return self.subscription.backlog_below(self.next_offset)

    def wait_for(self, held: BitMap64) -> None:
        """Deliver nothing until these, which open transactions have acknowledged, are decided.

        Earlier delivery would let a cumulative acknowledgement cover messages that are due again after an abort.
        pump() is called when a transaction ends.
        """
        self.waits_for = held or None

    def is_waiting(self) -> bool:
        """Whether some of that is not decided."""
        if self.waits_for is not None:
            assert self.subscription is not None
            if not self.waits_for.intersect(self.subscription.pending.offsets):
                self.waits_for = None
        return self.waits_for is not None

    def end_reached(self) -> None:
        """It has all of a sealed segment."""
        if not self._end_sent:
            self._end_sent = True
            self.send_end(self.hosted.segment.messages_end)

    def block_read(self, block: Block) -> None:
        """A block that was not in memory is there. The next one is read from disk while this one is sent."""
        if self._may_read_ahead(block):  # so there is credit for all of this block
            self.next_offset = block.next_offset
            self.reader.read_ahead(self.next_offset, self.connection.block_size)
        if self.reader.busy:  # that read begins in the next turn of the loop, before this block is sent
            asyncio.get_running_loop().call_soon(self._send_read, block)
        else:
            self._send_read(block)

    def _may_read_ahead(self, block: Block) -> bool:
        more = block.next_offset < self.hosted.segment.durable_offset and self.connection.writable
        return more and self.messages_credit > block.messages and self.bytes_credit > block.size + READ_BLOCK_SIZE

    def _send_read(self, block: Block) -> None:
        if not self.closed:
            self.send_or_part(block)
            self.pump()

    def send_part(self, block: Block, skip: list[list[int]]) -> None:
        """Send as many messages as there is credit for."""
        start = max(block.first_offset, self.next_offset)
        skipped = offset_set(skip, block.next_offset)
        wanted = range_set(start, block.next_offset - 1) - skipped
        stop = block.next_offset if len(wanted) <= self.messages_credit else wanted[self.messages_credit]
        payload, first, end = payload_between(self.hosted.environment.open_entries, block, start, stop)
        self.next_offset = self.part_end = end
        skipped &= range_set(first, end - 1)
        self.send_block(payload, block.salt, end - first - len(skipped), runs(skipped))

    def skipped(self, block: Block) -> list[list[int]]:
        """Ranges of a block that the consumer must not get, or was sent as a part of its first entry."""
        skip = self._acknowledged(block)
        if block.first_offset < self.part_end:
            sent = range_set(block.first_offset, self.part_end - 1)
            skip = runs(sent | offset_set(skip, block.next_offset))
        hidden = self.hosted.hidden(block.first_offset, block.next_offset)
        return skip if hidden is None else runs(hidden | offset_set(skip, block.next_offset))

    def _acknowledged(self, block: Block) -> list[list[int]]:
        """Ranges of a block that are acknowledged, also those above the cursor, and those in open transactions."""

        subscription = self.subscription
        if subscription is None or subscription.free_from <= block.first_offset:
            return []
        holes: list[list[int]] = []
        at = block.first_offset
        for start, stop in [*subscription.free(at, block.next_offset), (block.next_offset, block.next_offset)]:
            if at < start:
                holes.append([at, start - 1])
            at = stop
        return holes

    def detach(self) -> None:
        self.reader.stop()
        self.hosted.readers.discard(self.reader)
        if self.subscription is not None:
            self.subscription.lone_left(self)

    def acknowledge(self, header: commands.Ack) -> Awaitable[Any]:
        """Move the cursor to `position`, or acknowledge each of `buckets` up to its position."""
        if self.subscription is None:
            raise UnsupportedError("a reader has no cursor: it cannot acknowledge")
        inside = transaction_of(header, self.connection.role)
        if inside is not None or self.subscription.pending:
            return transactional_acks.acknowledge_alone(self, self.subscription, header, inside)
        position, lazy = header.position, bool(header.lazy)
        if position is None or header.buckets is not None:
            return acknowledge_alone(self, self.subscription, positions_of(header, self.hosted), lazy=lazy)
        if header.ack_type != "cumulative":
            raise InvalidArgumentError("an exclusive consumer's ack_type must be cumulative, with `position`")
        check_position(position, self.hosted.segment.durable_offset)
        return self.subscription.ack_cumulative(position, lazy=lazy)
