"""A segment that several stream consumers share: each owns some of its buckets (PIP-486, semantics 16 to 20)."""

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
from engine.broker.delivery.bucket_assignment import NOBODY, spread
from engine.broker.delivery.consumer import Consumer
from engine.broker.delivery.transactional_acks import acknowledge_buckets, transaction_of
from engine.broker.delivery.waiting_buckets import WaitingBuckets
from engine.broker.segment.reader import SegmentReader
from engine.errors import EngineError, FencedError
from engine.limits import CONNECTION_WRITE_HIGH, READ_BLOCK_SIZE
from engine.storage.file.logfile import Block
from engine.wire import commands
from engine.wire.stream import Payload

if TYPE_CHECKING:
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.session.connection import Connection

log = logging.getLogger(__name__)

# How far the others go on while one sharer takes nothing, in runs of offsets of a bucket, which are entries at most.
DUE_RUNS_MAX = 65_536
# The same, for what was sent and is not acknowledged. A run costs 24 bytes.
RUNS_MAX = 1_048_576
# While others go on, a connection that is full is given more up to here: all read the same blocks then, once.
UNSENT_BYTES_MAX = 2 * CONNECTION_WRITE_HIGH
# The same block is read for all of them. So many together are sent frames as large as one alone is.
BLOCKS_MAX = 2


class Parcel(NamedTuple):
    """What one sharer is sent of one block."""

    consumer: SharedConsumer
    payload: Payload
    salt: int
    messages: int
    skip: list[list[int]] | None


class Sharing(NamedTuple):
    """How a segment is shared now; `reassignments` of buckets are counted since the broker opened the segment.

    `withheld`: buckets whose owner waits for another one's acknowledgements. `drain`: the segment is sealed.
    """

    buckets: int
    reassignments: int
    sharers: int = 0
    withheld: int = 0
    drain: bool = False


class SharedConsumer(Consumer):
    """One of the consumers that share a segment. `number` is what the ledger calls it by."""

    __slots__ = ("_dispatcher", "end_told", "number")
    mode = "shared"

    def __init__(self, connection: Connection, ident: int, name: str, dispatcher: SharedDispatcher) -> None:
        super().__init__(connection, ident, dispatcher.hosted, name, dispatcher.subscription)
        self._dispatcher = dispatcher
        self.end_told = False
        self.number = NOBODY

    @property
    def bucket_count(self) -> int:
        """Buckets it owns."""
        return self._dispatcher.owned(self)

    @property
    def takes(self) -> bool:
        """Whether it is sent its part of what is read for somebody who is ready."""
        connection = self.connection
        spare = not connection.held_back and connection.stream.unsent_bytes < UNSENT_BYTES_MAX
        return (connection.writable or spare) and self.messages_credit > 0 and self.bytes_credit > 0 and not self.closed

    @property
    def pending(self) -> int:
        """Messages it holds."""
        return self._dispatcher.held(self)

    def pump(self) -> None:
        """There is credit or room again."""
        self._dispatcher.pump()

    def detach(self) -> None:
        """What it holds is due to the next owners, in order; nothing is acknowledged."""
        self._dispatcher.detach(self)

    def acknowledge(self, header: commands.Ack) -> Awaitable[Any]:
        """Cumulative, by `buckets` or one `position` for all of them (semantics 19)."""
        positions, inside = positions_of(header, self.hosted), transaction_of(header)
        if inside is not None or self._dispatcher.subscription.pending:
            return acknowledge_buckets(self._dispatcher, self, positions, inside)
        return self._dispatcher.acknowledge(self, positions)


