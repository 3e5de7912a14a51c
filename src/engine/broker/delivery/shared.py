"""A segment shared by several stream consumers, each of which owns some of its buckets (PIP-486, semantics 16 to 20).

    one reader ─> block ─> BucketLedger.route(): each entry to the owner of its bucket ─> one parcel per consumer
                                │
                                └─ not routed now: the bucket's owner has no room, or has to wait ─> due, read again

Every entry belongs to one bucket, and within a bucket order is kept. The ledger knows for each bucket which runs of
offsets were sent and are not acknowledged, and which are due, that is read but not sent. Native code (`SharedOutlets`
in `_native/serve/dispatch.pyx`) does what repeats with each block, in rounds:

1. The credit of every consumer is noted. The round ends when no consumer is ready.
2. What is wanted is the lowest offset that is due to a consumer with room; else the end of what was routed, unless too
   many runs are due or unacknowledged.
3. The block there is read, routed and sent; what is acknowledged, hidden or in an open transaction is skipped. It calls
   SharedDispatcher for such messages of a new block.

When a bucket gets a new owner, the ledger withholds the bucket from it until the previous owner has acknowledged what
it holds, or has detached (semantics 17); messages that it did not acknowledge are due again to the new owner, first.
A consumer without room delays only its own buckets. While others go on, a connection that is full is given some more
(UNSENT_BYTES_MAX), so that all consumers read the same blocks, and each block is read once.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, NamedTuple

from pyroaring import BitMap64

from engine._native.format.offsets import offset_set
from engine._native.format.offsets import runs as offset_runs
from engine._native.serve.dispatch import BucketLedger, SharedOutlets
from engine.broker.delivery.bucket_acks import Position, check_attached, find, positions_of
from engine.broker.delivery.bucket_assignment import UNASSIGNED, spread
from engine.broker.delivery.consumer import Consumer
from engine.broker.delivery.transactional_acks import acknowledge_buckets, transaction_of
from engine.broker.delivery.waiting_buckets import WaitingBuckets
from engine.broker.segment.reader import SegmentReader
from engine.errors import EngineError, FencedError
from engine.limits import CONNECTION_WRITE_HIGH
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands

if TYPE_CHECKING:
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.ports import Peer

log = logging.getLogger(__name__)

DUE_RUNS_MAX = 65_536  # runs of offsets that are due to consumers without room; above it nothing new is read
RUNS_MAX = 1_048_576  # the same, of runs that were sent and are not acknowledged; a run costs 24 bytes
UNSENT_BYTES_MAX = 2 * CONNECTION_WRITE_HIGH  # for a connection that is full, while other consumers go on


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


class SharedDispatcher(SharedOutlets):
    """Routes the entries of a segment to the owners of their buckets. Loop thread only.

    A bucket's new owner receives nothing until the previous owner has acknowledged, or detached (semantics 17).
    """

    __slots__ = ("_owners", "waiting")
    hosted: HostedSegment
    subscription: HostedSubscription
    members: list[SharedConsumer | None]  # by number

    def __init__(self, subscription: HostedSubscription) -> None:
        hosted, ends = subscription.hosted, subscription.hosted.spec.bucket_ends
        super().__init__(
            subscription,
            BucketLedger(array("H", ends), subscription.start),
            lambda step: SegmentReader(hosted, step, self.close),
            due_runs_max=DUE_RUNS_MAX,
            runs_max=RUNS_MAX,
            unsent_max=UNSENT_BYTES_MAX,
        )
        self._owners = [UNASSIGNED] * len(ends)
        self.waiting = WaitingBuckets(self.ledger, subscription.pending)
        hosted.readers.add(self.reader)

    # -- members ---------------------------------------------------------------------------------------------------

    @property
    def consumers(self) -> list[SharedConsumer]:
        """The members, in order of name."""
        return sorted((member for member in self.members if member is not None), key=lambda consumer: consumer.name)

    @property
    def sharing(self) -> Sharing:
        """How the segment is shared now."""
        return Sharing(
            buckets=len(self._owners),
            reassignments=self.subscription.reassignments,
            sharers=len(self.consumers),
            withheld=self.ledger.withheld,
            drain=self.hosted.segment.sealed,
        )

    def held(self, consumer: SharedConsumer) -> int:
        """Messages that a member was sent and has not acknowledged."""
        return self.ledger.held(consumer.number)

    def owned(self, consumer: SharedConsumer) -> int:
        """The number of buckets of a member."""
        return self._owners.count(consumer.number)

    def attach(self, consumer: SharedConsumer) -> None:
        """Add a member. It replaces its own earlier session, if that is attached."""
        earlier = next((c for c in self.consumers if c.name == consumer.name), None)
        if earlier is not None:
            self._replace(earlier, consumer)
            return
        if None not in self.members:
            self.members.append(None)
        consumer.number = self.members.index(None)
        self.members[consumer.number] = consumer
        self._assign()

    def _replace(self, earlier: SharedConsumer, consumer: SharedConsumer) -> None:
        """The buckets stay with the name; messages that the earlier session holds are due again."""
        consumer.number, earlier.number = earlier.number, UNASSIGNED
        self.members[consumer.number] = consumer
        self.ledger.release(consumer.number)
        self.waiting.renew(consumer.number)
        earlier.close(FencedError(f"the consumer {consumer.name!r} attached to {self.subscription} again elsewhere"))
        consumer.sent = self.subscription.left.pop(consumer.name)

    def detach(self, consumer: SharedConsumer) -> None:
        """Remove a member. Messages that it holds are due to the next owners first, in order."""
        self.subscription.left[consumer.name] = consumer.sent
        if consumer.number == UNASSIGNED:
            return
        self.members[consumer.number] = None
        self.ledger.release(consumer.number)
        if self.consumers:
            self._assign()
            self.pump()
        else:
            self.reader.stop()
            self.hosted.readers.discard(self.reader)
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
        self.pumping = True  # none gets the buckets of one that is closed before it
        for consumer in self.consumers:
            consumer.close(error)

    def send_end(self) -> None:
        """The segment is drained: its consumers may close."""
        for consumer in self.consumers:
            if not consumer.end_sent:
                consumer.end_sent = True
                consumer.send_end(self.hosted.segment.messages_end)

    # -- acknowledging ---------------------------------------------------------------------------------------------

    def acknowledge(
        self, consumer: SharedConsumer, positions: list[Position], *, lazy: bool = False
    ) -> Awaitable[None]:
        """Acknowledge up to a position in each bucket. Done when durable.

        Fails with FencedError when some buckets are not its own; the others are saved even so. Raises NotOwnerError
        when another broker owns the segment.
        """
        self.subscription.cursor.check_usable()
        if self.ledger.beyond(positions):
            return self._acknowledge_unread(consumer, positions)
        return self._acknowledge(consumer, positions, [], lazy=lazy)

    async def _acknowledge_unread(self, consumer: SharedConsumer, positions: list[Position]) -> None:
        """Some positions were not routed since the segment was shared: message ids of an earlier attachment."""
        start = self.ledger.next_offset
        unread = [(bucket, position) for bucket, position in positions if position > start]
        found = await find(self.hosted, unread, start)
        check_attached(consumer)
        cursor = self.subscription.cursor
        cursor.check_usable()
        await self._acknowledge(consumer, positions, [run for run in found if cursor.unacked(*run[1:])])

    def _acknowledge(
        self,
        consumer: SharedConsumer,
        positions: list[Position],
        unread: list[tuple[int, int, int]],
        *,
        lazy: bool = False,
    ) -> Awaitable[None]:
        ledger = self.ledger
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

    def free_runs(self, start: int, stop: int) -> list[tuple[int, int]] | None:
        """Runs of the new offsets [start, stop) to deliver: not acknowledged, in no open transaction, not hidden.

        None: all.
        """
        runs = self.subscription.free(start, stop)
        if (hidden := self.hosted.hidden(start, stop)) is not None:
            runs = _without(runs, hidden)
        return None if runs == [(start, stop)] else runs

    def paused(self) -> None:
        """So much is due or unacknowledged that nothing new is read for now."""
        held = {consumer.name: self.held(consumer) for consumer in self.consumers}
        log.warning("%s: delivery is paused until more is acknowledged; messages held: %s", self.subscription, held)


def _without(runs: list[tuple[int, int]], hidden: BitMap64) -> list[tuple[int, int]]:
    """Runs [start, stop) without hidden offsets."""
    offsets = BitMap64()
    for start, stop in runs:
        offsets.add_range(start, stop)
    return [(first, last + 1) for first, last in offset_runs(offsets - hidden)]
