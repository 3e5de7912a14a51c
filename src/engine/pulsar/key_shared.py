"""Key_Shared: each message of a subscription goes to the consumer that owns its key, in the order of the key.

A consumer owns some of the 65,536 hashes: an equal share, by age (AUTO_SPLIT), or those that it has asked for (STICKY).
When a hash changes hands, messages of its keys may still be with the earlier owner. So a message of hash h goes out if

    held[h]      no other consumer holds messages of h that it has not acknowledged, and
    blocked      no earlier message of h is kept back here, and
    credit       its owner takes messages now

and else it is kept back. What is kept back is due again at the next event that may change one of the three: an
acknowledgement, a consumer that comes, leaves or grants permits. It is then dealt from the lowest offset on, so a key's
order is that of its offsets.

A batch of mixed keys is sent to each of its owners, with the bits of the messages that are theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from engine._native.format.entry import Entry
from engine._native.format.heads import Head, entry_heads, groups_in
from engine._native.pulsar.delivered import key_hashes
from engine.broker.delivery.queue import QueueConsumer, QueueDispatcher
from engine.broker.delivery.together import Together
from engine.errors import ConsumerBusyError, InvalidArgumentError
from engine.limits import HASH_RING_SIZE
from engine.model.compression import decompressor

if TYPE_CHECKING:
    import asyncio

    from engine.broker.delivery.subscription import HostedSubscription
    from engine.model.redelivery import Backoff

Ranges = list[tuple[int, int]]  # of hashes, inclusive

_BLOCKED_MAX = 50_000  # messages kept back; above it nothing new is read


class KeyDispatcher(QueueDispatcher):
    """Deals by key. Loop thread only."""

    __slots__ = ("_blocked", "_blocked_hashes", "_decompress", "_hash_of", "_held", "_owners", "_ranges", "expected")

    def __init__(self, subscription: HostedSubscription) -> None:
        super().__init__(subscription)
        # What is asked for a consumer that attaches next, by its connection and id. None: an equal share.
        self.expected: dict[tuple[Any, int], Ranges | None] = {}
        self._ranges: dict[QueueConsumer, Ranges | None] = {}  # by age
        self._owners: list[QueueConsumer | None] = [None] * HASH_RING_SIZE
        self._blocked = BitMap64()
        self._blocked_hashes: set[int] = set()
        self._hash_of: dict[int, int] = {}  # of messages that are held
        self._held: dict[
            int, tuple[QueueConsumer, int]
        ] = {}  # hash -> the consumer that holds messages of it, and how many
        self._decompress = decompressor()

    # -- members ---------------------------------------------------------------------------------------------------

    def check(self, ranges: Ranges | None) -> None:
        """Raise ConsumerBusyError unless a consumer that asks for these may join, InvalidArgumentError."""
        others = [*self._ranges.values(), *self.expected.values()]
        if any((ranges is None) is not (other is None) for other in others):
            raise ConsumerBusyError("the consumers of a Key_Shared subscription must all be sticky, or none of them")
        if ranges is not None and not ranges:
            raise InvalidArgumentError("a sticky consumer must ask for at least one hash range, got none")
        taken = [one for other in others for one in other or ()]
        for start, end in ranges or ():
            if not 0 <= start <= end < HASH_RING_SIZE:
                raise InvalidArgumentError(f"a hash range must lie in 0 to {HASH_RING_SIZE - 1}, got {start} to {end}")
            if any(start <= last and first <= end for first, last in taken):
                raise ConsumerBusyError(f"the hash range {start} to {end} is in part another consumer's")
            taken.append((start, end))

    def attach(self, consumer: QueueConsumer) -> None:
        self._ranges[consumer] = self.expected.pop((consumer.connection, consumer.ident), None)
        self._assign()
        super().attach(consumer)

    def settle(self, connection: object, ident: int) -> None:
        """A consumer that was expected has attached, or will not. Without any, it is of no use."""
        self.expected.pop((connection, ident), None)
        if not self.consumers and not self.expected:
            self.reader.stop()
            self.hosted.readers.discard(self.reader)
            self.subscription.queue_left(self)

    def detach(self, consumer: QueueConsumer) -> None:
        self._let_go(consumer.unacknowledged)
        self._ranges.pop(consumer, None)
        self._assign()
        super().detach(consumer)

    def _assign(self) -> None:
        members = list(self._ranges)
        self._owners = [None] * HASH_RING_SIZE
        for number, member in enumerate(members):
            share = HASH_RING_SIZE * number // len(members), HASH_RING_SIZE * (number + 1) // len(members) - 1
            for start, end in self._ranges[member] or (share,):
                self._owners[start : end + 1] = [member] * (end + 1 - start)

    # -- what is held ----------------------------------------------------------------------------------------------

    def _hold(self, consumer: QueueConsumer, offset: int, key: int) -> None:
        self._hash_of[offset] = key
        self._held[key] = consumer, self._held.get(key, (consumer, 0))[1] + 1

    def _let_go(self, offsets: BitMap64) -> None:
        for offset in offsets:
            if (key := self._hash_of.pop(offset, None)) is not None:
                holder, count = self._held[key]
                if count > 1:
                    self._held[key] = holder, count - 1
                else:
                    del self._held[key]

    def set_aside(self, by: QueueConsumer, offsets: BitMap64) -> None:
        self._let_go(offsets if len(offsets) <= len(self._hash_of) else BitMap64(self._hash_of) & offsets)
        self._blocked -= offsets
        super().set_aside(by, offsets)

    def acknowledge(self, by: QueueConsumer, offsets: BitMap64, *, lazy: bool = False) -> asyncio.Future[None]:
        done = super().acknowledge(by, offsets, lazy=lazy)
        if self._blocked:
            self.pump()
        return done

    def redeliver(self, consumer: QueueConsumer, offsets: BitMap64, backoff: Backoff | None = None) -> None:
        self._let_go(consumer.unacknowledged & offsets)
        super().redeliver(consumer, offsets, backoff)

    # -- dealing ---------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        if not self.pumping and self._blocked:
            self.replay |= self._blocked
            self._blocked = BitMap64()
            self._blocked_hashes.clear()
        super().pump()

    def ready(self) -> list[QueueConsumer]:
        return [] if len(self._blocked) > _BLOCKED_MAX else super().ready()

    def deal(self, block: Any, start: int) -> None:
        if start < block.first_offset:  # as in the dispatcher of queues
            self.replay.remove_range(start, block.first_offset)
            self.next_offset = max(self.next_offset, block.first_offset)
        groups = groups_in(block.data)
        if groups and self.together is None:
            self.together = Together()
        for entry in entry_heads(block.data):
            due = self.due(block, entry)
            if due and self.together is not None and entry.start in groups:
                group, begins = groups[entry.start]
                self.together.meet(group, entry.first, begins=begins)
            self.pass_over(entry)
            if due:
                self.replay -= due
                self._deal_entry(block, entry, due)

    def _deal_entry(self, block: Any, entry: Head, due: BitMap64) -> None:
        keys = memoryview(key_hashes(Entry(block.data[entry.start : entry.stop]), self._decompress)).cast("H")
        shares: dict[QueueConsumer, BitMap64] = {}
        for offset in due:
            key = keys[offset - entry.first]
            owner = self._owners[key]
            holder = self._held.get(key)
            free = owner is not None and (holder is None or holder[0] is owner) and key not in self._blocked_hashes
            if owner is None or not free or not owner.ready:
                self._blocked.add(offset)
                self._blocked_hashes.add(key)
                continue
            shares.setdefault(owner, BitMap64()).add(offset)
            self._hold(owner, offset, key)
        for owner, share in shares.items():
            self.send_taken(owner, block, [(entry, share)])
