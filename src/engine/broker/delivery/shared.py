"""A segment shared by several stream consumers, each of which owns some of its buckets (PIP-486, semantics 16 to 20).

    one reader ─> block ─> BucketLedger.route(): each entry to the owner of its bucket ─> one parcel per consumer
                                │
                                └─ not routed now: the bucket's owner has no room, or has to wait ─> due, read again

Every entry belongs to one bucket, and within a bucket order is kept. The ledger (native) knows for each bucket which
runs of offsets were sent and are not acknowledged, and which are due, that is read but not sent. Each round of `_pump`:

1. `_measure` notes the credit of every consumer. The round ends when no consumer is ready.
2. `_wanted` is the lowest offset that is due to a consumer with room; else the end of what was routed, unless too many
   runs are due or unacknowledged (`_is_crowded`).
3. The block there is read and routed; what is acknowledged, hidden or in an open transaction is skipped.

When a bucket gets a new owner, the ledger withholds the bucket from it until the previous owner has acknowledged what
it holds, or has detached (semantics 17); messages that it did not acknowledge are due again to the new owner, first.
A consumer without room delays only its own buckets. While others go on, a connection that is full is given some more
(UNSENT_BYTES_MAX), so that all consumers read the same blocks, and each block is read once.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple

from pyroaring import BitMap64

from engine._native.format.offsets import offset_set
from engine._native.format.offsets import runs as offset_runs
from engine._native.serve.dispatch import BucketLedger
from engine.broker.delivery.bucket_acks import Position, check_attached, find, positions_of
from engine.broker.delivery.bucket_assignment import UNASSIGNED, spread
from engine.broker.delivery.consumer import Consumer
from engine.broker.delivery.transactional_acks import acknowledge_buckets, transaction_of
from engine.broker.delivery.waiting_buckets import WaitingBuckets
from engine.broker.segment.reader import SegmentReader
from engine.errors import EngineError, FencedError
from engine.limits import CONNECTION_WRITE_HIGH, READ_BLOCK_SIZE
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands
from engine.wire.stream import Payload

if TYPE_CHECKING:
    from engine._native.serve.blocks import Block
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.segment.ports import Peer

log = logging.getLogger(__name__)

DUE_RUNS_MAX = 65_536  # runs of offsets that are due to consumers without room; above it nothing new is read
RUNS_MAX = 1_048_576  # the same, of runs that were sent and are not acknowledged; a run costs 24 bytes
UNSENT_BYTES_MAX = 2 * CONNECTION_WRITE_HIGH  # for a connection that is full, while other consumers go on
BLOCKS_MAX = 2  # the size of one read, in blocks of one consumer: it is split among several


class Parcel(NamedTuple):
    """What one consumer is sent of one block."""

    consumer: SharedConsumer
    payload: Payload
    salt: int
    messages: int
    skip: list[list[int]] | None


class Sharing(NamedTuple):
    """How a segment is shared now. `reassignments`: of buckets, counted since the broker opened the segment.

    `withheld`: buckets whose owner waits for the previous one's acknowledgements. `drain`: the segment is sealed.
    """

    buckets: int
    reassignments: int
    sharers: int = 0
    withheld: int = 0
    drain: bool = False


class SharedConsumer(Consumer):
    """One of the consumers that share a segment. `number`: its number in the ledger."""

    __slots__ = ("_dispatcher", "end_sent", "number")
    mode = DeliveryMode.SHARED

    def __init__(self, connection: Peer, ident: int, name: str, dispatcher: SharedDispatcher) -> None:
        super().__init__(connection, ident, dispatcher.hosted, name, dispatcher.subscription)
        self._dispatcher = dispatcher
        self.end_sent = False
        self.number = UNASSIGNED

    @property
    def bucket_count(self) -> int:
        """The number of buckets that it owns."""
        return self._dispatcher.owned(self)

    @property
    def takes(self) -> bool:
        """Whether it is sent its part of a block that is read for a consumer that is ready."""
        if self.messages_credit <= 0 or self.bytes_credit <= 0 or self.closed:
            return False
        return self.connection.writable or self.connection.has_room(UNSENT_BYTES_MAX)

    @property
    def pending(self) -> int:
        """Messages that it holds."""
        return self._dispatcher.held(self)

    def pump(self) -> None:
        """Route: there is credit or room again."""
        self._dispatcher.pump()

    def detach(self) -> None:
        """Messages that it holds are due to the next owners of their buckets, in order."""
        self._dispatcher.detach(self)

    def acknowledge(self, header: commands.Ack) -> Awaitable[Any]:
        """Cumulative, by `buckets` or one `position` for all of them (semantics 19)."""
        positions, inside = positions_of(header, self.hosted), transaction_of(header, self.connection.role)
        if inside is not None or self._dispatcher.subscription.pending:
            return acknowledge_buckets(self._dispatcher, self, positions, inside)
        return self._dispatcher.acknowledge(self, positions, lazy=bool(header.lazy))


class SharedDispatcher:
    """Routes the entries of a segment to the owners of their buckets. Loop thread only.

    A bucket's new owner receives nothing until the previous owner has acknowledged, or detached (semantics 17).
    """

    __slots__ = (
        "_asked",
        "_crowded",
        "_cursor",
        "_ledger",
        "_members",
        "_owners",
        "_pumping",
        "_reader",
        "_room_bytes",
        "_room_messages",
        "hosted",
        "subscription",
        "waiting",
    )  # fmt: skip

    def __init__(self, subscription: HostedSubscription) -> None:
        self.subscription = subscription
        self.hosted = hosted = subscription.hosted
        self._cursor = subscription.cursor
        self._ledger = BucketLedger(array("H", hosted.spec.bucket_ends), subscription.start)
        self._owners = [UNASSIGNED] * len(hosted.spec.bucket_ends)
        self.waiting = WaitingBuckets(self._ledger, subscription.pending)
        self._members: list[SharedConsumer | None] = []  # by number
        self._room_messages, self._room_bytes = array("q"), array("q")  # by number, for the ledger
        self._asked = self._ledger.next_offset  # the offset that was last read at
        self._crowded = False
        self._pumping = False
        self._reader = SegmentReader(hosted, self._step, self.close)
        hosted.readers.add(self._reader)

    # -- members ---------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> list[SharedConsumer]:
        """The members, in order of name."""
        return sorted((member for member in self._members if member is not None), key=lambda consumer: consumer.name)

    @property
    def sharing(self) -> Sharing:
        """How the segment is shared now."""
        return Sharing(
            buckets=len(self._owners),
            reassignments=self.subscription.reassignments,
            sharers=len(self.consumers),
            withheld=self._ledger.withheld,
            drain=self.hosted.segment.sealed,
        )

    def held(self, consumer: SharedConsumer) -> int:
        """Messages that a member was sent and has not acknowledged."""
        return self._ledger.held(consumer.number)

    def owned(self, consumer: SharedConsumer) -> int:
        """The number of buckets of a member."""
        return self._owners.count(consumer.number)

    def attach(self, consumer: SharedConsumer) -> None:
        """Add a member. It replaces its own earlier session, if that is attached."""
        earlier = next((c for c in self.consumers if c.name == consumer.name), None)
        if earlier is not None:
            self._replace(earlier, consumer)
            return
        if None not in self._members:
            self._members.append(None)
            self._room_messages.append(0)
            self._room_bytes.append(0)
        consumer.number = self._members.index(None)
        self._members[consumer.number] = consumer
        self._assign()

    def _replace(self, earlier: SharedConsumer, consumer: SharedConsumer) -> None:
        """The buckets stay with the name; messages that the earlier session holds are due again."""
        consumer.number, earlier.number = earlier.number, UNASSIGNED
        self._members[consumer.number] = consumer
        self._ledger.release(consumer.number)
        self.waiting.renew(consumer.number)
        earlier.close(FencedError(f"the consumer {consumer.name!r} attached to {self.subscription} again elsewhere"))
        consumer.sent = self.subscription.left.pop(consumer.name)

    def detach(self, consumer: SharedConsumer) -> None:
        """Remove a member. Messages that it holds are due to the next owners first, in order."""
        self.subscription.left[consumer.name] = consumer.sent
        if consumer.number == UNASSIGNED:
            return
        self._members[consumer.number] = None
        self._ledger.release(consumer.number)
        if self.consumers:
            self._assign()
            self.pump()
        else:
            self._reader.stop()
            self.hosted.readers.discard(self._reader)
            self.subscription.shared_left(self)

    def _assign(self) -> None:
        """Assign the buckets to the members."""
        owners = spread(self._owners, [consumer.number for consumer in self.consumers])
        moved = sum(before not in (UNASSIGNED, owner) for before, owner in zip(self._owners, owners, strict=True))
        self.subscription.reassignments += moved
        self._owners = owners
        self.waiting.assign(owners)

    def resume(self) -> None:
        """A transaction has ended: deliver in buckets that have waited for it."""
        self.waiting.recheck()
        self.pump()

    def close(self, error: EngineError) -> None:
        """Close all members with an error."""
        self._pumping = True  # none gets the buckets of one that is closed before it
        for consumer in self.consumers:
            consumer.close(error)

    def send_end(self) -> None:
        """The segment is drained: its consumers may close."""
        for consumer in self.consumers:
            if not consumer.end_sent:
                consumer.end_sent = True
                consumer.send_end(self.hosted.segment.messages_end)

    @property
    def ledger(self) -> BucketLedger:
        """Which member was sent which messages, and has not acknowledged them."""
        return self._ledger

    # -- acknowledging ---------------------------------------------------------------------------------------------

    def acknowledge(
        self, consumer: SharedConsumer, positions: list[Position], *, lazy: bool = False
    ) -> Awaitable[None]:
        """Acknowledge up to a position in each bucket. Done when durable.

        Fails with FencedError when some buckets are not its own; the others are saved even so. Raises NotOwnerError
        when another broker owns the segment.
        """
        self._cursor.check_usable()
        routed = self._ledger.next_offset
        if any(position > routed for _, position in positions):
            return self._acknowledge_unread(consumer, positions)
        return self._acknowledge(consumer, positions, [], lazy=lazy)

    async def _acknowledge_unread(self, consumer: SharedConsumer, positions: list[Position]) -> None:
        """Some positions were not routed since the segment was shared: message ids of an earlier attachment."""
        start = self._ledger.next_offset
        unread = [(bucket, position) for bucket, position in positions if position > start]
        found = await find(self.hosted, unread, start)
        check_attached(consumer)
        self._cursor.check_usable()
        await self._acknowledge(consumer, positions, [run for run in found if self._cursor.unacked(*run[1:])])

    def _acknowledge(
        self,
        consumer: SharedConsumer,
        positions: list[Position],
        unread: list[tuple[int, int, int]],
        *,
        lazy: bool = False,
    ) -> Awaitable[None]:
        ledger = self._ledger
        floor, ranges, refused = ledger.acknowledge(consumer.number, positions)
        offsets = offset_set(ranges, ledger.next_offset)
        theirs = {bucket for bucket, _, _ in unread if ledger.active(bucket) != consumer.number}
        for bucket, start, stop in unread:
            if bucket not in theirs:
                offsets.add_range(start, stop)
        saved = self.subscription.ack_set(offsets, floor, lazy=lazy)
        self.pump()
        theirs.update(refused)
        return self._refuse(saved, consumer, sorted(theirs)) if theirs else saved

    async def _refuse(self, saved: Awaitable[None], consumer: SharedConsumer, buckets: list[int]) -> None:
        await saved
        raise FencedError(
            f"{consumer.name!r} acknowledged in buckets of {self.subscription} that it does not own: {buckets}"
        )

    # -- sending ---------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send until credit, room or durable messages run out."""
        if self._pumping or not any(self._members):
            return
        self._pumping = True
        try:
            self._pump()
        except EngineError as e:
            self.close(e)
        finally:
            self._pumping = False

    def _pump(self) -> None:
        while self._measure() and (wanted := self._wanted()) is not None:
            if self._reader.busy:
                if not self._reader.waiting or wanted == self._ledger.next_offset:
                    return
                self._reader.stop()  # it waits for new messages, and others are due
            self._asked = wanted
            block = self._reader.read(wanted, self._read_size())
            if block is None:
                break
            self._send(self._route(block))
        if not self._reader.busy:
            self._pump_at_end()

    def _pump_at_end(self) -> None:
        segment = self.hosted.segment
        if segment.sealed:
            self.subscription.check_drained()
        elif self._routed() >= segment.durable_offset and not self._is_crowded():
            self._reader.wait(self._ledger.next_offset)

    def _step(self, block: Block | None) -> None:
        """A read or a wait has ended. The next block is read from disk while this one is sent."""
        if block is None:
            self.pump()
            return
        try:
            self._measure()
            parcels = self._route(block)
        except EngineError as e:
            self.close(e)
            return
        self._read_ahead()
        if self._reader.busy:  # that read begins in the next turn of the loop, before this block is sent
            asyncio.get_running_loop().call_soon(self._send_read, parcels)
        else:
            self._send_read(parcels)

    def _read_ahead(self) -> None:
        wanted = self._wanted()
        if wanted is not None and wanted < self.hosted.segment.durable_offset:
            self._asked = wanted
            self._reader.read_ahead(wanted, self._read_size())

    def _send_read(self, parcels: list[Parcel]) -> None:
        self._send(parcels)
        self.pump()

    def _measure(self) -> bool:
        """Note the credit of all members. Whether any is ready for more."""
        ready = False
        for number, consumer in enumerate(self._members):
            takes = consumer is not None and consumer.takes
            ready = ready or (consumer is not None and consumer.ready)
            self._room_messages[number] = consumer.messages_credit if consumer is not None and takes else 0
            self._room_bytes[number] = consumer.bytes_credit if consumer is not None and takes else 0
        return ready

    def _wanted(self) -> int | None:
        """The offset to read at: due messages go first. None while no member can be sent any."""
        due = self._ledger.first_due(self._room_messages, self._room_bytes)
        if due >= 0:
            return due
        if self._is_crowded() or max(self._room_messages) <= 0:
            return None
        return self._routed()

    def _routed(self) -> int:
        """The offset after the last one that was routed, and after the gap that begins there."""
        ledger = self._ledger
        ledger.go_on(self.hosted.segment.gaps.skip(ledger.next_offset))
        return ledger.next_offset

    def _read_size(self) -> int:
        takers = len(self._room_bytes) - self._room_bytes.count(0)
        size = next((m.connection.block_size for m in self._members if m is not None), READ_BLOCK_SIZE)
        return min(max(sum(self._room_bytes), 1), size * min(max(takers, 1), BLOCKS_MAX))

    def _is_crowded(self) -> bool:
        """Whether so many runs are due or unacknowledged that nothing new is read for now."""
        crowded = self._ledger.due_runs >= DUE_RUNS_MAX or self._ledger.runs >= RUNS_MAX
        if crowded and not self._crowded:
            held = {consumer.name: self.held(consumer) for consumer in self.consumers}
            log.warning("%s: delivery is paused until more is acknowledged; messages held: %s", self.subscription, held)
        self._crowded = crowded
        return crowded

    def _route(self, block: Block) -> list[Parcel]:
        """The parcels of a block that was read at `_asked`."""
        ledger, free = self._ledger, self.subscription.free
        if block.first_offset > self._asked:  # retention has deleted what was before, or it is a gap: the reader checks
            ledger.forget(block.first_offset)
        new = max(block.first_offset, ledger.next_offset)
        runs = free(new, block.next_offset) if self.subscription.free_from > new else None
        if (hidden := self.hosted.hidden(new, block.next_offset)) is not None:
            runs = _without([(new, block.next_offset)] if runs is None else runs, hidden)
        parcels = ledger.route(block.parts, self._room_messages, self._room_bytes, runs)
        return [
            Parcel(self._member(number), payload, block.salt, messages, skip)
            for number, payload, messages, skip in parcels
        ]

    def _member(self, number: int) -> SharedConsumer:
        consumer = self._members[number]
        assert consumer is not None  # the ledger routes to members with credit
        return consumer

    def _send(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            if not parcel.consumer.closed:  # else its messages are due to another member by now
                parcel.consumer.send_block(parcel.payload, parcel.salt, parcel.messages, parcel.skip)


def _without(runs: list[tuple[int, int]], hidden: BitMap64) -> list[tuple[int, int]]:
    """Runs [start, stop) without hidden offsets."""
    offsets = BitMap64()
    for start, stop in runs:
        offsets.add_range(start, stop)
    return [(first, last + 1) for first, last in offset_runs(offsets - hidden)]