class SharedDispatcher:
    """Routes the entries of a segment to the owners of their buckets. Loop thread only.

    Whose bucket it becomes gets nothing of it until all that another sharer holds of it is acknowledged, or that one
    is gone (semantics 17). A sharer without credit holds up its own buckets: what is due to it is read again later.
    """

    __slots__ = ("_asked", "_crowded", "_cursor", "_ledger", "_owners", "_pumping", "_reader", "_room_bytes",
                 "_room_messages", "_seats", "hosted", "subscription", "waiting")  # fmt: skip

    def __init__(self, subscription: HostedSubscription) -> None:
        self.subscription = subscription
        self.hosted = hosted = subscription.hosted
        self._cursor = subscription.cursor
        self._ledger = BucketLedger(array("H", hosted.spec.bucket_ends), subscription.start)
        self._owners = [NOBODY] * len(hosted.spec.bucket_ends)
        self.waiting = WaitingBuckets(self._ledger, subscription.pending)
        self._seats: list[SharedConsumer | None] = []  # by number
        self._room_messages, self._room_bytes = array("q"), array("q")  # credit of each number, for the ledger
        self._asked = self._ledger.next_offset  # the offset that was last read at
        self._crowded = False
        self._pumping = False
        self._reader = SegmentReader(hosted, self._step, self.close)
        hosted.readers.add(self._reader)

    # -- sharers ---------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> list[SharedConsumer]:
        """Who shares it, by name."""
        return sorted((seat for seat in self._seats if seat is not None), key=lambda consumer: consumer.name)

    @property
    def sharing(self) -> Sharing:
        """See there."""
        return Sharing(
            buckets=len(self._owners),
            reassignments=self.subscription.reassignments,
            sharers=len(self.consumers),
            withheld=self._ledger.withheld,
            drain=self.hosted.segment.sealed,
        )

    def held(self, consumer: SharedConsumer) -> int:
        """Messages that a sharer was sent and has not acknowledged."""
        return self._ledger.held(consumer.number)

    def owned(self, consumer: SharedConsumer) -> int:
        """Buckets of a sharer."""
        return self._owners.count(consumer.number)

    def attach(self, consumer: SharedConsumer) -> None:
        """One more; it takes the seat of its own earlier session, if that is still there."""
        earlier = next((c for c in self.consumers if c.name == consumer.name), None)
        if earlier is not None:
            self._replace(earlier, consumer)
            return
        if None not in self._seats:
            self._seats.append(None)
            self._room_messages.append(0)
            self._room_bytes.append(0)
        consumer.number = self._seats.index(None)
        self._seats[consumer.number] = consumer
        self._assign()

    def _replace(self, earlier: SharedConsumer, consumer: SharedConsumer) -> None:
        """The buckets stay with the name; what was sent to the earlier session is due again."""
        consumer.number, earlier.number = earlier.number, NOBODY
        self._seats[consumer.number] = consumer
        self._ledger.release(consumer.number)
        self.waiting.renew(consumer.number)
        earlier.close(FencedError(f"the consumer {consumer.name!r} attached to {self.subscription} again elsewhere"))
        consumer.sent = self.subscription.left.pop(consumer.name)

    def detach(self, consumer: SharedConsumer) -> None:
        """One leaves. What it holds goes to the next owners first, in order."""
        self.subscription.left[consumer.name] = consumer.sent
        if consumer.number == NOBODY:
            return
        self._seats[consumer.number] = None
        self._ledger.release(consumer.number)
        if self.consumers:
            self._assign()
            self.pump()
        else:
            self._reader.stop()
            self.hosted.readers.discard(self._reader)
            self.subscription.shared_left(self)

    def _assign(self) -> None:
        """Share the buckets out anew."""
        owners = spread(self._owners, [consumer.number for consumer in self.consumers])
        moved = sum(before not in (NOBODY, owner) for before, owner in zip(self._owners, owners, strict=True))
        self.subscription.reassignments += moved
        self._owners = owners
        self.waiting.assign(owners)

    def resume(self) -> None:
        """Something is not held any more: delivery goes on in buckets that have waited for it."""
        self.waiting.look()
        self.pump()

    def close(self, error: EngineError) -> None:
        """Everybody is told; nobody is given what another one leaves behind."""
        self._pumping = True
        for consumer in self.consumers:
            consumer.close(error)

    def tell_end(self) -> None:
        """The segment is drained: its consumers can let go of it."""
        for consumer in self.consumers:
            if not consumer.end_told:
                consumer.end_told = True
                consumer.send_end(self.hosted.segment.messages_end)

    @property
    def ledger(self) -> BucketLedger:
        """Who was sent what, and has not acknowledged it."""
        return self._ledger

    # -- acknowledging ---------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: SharedConsumer, positions: list[Position]) -> Awaitable[None]:
        """Done when durable. FencedError when it says more than its buckets allow; the others are saved even so.

        Raises NotOwnerError when nothing can be saved here any more.
        """
        self._cursor.check_usable()
        routed = self._ledger.next_offset
        if any(position > routed for _, position in positions):
            return self._acknowledge_unread(consumer, positions)
        return self._acknowledge(consumer, positions, [])

    async def _acknowledge_unread(self, consumer: SharedConsumer, positions: list[Position]) -> None:
        """Some of it was not even read in this attachment's life: an id from an earlier one."""
        start = self._ledger.next_offset
        unread = [(bucket, position) for bucket, position in positions if position > start]
        found = await find(self.hosted, unread, start)
        check_attached(consumer)
        self._cursor.check_usable()
        await self._acknowledge(consumer, positions, [run for run in found if self._cursor.unacked(*run[1:])])

    def _acknowledge(
        self, consumer: SharedConsumer, positions: list[Position], unread: list[tuple[int, int, int]]
    ) -> Awaitable[None]:
        ledger = self._ledger
        floor, ranges, refused = ledger.acknowledge(consumer.number, positions)
        offsets = offset_set(ranges, ledger.next_offset)
        theirs = {bucket for bucket, _, _ in unread if ledger.active(bucket) != consumer.number}
        for bucket, start, stop in unread:
            if bucket not in theirs:
                offsets.add_range(start, stop)
        saved = self.subscription.ack_set(offsets, floor)
        self.pump()
        theirs.update(refused)
        return self._refuse(saved, consumer, sorted(theirs)) if theirs else saved

    async def _refuse(self, saved: Awaitable[None], consumer: SharedConsumer, buckets: list[int]) -> None:
        await saved
        raise FencedError(
            f"{consumer.name!r} acknowledged in buckets of {self.subscription} that it does not own any more: {buckets}"
        )

    # -- sending ---------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send until credit, room or durable data run out."""
        if self._pumping or not any(self._seats):
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
                self._reader.stop()  # it waits for what is new
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
            self.subscription.look()
        elif self._routed() >= segment.durable_offset and not self._is_crowded():
            self._reader.wait(self._ledger.next_offset)

    def _step(self, block: Block | None) -> None:
        """A read or a wait has ended. While a block from the disk is being sent, the next one is read."""
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
        if self._reader.busy:  # its first step comes before what is called soon
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
        """Note the sharers' credit. Whether anybody is ready for more."""
        ready = False
        for number, consumer in enumerate(self._seats):
            takes = consumer is not None and consumer.takes
            ready = ready or (consumer is not None and consumer.ready)
            self._room_messages[number] = consumer.messages_credit if consumer is not None and takes else 0
            self._room_bytes[number] = consumer.bytes_credit if consumer is not None and takes else 0
        return ready

    def _wanted(self) -> int | None:
        """The offset to read at: what was left behind goes first. None while nobody can take anything."""
        due = self._ledger.first_due(self._room_messages, self._room_bytes)
        if due >= 0:
            return due
        if self._is_crowded() or max(self._room_messages) <= 0:
            return None
        return self._routed()

    def _routed(self) -> int:
        """The offset to read at behind what was routed, and behind the gap that begins there."""
        ledger = self._ledger
        ledger.go_on(self.hosted.segment.gaps.skip(ledger.next_offset))
        return ledger.next_offset

    def _read_size(self) -> int:
        takers = len(self._room_bytes) - self._room_bytes.count(0)
        size = next((seat.connection.block_size for seat in self._seats if seat is not None), READ_BLOCK_SIZE)
        return min(max(sum(self._room_bytes), 1), size * min(max(takers, 1), BLOCKS_MAX))

    def _is_crowded(self) -> bool:
        """Whether so much is due or unacknowledged that nothing new is read until somebody takes or acknowledges it."""
        crowded = self._ledger.due_runs >= DUE_RUNS_MAX or self._ledger.runs >= RUNS_MAX
        if crowded and not self._crowded:
            held = {consumer.name: self.held(consumer) for consumer in self.consumers}
            log.warning(
                "%s: nothing new is read until more is acknowledged; who holds what: %s", self.subscription, held
            )
        self._crowded = crowded
        return crowded

    def _route(self, block: Block) -> list[Parcel]:
        """What goes to whom of a block that was read at `_asked`."""
        ledger, free = self._ledger, self.subscription.free
        if block.first_offset > self._asked:  # retention took what was before
            ledger.forget(block.first_offset)
        new = max(block.first_offset, ledger.next_offset)
        runs = free(new, block.next_offset) if self.subscription.free_from > new else None
        if (hidden := self.hosted.hidden(new, block.next_offset)) is not None:
            runs = _without([(new, block.next_offset)] if runs is None else runs, hidden)
        parcels = ledger.route(block.parts, self._room_messages, self._room_bytes, runs)
        return [
            Parcel(self._seat(number), payload, block.salt, messages, skip)
            for number, payload, messages, skip in parcels
        ]

    def _seat(self, number: int) -> SharedConsumer:
        consumer = self._seats[number]
        assert consumer is not None  # it has credit
        return consumer

    def _send(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            if not parcel.consumer.closed:  # else it is due to another one by now
                parcel.consumer.send_block(parcel.payload, parcel.salt, parcel.messages, parcel.skip)


def _without(runs: list[tuple[int, int]], hidden: BitMap64) -> list[tuple[int, int]]:
    """What is left of runs [start, stop)."""
    offsets = BitMap64()
    for start, stop in runs:
        offsets.add_range(start, stop)
    return [(first, last + 1) for first, last in offset_runs(offsets - hidden)]
