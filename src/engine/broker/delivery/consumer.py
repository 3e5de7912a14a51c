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

from engine._native.format.offsets import offset_set, range_set, runs
from engine.broker.delivery import transactional_acks
from engine.broker.delivery.bucket_acks import acknowledge_alone, check_position, positions_of
from engine.broker.delivery.parts import SMALL_CREDIT, SMALL_READ_SIZE, may_exceed, payload_between
from engine.broker.delivery.transactional_acks import transaction_of
from engine.broker.pools.rates import Rate
from engine.broker.segment.reader import SegmentReader
from engine.errors import EngineError, InvalidArgumentError, UnsupportedError
from engine.limits import ENTRY_MESSAGES_MAX, READ_BLOCK_SIZE
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands
from engine.wire.framing import payload_size
from engine.wire.stream import Payload

if TYPE_CHECKING:
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.limits.attendance import Attendance
    from engine.broker.limits.limits import BrokerLimits
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.ports import Peer
    from engine.storage.file.logfile import Block

CREDIT_MAX = 2**48  # more than any client has room for, and still an int64

Range = tuple[int, int]  # inclusive


def consumer_key(subscription: str | None, name: str) -> str:
    """What it counts as, where consumers are counted."""
    return f"{subscription or ''}\n{name}"


class Consumer(ABC):
    """One attachment of a consumer. Loop thread only."""

    __slots__ = ("_attendance", "_subscription", "bytes_credit", "closed", "connection", "hosted", "ident",
                 "messages_credit", "name", "out", "paced", "seeks", "sent", "window")  # fmt: skip
    mode: DeliveryMode

    def __init__(
        self,
        connection: Peer,
        ident: int,
        hosted: HostedSegment,
        name: str,
        subscription: HostedSubscription | None,
    ) -> None:
        self.connection = connection
        self.ident = ident
        self.hosted = hosted
        self.name = name
        self._subscription = subscription
        self.closed = False
        self._attendance: Attendance | None = None  # where there are limits
        # What the client has room for now.
        self.messages_credit = 0
        self.bytes_credit = 0
        # The window in messages: as the client says where it follows the pace, else the widest credit there was.
        self.window = 0
        self.paced = False
        time, heir = asyncio.get_running_loop().time, hosted.incoming.heir
        before = None if subscription is None else subscription.left.pop(name, None)
        # Sent to all consumers of the subscription, and to this one alone.
        self.out = Rate(time) if subscription is None else subscription.out
        self.sent = Rate(time, heir=heir) if before is None else before
        self.seeks = 0 if subscription is None else subscription.seeks

    @property
    def ready(self) -> bool:
        """Whether it may be sent another block now."""
        return self.messages_credit > 0 and self.bytes_credit > 0 and self.connection.writable and not self.closed

    def add_credit(self, messages: int, size: int, window: int | None = None) -> None:
        """The client has room for more. `window`: its present one, in messages, where that follows its pace."""
        self.paced = window is not None
        if window is not None:
            self.window = max(window, 1)
        messages, size = min(max(messages, 0), CREDIT_MAX), min(max(size, 0), CREDIT_MAX)
        if self._attendance is not None and (throttle := self._attendance.throttle) is not None:
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
        if self._attendance is None:
            subscription = self._subscription
            name = consumer_key(None if subscription is None else subscription.name, self.name)
            several = subscription is None or self.mode is DeliveryMode.QUEUE
            self._attendance = limits.attend_consumer(self.hosted.name, role, name, self.connection, several=several)
        buckets, throttle = limits.buckets(topic, role, "dispatch"), self._attendance.throttle
        if throttle is not None:
            throttle.change(buckets)
            self._attendance.throttle = throttle if buckets else None
        elif buckets:
            from engine.broker.limits.throttle import Throttle

            withheld = max(self.messages_credit, 0), max(self.bytes_credit, 0)
            self.messages_credit -= withheld[0]
            self.bytes_credit -= withheld[1]
            self._attendance.throttle = Throttle(buckets, self._credit)
            self._attendance.throttle.ask(*withheld)

    def _absent(self) -> None:
        self.closed = True
        if self._attendance is not None:
            if (throttle := self._attendance.throttle) is not None:  # else one that comes back gets it for nothing
                throttle.charge(max(-self.messages_credit, 0), max(-self.bytes_credit, 0))
            self._attendance.close()

    def has_room_for(self, messages: int) -> bool:
        """Whether so many may be sent to it at once."""
        return messages <= self.messages_credit or may_exceed(messages, self.window, paced=self.paced)

    def send_block(
        self,
        data: Payload,
        salt: int,
        messages: int,
        skip: list[commands.Range] | None = None,
        redelivered: list[tuple[int, int, int]] | None = None,
    ) -> None:
        """Send whole entries. `messages`: those not skipped. `skip`, `redelivered`: ranges [first, last(, count)]."""
        size = payload_size(data)
        self.messages_credit -= messages
        self.bytes_credit -= size
        self.out.count(messages, size)
        self.sent.count(messages, size)
        self.hosted.sent_messages += messages
        self.hosted.sent_bytes += size
        if not redelivered:
            self.hosted.environment.latency.delivered(self.hosted.segment, data)
        header = commands.Message(
            consumer_id=self.ident,
            segment_id=self.hosted.name.segment_id,
            salt=salt,
            messages=messages,
            skip=skip or None,
            redelivered=redelivered or None,
        )
        self.connection.send(header, data)

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
        if self._subscription is not None:
            await self._subscription.cursor.settled()

    def leaving(self, header: commands.CloseConsumer) -> None:  # noqa: B027 - most kinds need nothing of it
        """The client closes it, with CLOSE_CONSUMER's header."""

    def redeliver(self, header: commands.Redeliver) -> None:
        """Deliver `ranges` again. Raises UnsupportedError for all but queue consumers."""
        raise UnsupportedError("REDELIVER requires a queue consumer; a stream consumer attaches again instead")


