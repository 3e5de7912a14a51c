"""Consumers attached to a segment: credit, blocks of messages, and the two kinds that read alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from engine._native.offsets import offset_set, runs
from engine.broker import transactional_acks
from engine.broker.bucket_acks import acknowledge_alone, check_position, positions_of
from engine.broker.rates import Rate
from engine.broker.transactional_acks import transaction_of
from engine.errors import EngineError, InvalidArgumentError, UnsupportedError
from engine.limits import READ_BLOCK_SIZE
from engine.storage.logfile import Block
from engine.wire.commands import Command
from engine.wire.framing import payload_size
from engine.wire.stream import Payload

if TYPE_CHECKING:
    from engine.broker.connection import Connection
    from engine.broker.subscriptions import HostedSubscription
    from engine.broker.topics import HostedSegment

CREDIT_MAX = 2**48  # more than anybody has room for, and a number that native code can hold
_COLD_BLOCKS = 16
log = logging.getLogger(__name__)

Range = tuple[int, int]  # inclusive


class SegmentReader:
    """Fetches a segment's durable blocks one after the other for whoever has credit. Loop thread only.

    Invariant: at most one read or one wait is under way. `step` is called whenever there may be something to do.
    """

    __slots__ = ("_cold", "_has_turn", "_pending", "_waits_turn", "hosted", "owner_close", "step", "waiting")

    def __init__(
        self,
        hosted: HostedSegment,
        step: Callable[[Block | None], None],
        owner_close: Callable[[EngineError], None],
    ) -> None:
        self.hosted = hosted
        self.step = step
        self.owner_close = owner_close
        self._pending: asyncio.Future[Any] | None = None
        self.waiting = False  # what is under way is a wait for something durable
        self._waits_turn = False  # for a turn to read from a file
        self._has_turn = False
        self._cold = 0  # so many blocks are to be read from the disk, as one was, before it is tried without waiting

    @property
    def busy(self) -> bool:
        """A read or a wait is under way; `step` follows."""
        return self._pending is not None

    def read(self, offset: int, bytes_max: int) -> Block | None:
        """The block at `offset` if it is in memory. None: nothing yet, or not at once; `step` is called with it then.

        Nothing of a transaction that is open, nor what comes after it. Raises what the segment raises.
        """
        transactions = self.hosted.transactions
        if transactions is not None and (limit := transactions.limit) is not None and offset >= limit:
            return None
        at_once, reads = self._at_once, self.hosted.reads
        found = self.hosted.segment.read(offset, bytes_max, at_once=at_once)
        if found is None or isinstance(found, Block):
            return found if transactions is None or found is None else transactions.cut(found)
        self._cold = _COLD_BLOCKS if at_once else max(self._cold - 1, 0)
        turn = None if reads is None or self._has_turn else reads.turn()
        if turn is not None:
            found.close()  # type: ignore[attr-defined]
            self._watch(turn)
            self._waits_turn = True
            return None
        reading = asyncio.ensure_future(found)
        if reads is not None:
            reads.began(bytes_max, reading)
        self._watch(reading)
        return None

    @property
    def _at_once(self) -> bool:
        return not self._cold and self.hosted.reads is not None and self.hosted.reads.at_once

    def read_ahead(self, offset: int, bytes_max: int) -> None:
        """Begin to read the block at `offset`, unless it is in memory anyway. An error shows at the next read()."""
        if self._at_once:
            return
        with contextlib.suppress(EngineError):
            self.read(offset, bytes_max)

    def wait(self, offset: int) -> None:
        """Call step(None) when there may be something durable at `offset`, or the segment has ended."""
        self._watch(self.hosted.segment.when_durable(offset))
        self.waiting = True

    def stop(self) -> None:
        """Nothing is called any more."""
        pending, self._pending = self._pending, None
        self.waiting = self._waits_turn = False
        if pending is not None:
            pending.remove_done_callback(self._done)
            pending.cancel()

    def _watch(self, future: asyncio.Future[Any]) -> None:
        self._pending = future
        future.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._pending = None
        self._has_turn, self.waiting, self._waits_turn = self._waits_turn, False, False
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self.hosted.reading_failed(self, error)
            return
        result = future.result()
        if not isinstance(result, Block):
            self.step(None)
            self._has_turn = False
        else:
            transactions = self.hosted.transactions
            self.step(result if transactions is None else transactions.cut(result))


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
        skip: list[list[int]] | None = None,
        redelivered: list[list[int]] | None = None,
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
        header: dict[str, Any] = {
            "consumer_id": self.ident,
            "segment_id": self.hosted.name.segment_id,
            "salt": salt,
            "messages": messages,
        }
        if skip:
            header["skip"] = skip
        if redelivered:
            header["redelivered"] = redelivered
        self.connection.send(Command.MESSAGE, header, data)

    def send_end(self, end: int) -> None:
        """The segment ends at `end` and this consumer has all of it."""
        self.connection.send(Command.REACHED_END, {"consumer_id": self.ident, "end": end})

    def close(self, error: EngineError | None = None) -> None:
        """End the attachment; with an error the client is told."""
        if self.closed:
            return
        self.closed = True
        self.detach()
        if self.connection.consumers.get(self.ident) is self:
            del self.connection.consumers[self.ident]
        if error is not None:
            closing = {"consumer_id": self.ident, "code": error.code, "message": str(error)}
            self.connection.send(Command.CLOSE_CONSUMER, closing)

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
    def acknowledge(self, header: dict[str, Any]) -> Awaitable[Any]:
        """Done when the acknowledgement is durable. Raises EngineError."""

    def leaving(self, header: dict[str, Any]) -> None:  # noqa: B027 - most say nothing
        """What a client says as it closes."""

    def redeliver(self, header: dict[str, Any]) -> None:
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
        if segment.sealed and self._next >= segment.next_offset:
            if not self._end_sent:
                self._end_sent = True
                self.send_end(segment.next_offset)
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

    def acknowledge(self, header: dict[str, Any]) -> Awaitable[Any]:
        """Move the cursor to `position`, or acknowledge each of `buckets` up to its own."""
        if self._subscription is None:
            raise UnsupportedError("a reader has no cursor to acknowledge to")
        inside = transaction_of(header)
        if inside is not None or self._subscription.pending:
            return transactional_acks.acknowledge_alone(self, self._subscription, header, inside)
        position = header.get("position")
        if position is None or header.get("buckets") is not None:
            return acknowledge_alone(self, self._subscription, positions_of(header, self.hosted))
        if header["ack_type"] != "cumulative":
            raise InvalidArgumentError("an exclusive consumer acknowledges cumulatively, by `position`")
        check_position(position, self.hosted.segment.durable_offset)
        return self._subscription.ack_cumulative(position)
