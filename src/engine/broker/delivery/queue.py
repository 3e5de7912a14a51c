"""Queue consumption of one segment by one subscription: whole entries in turn, individual acknowledgements."""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pyroaring import BitMap64

from engine import checks
from engine._native.format.offsets import offset_set, range_set, runs
from engine.broker.delivery.consumer import CREDIT_MAX, Consumer
from engine.broker.delivery.delayed import Delays, has_delays
from engine.broker.delivery.redelivery import backoff_of
from engine.broker.delivery.transactional_acks import acknowledge_some, transaction_of
from engine.broker.segment.reader import SegmentReader
from engine.errors import CorruptionError, EngineError, InvalidArgumentError
from engine.limits import ENTRY_HEADER_SIZE, KIB
from engine.model.redelivery import Backoff
from engine.storage.file.logfile import Block
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.session.connection import Connection

log = logging.getLogger(__name__)

PIECES_MAX = 16  # of one entry, for consumers that have room for few messages
REPLAY_READ_SIZE = 64 * KIB  # a message to deliver again is looked for in blocks of this size
_TURNS_PER_BLOCK = 4  # each consumer gets about this many turns of a block with many entries

# Where the broker looks into an entry's header (_native/format/layout.pxd): size, flags, count, first offset.
_HEADER = struct.Struct("<4xI9xB2xI64xQ")
_DELIVER_AT = 32


class EntryAt(NamedTuple):
    """One entry of a block: its bytes [start, stop) and its messages [first, last], inclusive.

    `delayed`: some have a time before which they are not to be delivered.
    """

    start: int
    stop: int
    first: int
    last: int
    delayed: bool


def entries_of(data: memoryview) -> Iterator[EntryAt]:
    """The entries of a block, by their headers. Raises CorruptionError for what does not add up."""
    at = 0
    while at < len(data):
        size, flags, count, first = (
            _HEADER.unpack_from(data, at) if at + ENTRY_HEADER_SIZE <= len(data) else (0, 0, 0, 0)
        )
        if size < ENTRY_HEADER_SIZE or at + size > len(data) or not count:
            raise CorruptionError(f"an entry of {size} bytes and {count} messages at byte {at} of {len(data)}")
        yield EntryAt(at, at + size, first, first + count - 1, flags & _DELIVER_AT != 0)
        at += size


class QueueConsumer(Consumer):
    """One of several consumers that share a segment. `unacknowledged` is what it holds."""

    __slots__ = ("_dispatcher", "end_told", "priority", "unacknowledged", "window")
    mode = "queue"

    def __init__(
        self, connection: Connection, ident: int, name: str, dispatcher: QueueDispatcher, priority: int = 0
    ) -> None:
        super().__init__(connection, ident, dispatcher.hosted, name, dispatcher.subscription)
        self._dispatcher = dispatcher
        self.priority = priority
        self.end_told = False
        self.unacknowledged = BitMap64()
        self.window = 0  # the most messages that it had room for

    @property
    def pending(self) -> int:
        """Messages it holds."""
        return len(self.unacknowledged)

    def pump(self) -> None:
        """There is credit or room again."""
        self._dispatcher.pump()

    def add_credit(self, messages: int, size: int) -> None:
        """The client has room for more."""
        self.window = max(self.window, min(self.messages_credit + messages, CREDIT_MAX))
        super().add_credit(messages, size)

    def leaving(self, header: commands.CloseConsumer) -> None:
        """Its user has seen only the ranges `seen` of what it holds: the rest comes back without being counted."""
        if header.seen is not None:
            seen = offset_set(header.seen, self.hosted.segment.durable_offset)
            self._dispatcher.put_back(self, self.unacknowledged - seen)

    def detach(self) -> None:
        """What it holds goes to the others at once."""
        self._dispatcher.detach(self)

    def acknowledge(self, header: commands.Ack) -> Awaitable[Any]:
        """Individual: `ranges`, inclusive."""
        if header.ack_type != "individual" or header.ranges is None:
            raise InvalidArgumentError("a queue consumer acknowledges individually, by `ranges`")
        offsets = offset_set(header.ranges, self.hosted.segment.durable_offset)
        inside = transaction_of(header)
        if inside is not None or self._dispatcher.subscription.pending:
            return acknowledge_some(self._dispatcher, self, offsets, inside)
        return self._dispatcher.acknowledge(self, offsets)

    def redeliver(self, header: commands.Redeliver) -> None:
        """Hand `ranges` back, to be kept back as `backoff` says."""
        offsets = offset_set(header.ranges, self.hosted.segment.durable_offset)
        self._dispatcher.redeliver(self, offsets, backoff_of(header.backoff))