class LoneReader(Consumer):
    """Reads a segment alone and in order: an exclusive consumer of a subscription, or a reader without one."""

    __slots__ = ("_end_sent", "_next", "_pumping", "_reader", "_sent_in_part", "_waits_for")
    mode = DeliveryMode.EXCLUSIVE

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
        super().__init__(connection, ident, hosted, name, subscription)
        self._next = start
        self._sent_in_part = 0  # below this offset, the entry that the last part was of has been sent
        self._waits_for: BitMap64 | None = None
        self._end_sent = False
        self._pumping = False
        self._reader = SegmentReader(hosted, self._step, self.close)
        hosted.readers.add(self._reader)

    @property
    def pending(self) -> int:
        """The messages between the cursor and the last one sent."""
        if self._subscription is None:
            return 0
        return self._subscription.backlog_below(self._next)

    def wait_for(self, held: BitMap64) -> None:
        """Deliver nothing until these, which open transactions have acknowledged, are decided.

        Earlier delivery would let a cumulative acknowledgement cover messages that are due again after an abort.
        pump() is called when a transaction ends.
        """
        self._waits_for = held or None

    def _is_waiting(self) -> bool:
        if self._waits_for is not None:
            assert self._subscription is not None
            if not self._waits_for.intersect(self._subscription.pending.offsets):
                self._waits_for = None
        return self._waits_for is not None

    def pump(self) -> None:
        """Send blocks until credit, the stream's room or the durable data run out."""
        if self._reader.busy or self._pumping or self._is_waiting():
            return
        self._pumping = True
        try:
            self._pump()
        finally:
            self._pumping = False

    def _pump(self) -> None:
        while self.ready:
            if self._subscription is not None:
                self._next = self._subscription.due_from(self._next)
            try:
                size = self.connection.block_size if self.messages_credit > SMALL_CREDIT else SMALL_READ_SIZE
                block = self._reader.read(self._next, min(self.bytes_credit, size))
            except EngineError as e:
                self.close(e)
                return
            if block is None:
                break
            self._send(block)
        if not self._reader.busy:
            self._pump_at_end()

    def _pump_at_end(self) -> None:
        """All durable messages are sent, or the consumer takes no more now: wait for more, or report the end."""
        segment = self.hosted.segment
        self._next = segment.gaps.skip(self._next)
        if segment.sealed and self._next >= segment.next_offset:
            if not self._end_sent:
                self._end_sent = True
                self.send_end(segment.messages_end)
        elif self._next >= segment.durable_offset:
            self._reader.wait(self._next)

    def _step(self, block: Block | None) -> None:
        """A read or a wait has ended. The next block is read from disk while this one is sent."""
        if self.closed:
            return
        if block is None:
            self.pump()
            return
        if self._may_read_ahead(block):  # so there is credit for all of this block
            self._next = block.next_offset
            self._reader.read_ahead(self._next, self.connection.block_size)
        if self._reader.busy:  # that read begins in the next turn of the loop, before this block is sent
            asyncio.get_running_loop().call_soon(self._send_read, block)
        else:
            self._send_read(block)

    def _may_read_ahead(self, block: Block) -> bool:
        more = block.next_offset < self.hosted.segment.durable_offset and self.connection.writable
        return more and self.messages_credit > block.messages and self.bytes_credit > block.size + READ_BLOCK_SIZE

    def _send_read(self, block: Block) -> None:
        if not self.closed:
            self._send(block)
            self.pump()

    def _send(self, block: Block) -> None:
        skip = self._skipped(block)
        messages = block.messages - sum(last + 1 - first for first, last in skip)
        if messages <= self.messages_credit or self.paced or self.window >= ENTRY_MESSAGES_MAX:
            self._next = block.next_offset
            self.send_block(block.data, block.salt, messages, skip)
            return
        start = max(block.first_offset, self._next)
        skipped = offset_set(skip, block.next_offset)
        wanted = range_set(start, block.next_offset - 1) - skipped
        stop = block.next_offset if len(wanted) <= self.messages_credit else wanted[self.messages_credit]
        payload, first, self._next = payload_between(self.hosted.environment.open_entries, block, start, stop)
        self._sent_in_part = self._next
        skipped &= range_set(first, self._next - 1)
        self.send_block(payload, block.salt, self._next - first - len(skipped), runs(skipped))

    def _skipped(self, block: Block) -> list[list[int]]:
        """Ranges of a block that the consumer must not get, or was sent as a part of its first entry."""
        skip = self._acknowledged(block)
        if block.first_offset < self._sent_in_part:
            sent = range_set(block.first_offset, self._sent_in_part - 1)
            skip = runs(sent | offset_set(skip, block.next_offset))
        hidden = self.hosted.hidden(block.first_offset, block.next_offset)
        return skip if hidden is None else runs(hidden | offset_set(skip, block.next_offset))

    def _acknowledged(self, block: Block) -> list[list[int]]:
        """Ranges of a block that are acknowledged, also those above the cursor, and those in open transactions."""

        subscription = self._subscription
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
        self._reader.stop()
        self.hosted.readers.discard(self._reader)
        if self._subscription is not None:
            self._subscription.lone_left(self)

    def acknowledge(self, header: commands.Ack) -> Awaitable[Any]:
        """Move the cursor to `position`, or acknowledge each of `buckets` up to its position."""
        if self._subscription is None:
            raise UnsupportedError("a reader has no cursor: it cannot acknowledge")
        inside = transaction_of(header, self.connection.role)
        if inside is not None or self._subscription.pending:
            return transactional_acks.acknowledge_alone(self, self._subscription, header, inside)
        position, lazy = header.position, bool(header.lazy)
        if position is None or header.buckets is not None:
            return acknowledge_alone(self, self._subscription, positions_of(header, self.hosted), lazy=lazy)
        if header.ack_type != "cumulative":
            raise InvalidArgumentError("an exclusive consumer's ack_type must be cumulative, with `position`")
        check_position(position, self.hosted.segment.durable_offset)
        return self._subscription.ack_cumulative(position, lazy=lazy)
