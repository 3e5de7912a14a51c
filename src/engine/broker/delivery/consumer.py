"""Consumers attached to a segment: credit, blocks of messages, and the two kinds that read alone."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from engine._native.format.offsets import offset_set, runs
from engine.broker.delivery import transactional_acks
from engine.broker.delivery.bucket_acks import acknowledge_alone, check_position, positions_of
from engine.broker.delivery.transactional_acks import transaction_of
from engine.broker.pools.rates import Rate
from engine.broker.segment.reader import SegmentReader
from engine.errors import EngineError, InvalidArgumentError, UnsupportedError
from engine.limits import READ_BLOCK_SIZE
from engine.storage.file.logfile import Block
from engine.wire import commands
from engine.wire.framing import payload_size
from engine.wire.stream import Payload

if TYPE_CHECKING:
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.session.connection import Connection

CREDIT_MAX = 2**48  # more than anybody has room for, and a number that native code can hold

Range = tuple[int, int]  # inclusive


class Consumer(ABC):
    """One attachment of a consumer. Loop thread only."""

    __slots__ = ("bytes_credit", "closed", "connection", "hosted", "ident", "messages_credit", "name", "out",
                 "seeks", "sent")  # fmt: skip
    mode = ""

    def __init__(
        self,
        connection: Connection,
        ident: int,
        hosted: HostedSegment,
        name: str,
        subscription: HostedSubscription | None,
    ) -> None:
        self.connection = connection
        self.ident = ident
        self.hosted = hosted
        self.name = name
        self.closed = False
        # What the client has room for. One block may overshoot it.
        self.messages_credit = 0
        self.bytes_credit = 0
        time, heir = asyncio.get_running_loop().time, hosted.incoming.heir
        before = None if subscription is None else subscription.left.pop(name, None)
        # Counts what is sent, together with the others of the subscription; and what is sent to this one alone.
        self.out = Rate(time) if subscription is None else subscription.out
        self.sent = Rate(time, heir=heir) if before is None else before
        self.seeks = 0 if subscription is None else subscription.seeks

    @property
    def ready(self) -> bool:
        """Whether it takes another block now."""
        return self.messages_credit > 0 and self.bytes_credit > 0 and self.connection.writable and not self.closed

    def add_credit(self, messages: int, size: int) -> None:
        """The client has room for more."""
        self.messages_credit = min(self.messages_credit + max(messages, 0), CREDIT_MAX)
        self.bytes_credit = min(self.bytes_credit + max(size, 0), CREDIT_MAX)
        self.pump()

    def send_block(
        self,
        data: Payload,
        salt: int,
        messages: int,
        skip: list[commands.Range] | None = None,
        redelivered: list[tuple[int, int, int]] | None = None,
    ) -> None:
        """Whole entries; `messages` are those not skipped."""
        size = payload_size(data)
        self.messages_credit -= messages
        self.bytes_credit -= size
        self.out.count(messages, size)
        self.sent.count(messages, size)
        self.hosted.sent_messages += messages
        self.hosted.sent_bytes += size
        if not redelivered:
            self.connection.broker.measures.delivered(self.hosted.segment, data)
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
        """The segment ends at `end` and this consumer has all of it."""
        self.connection.send(commands.ReachedEnd(consumer_id=self.ident, end=end))

    def close(self, error: EngineError | None = None) -> None:
        """End the attachment; with an error the client is told."""
        if self.closed:
            return
        self.closed = True
        self.detach()
        if self.connection.consumers.get(self.ident) is self:
            del self.connection.consumers[self.ident]
        if error is not None:
            closing = commands.CloseConsumer(consumer_id=self.ident, code=error.code, message=str(error))
            self.connection.send(closing)

    def connection_lost(self) -> None:
        """The client is gone."""
        if not self.closed:
            self.closed = True
            self.detach()

    @property
    @abstractmethod
    def pending(self) -> int:
        """Messages it was sent and has not acknowledged."""

    @abstractmethod
    def pump(self) -> None:
        """Send what there is and what there is credit for."""

    @abstractmethod
    def detach(self) -> None:
        """Let go of the segment."""

    @abstractmethod
    def acknowledge(self, header: commands.Ack) -> Awaitable[Any]:
        """Done when the acknowledgement is durable. Raises EngineError."""

    def leaving(self, header: commands.CloseConsumer) -> None:  # noqa: B027 - most say nothing
        """What a client says as it closes."""

    def redeliver(self, header: commands.Redeliver) -> None:
        """Deliver `ranges` again. Raises UnsupportedError where that is not how the mode works."""
        raise UnsupportedError("only queue consumers hand messages back; attach again to start from the cursor")


class LoneReader(Consumer):
    """Reads a segment alone and in order: an exclusive consumer with its cursor, or a reader that has none."""

    __slots__ = ("_end_sent", "_next", "_pumping", "_reader", "_subscription", "_waits_for")
    mode = "exclusive"

    def __init__(
        self,
        connection: Connection,
        ident: int,
        hosted: HostedSegment,
        name: str,
        *,
        start: int,
        subscription: HostedSubscription | None = None,
    ) -> None:
        super().__init__(connection, ident, hosted, name, subscription)
        self._subscription = subscription
        self._next = start
        self._waits_for: BitMap64 | None = None
        self._end_sent = False
        self._pumping = False
        self._reader = SegmentReader(hosted, self._step, self.close)
        hosted.readers.add(self._reader)

    @property
    def pending(self) -> int:
        """What lies between the cursor and what was sent."""
        if self._subscription is None:
            return 0
        return self._subscription.backlog_below(self._next)

    def wait_for(self, held: BitMap64) -> None:
        """Nothing is delivered until none of these, which transactions hold, is held any more.

        Positions would cover them, and they come if that is aborted. Whoever ends it calls pump().
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
                block = self._reader.read(self._next, min(self.bytes_credit, self.connection.block_size))
            except EngineError as e:
                self.close(e)
                return
            if block is None:
                break
            self._send(block)
        if not self._reader.busy:
            self._pump_at_end()

    def _pump_at_end(self) -> None:
        """Everything durable is sent, or it cannot be sent now: wait for more, or say that there never will be."""
        segment = self.hosted.segment
        self._next = segment.gaps.skip(self._next)
        if segment.sealed and self._next >= segment.next_offset:
            if not self._end_sent:
                self._end_sent = True
                self.send_end(segment.messages_end)
        elif self._next >= segment.durable_offset:
            self._reader.wait(self._next)

    def _step(self, block: Block | None) -> None:
        """A read or a wait has ended. While a block from the disk is being sent, the next one is read."""
        if self.closed:
            return
        if block is None:
            self.pump()
            return
        self._next = block.next_offset
        if self._may_read_ahead(block):
            self._reader.read_ahead(self._next, self.connection.block_size)
        if self._reader.busy:  # its first step comes before what is called soon
            asyncio.get_running_loop().call_soon(self._send_read, block)
        else:
            self._send_read(block)

    def _may_read_ahead(self, block: Block) -> bool:
        more = self._next < self.hosted.segment.durable_offset and self.connection.writable
        return more and self.messages_credit > block.messages and self.bytes_credit > block.size + READ_BLOCK_SIZE

    def _send_read(self, block: Block) -> None:
        if not self.closed:
            self._send(block)
            self.pump()

    def _send(self, block: Block) -> None:
        self._next = block.next_offset
        skip = self._skipped(block)
        messages = block.messages - sum(last + 1 - first for first, last in skip)
        self.send_block(block.data, block.salt, messages, skip)

    def _skipped(self, block: Block) -> list[list[int]]:
        """What of a block is not for the consumer."""
        skip = self._acknowledged(block)
        hidden = self.hosted.hidden(block.first_offset, block.next_offset)
        return skip if hidden is None else runs(hidden | offset_set(skip, block.next_offset))

    def _acknowledged(self, block: Block) -> list[list[int]]:
        """What of a block is acknowledged: below the cursor's position, and, if the segment was shared, above it.

        Likewise what is acknowledged in a transaction that is open.
        """
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
        """Stop reading."""
        self._reader.stop()
        self.hosted.readers.discard(self._reader)
        if self._subscription is not None:
            self._subscription.lone_left(self)

    def acknowledge(self, header: commands.Ack) -> Awaitable[Any]:
        """Move the cursor to `position`, or acknowledge each of `buckets` up to its own."""
        if self._subscription is None:
            raise UnsupportedError("a reader has no cursor to acknowledge to")
        inside = transaction_of(header)
        if inside is not None or self._subscription.pending:
            return transactional_acks.acknowledge_alone(self, self._subscription, header, inside)
        position = header.position
        if position is None or header.buckets is not None:
            return acknowledge_alone(self, self._subscription, positions_of(header, self.hosted))
        if header.ack_type != "cumulative":
            raise InvalidArgumentError("an exclusive consumer acknowledges cumulatively, by `position`")
        check_position(position, self.hosted.segment.durable_offset)
        return self._subscription.ack_cumulative(position)