class QueueDispatcher:
    """Deals the entries of a segment to its consumers in turn, those with the smallest priority number first.

    Loop thread only. A message from the cursor up to `_next` that is not acknowledged is held by one consumer, or due
    for redelivery, or kept back until its time comes. Invariant: no message is held by two consumers, and none that is
    held is due. Checked by _check(), with ENGINE_DEBUG=1.
    """

    __slots__ = ("_asked", "_counts", "_cursor", "_delays", "_kept", "_next", "_pumping", "_reader", "_replay", "_turn",
                 "consumers", "hosted", "subscription")  # fmt: skip

    def __init__(self, subscription: HostedSubscription) -> None:
        self.subscription = subscription
        self.hosted = hosted = subscription.hosted
        self.consumers: list[QueueConsumer] = []
        self._cursor = subscription.cursor
        self._next = subscription.start
        self._asked = self._next  # the offset that the read under way begins at
        self._replay = BitMap64()
        self._counts = subscription.redeliveries
        self._delays = Delays(self._wall_ms, self._released)
        self._kept = Delays(self._steady_ms, self._released)  # handed back; how the wall clock is set is all one
        self._turn = 0
        self._pumping = False
        self._reader = SegmentReader(hosted, self._step, self.close)
        hosted.readers.add(self._reader)

    @property
    def delayed(self) -> int:
        """How many messages wait for their time, or for the back-off after they were handed back."""
        return len(self._delays) + len(self._kept)

    # -- members ---------------------------------------------------------------------------------------------------

    def attach(self, consumer: QueueConsumer) -> None:
        """A new member."""
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda c: c.priority)

    def detach(self, consumer: QueueConsumer) -> None:
        """A member leaves; what it holds is due again (semantics 22)."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self.subscription.left[consumer.name] = consumer.sent
        self._hand_back(consumer.unacknowledged)
        consumer.unacknowledged = BitMap64()
        if self.consumers:
            self.pump()
        else:
            self._reader.stop()
            self._delays.close()
            self._kept.close()
            self.hosted.readers.discard(self._reader)
            self.subscription.queue_left(self)

    def redeliver(self, consumer: QueueConsumer, offsets: BitMap64, backoff: Backoff | None = None) -> None:
        """Of these, what the consumer holds is due again: at once, or as the back-off says."""
        handed = consumer.unacknowledged & offsets
        consumer.unacknowledged -= handed
        self._hand_back(handed, backoff)
        self.pump()

    def put_back(self, consumer: QueueConsumer, offsets: BitMap64) -> None:
        """These were sent to a consumer that leaves, and nobody has seen them."""
        consumer.unacknowledged -= offsets
        self._replay |= offsets

    def _hand_back(self, offsets: BitMap64, backoff: Backoff | None = None) -> None:
        if backoff is None or backoff.max == 0:
            self._replay |= offsets
        else:
            for count, group in self._counts.groups(offsets):
                if (delay_ms := math.ceil(1000 * backoff.delay(count))) > 0:
                    self._kept.keep(group, delay_ms)
                else:
                    self._replay |= group
        self._counts.increment(offsets)

    def acknowledge(self, by: QueueConsumer, offsets: BitMap64) -> asyncio.Future[None]:
        """Nobody gets these again, whoever held them (semantics 12). Done when durable."""
        self.set_aside(by, offsets)
        self._counts.clear(offsets)
        return self.subscription.ack_set(offsets)

    def set_aside(self, by: QueueConsumer, offsets: BitMap64) -> None:
        """Nobody holds these any more, and nobody gets them as long as they are not free()."""
        self._replay -= offsets
        self._delays.forget(offsets)
        self._kept.forget(offsets)
        for holder in (by,) if offsets <= by.unacknowledged else self.consumers:  # of which there may be thousands
            holder.unacknowledged -= offsets

    def due_again(self, offsets: BitMap64) -> None:
        """Undo set_aside(), as if they were handed back. What lies before was not dealt yet in this queue's life."""
        dealt = offsets & range_set(0, self._next - 1) if self._next else BitMap64()
        self._replay |= dealt
        self._counts.increment(offsets)
        self.pump()

    def close(self, error: EngineError) -> None:
        """Every consumer is told."""
        for consumer in list(self.consumers):
            consumer.close(error)

    # -- dealing ---------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Deal until credit, room or durable data run out."""
        if self._pumping:
            return
        if self._replay and self._reader.waiting:
            self._reader.stop()
        self._pumping = True
        try:
            self._pump()
        except EngineError as e:
            self.close(e)
        finally:
            self._pumping = False
        if checks.COSTLY:
            self._check()

    def _check(self) -> None:
        shares = [self._replay, *(consumer.unacknowledged for consumer in self.consumers)]
        together = len(BitMap64().union(*shares))
        checks.check(sum(map(len, shares)) == together, "a message is held by one consumer, or due")

    def _pump(self) -> None:
        self._next = self.hosted.segment.gaps.skip(self._next)
        while not self._reader.busy and (ready := self._ready()):
            size = REPLAY_READ_SIZE if self._replay else ready[0].connection.block_size
            self._asked = self._first_due()
            block = self._reader.read(self._asked, max(min(size, max(c.bytes_credit for c in ready)), 1))
            if block is None:
                break
            self._deal(block, self._asked)
        if not self._reader.busy and not self._replay:
            self._pump_at_end()

    def _pump_at_end(self) -> None:
        segment = self.hosted.segment
        if segment.sealed:
            self.subscription.look()
        elif self._next >= segment.durable_offset:
            self._reader.wait(self._next)

    def tell_end(self) -> None:
        """The segment is drained: its consumers can let go of it."""
        for consumer in self.consumers:
            if not consumer.end_told:
                consumer.end_told = True
                consumer.send_end(self.hosted.segment.messages_end)

    def _step(self, block: Block | None) -> None:
        """A read or a wait has ended. A block that came from the disk is dealt if it is still what is due."""
        if block is not None and self._ready() and self._asked == self._first_due():
            self._pumping = True
            try:
                self._deal(block, self._asked)
            except EngineError as e:
                self.close(e)
            finally:
                self._pumping = False
        self.pump()

    def _first_due(self) -> int:
        """The offset to read at: what was handed back goes first, what is acknowledged is not read."""
        if not self._replay:
            self._next = self.subscription.due_from(self._next)
        return self._replay.min() if self._replay else self._next

    def _ready(self) -> list[QueueConsumer]:
        """The consumers whose turn it may be: those with credit, of the best priority that has any."""
        ready = [c for c in self.consumers if c.ready]
        return [c for c in ready if c.priority == ready[0].priority] if ready else ready

    def _deal(self, block: Block, start: int) -> None:
        """Give the block's entries out, beginning with the one that holds `start`."""
        if start < block.first_offset:  # retention took what was before
            self._replay.remove_range(start, block.first_offset)
            start = block.first_offset
            self._next = max(self._next, start)
        if len(self.consumers) == 1 and self._deal_whole(block, start):
            return
        entries, at = list(entries_of(block.data)), 0
        share = max(1, len(entries) // (_TURNS_PER_BLOCK * len(self.consumers)))
        while at < len(entries) and (ready := self._ready()):
            at = self._deal_turn(block, entries, at, share, ready)

    def _deal_whole(self, block: Block, start: int) -> bool:
        """A lone consumer gets a new block in one piece, when there is nothing in it to skip."""
        new = start == self._next == block.first_offset and not self._replay
        if (
            not new
            or block.messages > self.consumers[0].window
            or has_delays(block.data)
            or self.subscription.free(start, block.next_offset) != [(start, block.next_offset)]
            or self.hosted.hidden(start, block.next_offset) is not None
        ):
            return False
        consumer = self.consumers[0]
        consumer.unacknowledged.add_range(start, block.next_offset)
        self._next = block.next_offset
        counts = self._counts.ranges(start, block.next_offset - 1)
        consumer.send_block(block.data, block.salt, block.messages, redelivered=counts)
        return True

    def _deal_turn(self, block: Block, entries: list[EntryAt], at: int, share: int, ready: list[QueueConsumer]) -> int:
        """One consumer's turn: up to `share` entries that follow each other. Where the next turn begins."""
        while at < len(entries) and not self._due(block, entries[at]):
            self._pass(entries[at])
            at += 1
        if at == len(entries):
            return at
        self._turn += 1
        consumer = ready[self._turn % len(ready)]
        first, due, whole = at, BitMap64(), True
        while whole and at < len(entries) and at - first < share and len(due) < consumer.messages_credit:
            wanted = self._due(block, entries[at])
            if not wanted:
                break
            whole = self._take(wanted, entries[at], consumer, due)
            at += whole
        self._give(consumer, block, entries[first], entries[at - whole], due)
        return at

    def _take(self, wanted: BitMap64, entry: EntryAt, consumer: QueueConsumer, due: BitMap64) -> bool:
        """Add to `due` what the consumer gets of an entry; whether that is all of it.

        An entry that is larger than what the consumer ever has room for is dealt in pieces, so that one does not get
        the work of many. It is sent once for each, so there are few of them.
        """
        if len(wanted) > consumer.window:
            room = max(consumer.messages_credit - len(due), -(-(entry.last + 1 - entry.first) // PIECES_MAX))
            if len(wanted) > room:
                last = wanted[room - 1]
                due |= wanted & range_set(entry.first, last)
                self._next = max(self._next, last + 1) if self._next >= entry.first else self._next
                return False
        due |= wanted
        self._pass(entry)
        return True

    def _due(self, block: Block, entry: EntryAt) -> BitMap64:
        """The messages of an entry that somebody is to get now."""
        due = BitMap64()
        if entry.last >= self._next:
            for start, stop in self.subscription.free(max(entry.first, self._next), entry.last + 1):
                due.add_range(start, stop)
            if due and (hidden := self.hosted.hidden(entry.first, entry.last + 1)) is not None:
                due -= hidden
        if self._replay:
            due |= self._replay & range_set(entry.first, entry.last)
        if entry.delayed and due:
            withheld = self._delays.withhold(block.data[entry.start : entry.stop], due)
            self._replay -= withheld
            due -= withheld
        return due

    def _wall_ms(self) -> int:
        return self.consumers[0].connection.broker.clock.time_ms()

    def _steady_ms(self) -> int:
        return int(self.consumers[0].connection.broker.clock.monotonic() * 1000)

    def _released(self, offsets: BitMap64) -> None:
        """The time of these has come: not a redelivery, but they are read again as such."""
        self._replay |= offsets
        self.pump()

    def _pass(self, entry: EntryAt) -> None:
        """The entry is dealt with. What lies between is not lost: reading is without gaps."""
        if entry.first <= self._next <= entry.last:
            self._next = entry.last + 1

    def _give(self, consumer: QueueConsumer, block: Block, first: EntryAt, last: EntryAt, due: BitMap64) -> None:
        skip = range_set(first.first, last.last)
        skip -= due
        self._replay -= due
        consumer.unacknowledged |= due
        consumer.send_block(
            block.data[first.start : last.stop],
            block.salt,
            len(due),
            runs(skip),
            self._counts.ranges(first.first, last.last),
        )
