"""Queue consumption of one segment by one subscription: entries dealt in turn, individual acknowledgements.

    acknowledged        held by a consumer, kept back, due again, or acknowledged        not dealt yet
    ──────────────────┬──────────────────────────────────────────────────────────────┬──────────────────> offsets
                    cursor                                                         _next

How the dispatcher deals. Native code (`QueueOutlets` in `_native/serve/delivery.pyx`) does it all for new entries, of
which all messages are due and for the first time. It calls QueueDispatcher for what is due of others, for parts of
entries, to send a run with one of these, and for groups:

1. The first due offset is the lowest of `replay` (handed back, or its time has come); if that is empty, `next_offset`,
   moved over what is acknowledged. A block is read there: small ones for single messages of `replay`.
2. Consumers are ready that have credit and a writable connection; only those with the smallest priority number of them
   take part.
3. One consumer alone gets a new block whole, if no message of it is acknowledged, delayed or hidden.
4. Otherwise each gets a run of consecutive entries in turn, about TURNS_PER_BLOCK runs of a block. Of each entry the
   messages are due that are free (not acknowledged, not in an open transaction, not hidden) and not delayed.
5. Entries of one group, the chunks of a message, go to one consumer: see together.py.
6. An entry with more messages than a consumer has credit for is dealt in parts, so that several consumers share its
   work (parts.py).

A message that is dealt moves into `unacknowledged` of its consumer. It leaves by an acknowledgement, or goes back to
`replay`: when the consumer hands it back (after a back-off), when it detaches, or when a transaction is aborted.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from engine import checks
from engine._native.format.heads import Head, entry_heads
from engine._native.format.offsets import offset_set, range_set
from engine._native.serve.delivery import QueueOutlets
from engine.broker.delivery.consumer import Consumer
from engine.broker.delivery.delayed import Delays
from engine.broker.delivery.parts import part_of, payload_of
from engine.broker.delivery.redelivery import backoff_of
from engine.broker.delivery.together import Together
from engine.broker.delivery.transactional_acks import acknowledge_some, transaction_of
from engine.broker.segment.reader import SegmentReader
from engine.errors import EngineError, InvalidArgumentError
from engine.model.redelivery import Backoff
from engine.model.subscriptions import DeliveryMode
from engine.wire import commands

if TYPE_CHECKING:
    from engine._native.serve.blocks import Block
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.segment.hosted import HostedSegment
    from engine.broker.segment.ports import Peer

log = logging.getLogger(__name__)


class QueueConsumer(Consumer):
    """One consumer of a queue. `unacknowledged`: the messages that it holds."""

    __slots__ = ("_dispatcher", "end_sent", "priority", "unacknowledged")
    mode = DeliveryMode.QUEUE

    def __init__(self, connection: Peer, ident: int, name: str, dispatcher: QueueDispatcher, priority: int = 0) -> None:
        super().__init__(connection, ident, dispatcher.hosted, name, dispatcher.subscription)
        self._dispatcher = dispatcher
        self.priority = priority
        self.end_sent = False
        self.unacknowledged = BitMap64()

    @property
    def pending(self) -> int:
        """Messages that it holds."""
        return len(self.unacknowledged)

    def pump(self) -> None:
        """Deal: there is credit or room again."""
        self._dispatcher.pump()

    def leaving(self, header: commands.CloseConsumer) -> None:
        """Its user has seen only the ranges `seen`: the rest is due again, and not counted as redelivered."""
        if header.seen is not None:
            seen = offset_set(header.seen, self.hosted.segment.durable_offset)
            self._dispatcher.put_back(self, self.unacknowledged - seen)

    def detach(self) -> None:
        """Its messages are due again, to the others at once."""
        self._dispatcher.detach(self)

    def acknowledge(self, header: commands.Ack) -> Awaitable[Any]:
        """Individual: `ranges`, inclusive."""
        if header.ack_type != "individual" or header.ranges is None:
            raise InvalidArgumentError("a queue consumer's ack_type must be individual, with `ranges`")
        offsets = offset_set(header.ranges, self.hosted.segment.durable_offset)
        inside = transaction_of(header, self.connection.role)
        if inside is not None or self._dispatcher.subscription.pending:
            return acknowledge_some(self._dispatcher, self, offsets, inside)
        return self._dispatcher.acknowledge(self, offsets, lazy=bool(header.lazy))

    def redeliver(self, header: commands.Redeliver) -> None:
        """Take `ranges` back, to be delivered again after `backoff`."""
        offsets = offset_set(header.ranges, self.hosted.segment.durable_offset)
        self._dispatcher.redeliver(self, self._dispatcher.whole(offsets), backoff_of(header.backoff))


class QueueDispatcher(QueueOutlets):
    """Deals the entries of a segment to the consumers of one subscription. Loop thread only.

    A message from the cursor up to `next_offset` that is neither acknowledged nor in an open transaction is in one of
    these: `unacknowledged` of a consumer; `replay`; `_delays` or `_kept`, until its time comes. Invariant: no message
    is held by two consumers, and none that is held is in `replay`. Checked by check_shares(), with ENGINE_DEBUG=1.
    """

    __slots__ = ("_delays", "_kept", "_opened")
    hosted: HostedSegment
    subscription: HostedSubscription
    consumers: list[QueueConsumer]
    replay: BitMap64
    together: Together | None  # from the first entry of a group on

    def __init__(self, subscription: HostedSubscription) -> None:
        hosted = subscription.hosted
        super().__init__(subscription, lambda step: SegmentReader(hosted, step, self.close), costly=checks.COSTLY)
        self.replay = BitMap64()
        self._delays = Delays(self._wall_ms, self._released)
        self._kept = Delays(self._steady_ms, self._released)  # handed back; not affected by the wall clock
        self._opened = hosted.environment.open_entries
        hosted.readers.add(self.reader)

    @property
    def delayed(self) -> int:
        """Messages that wait for their delivery time, or for their back-off."""
        return len(self._delays) + len(self._kept)

    # -- members ---------------------------------------------------------------------------------------------------

    def attach(self, consumer: QueueConsumer) -> None:
        """Add a consumer."""
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda c: c.priority)

    def detach(self, consumer: QueueConsumer) -> None:
        """Remove a consumer; the messages that it holds are due again (semantics 22)."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self.subscription.left[consumer.name] = consumer.sent
        self._hand_back(consumer.unacknowledged)
        consumer.unacknowledged = BitMap64()
        if self.consumers:
            self.pump()
        else:
            self.reader.stop()
            self._delays.close()
            self._kept.close()
            self.hosted.readers.discard(self.reader)
            self.subscription.queue_left(self)

    def redeliver(self, consumer: QueueConsumer, offsets: BitMap64, backoff: Backoff | None = None) -> None:
        """Those of the messages that the consumer holds are due again, at once or after the back-off."""
        handed = consumer.unacknowledged & offsets
        consumer.unacknowledged -= handed
        self._hand_back(handed, backoff)
        self.pump()

    def whole(self, offsets: BitMap64) -> BitMap64:
        """With all of each group of entries that one of them is of."""
        return offsets if self.together is None else self.together.whole(offsets)

    def put_back(self, consumer: QueueConsumer, offsets: BitMap64) -> None:
        """The user of a consumer that leaves has not seen these: they are due again, and not counted."""
        consumer.unacknowledged -= offsets
        self.replay |= offsets

    def _hand_back(self, offsets: BitMap64, backoff: Backoff | None = None) -> None:
        if backoff is None or backoff.max == 0:
            self.replay |= offsets
        else:
            for count, group in self.counts.groups(offsets):
                if (delay_ms := math.ceil(1000 * backoff.delay(count))) > 0:
                    self._kept.keep(group, delay_ms)
                else:
                    self.replay |= group
        self.counts.increment(offsets)

    def acknowledge(self, by: QueueConsumer, offsets: BitMap64, *, lazy: bool = False) -> asyncio.Future[None]:
        """Acknowledge messages, whichever consumer holds them (semantics 12). Done when durable."""
        self.set_aside(by, offsets)
        self.counts.clear(offsets)
        return self.subscription.ack_set(offsets, lazy=lazy)

    def set_aside(self, by: QueueConsumer, offsets: BitMap64) -> None:
        """No consumer holds these any more, and none gets them while `subscription.free` excludes them."""
        self.replay -= offsets
        if self.together is not None:
            self.together.kept -= offsets
        self._delays.forget(offsets)
        self._kept.forget(offsets)
        for holder in (by,) if offsets <= by.unacknowledged else self.consumers:  # there may be thousands
            holder.unacknowledged -= offsets

    def due_again(self, offsets: BitMap64) -> None:
        """Undo set_aside(), as if they were handed back. Those from `next_offset` on have not been dealt yet anyway."""
        dealt = offsets & range_set(0, self.next_offset - 1) if self.next_offset else BitMap64()
        self.replay |= dealt
        self.counts.increment(offsets)
        self.pump()

    def close(self, error: EngineError) -> None:
        """Close all consumers with an error."""
        for consumer in list(self.consumers):
            consumer.close(error)

    # -- dealing ---------------------------------------------------------------------------------------------------

    def check_shares(self) -> None:
        shares = [self.replay, *(consumer.unacknowledged for consumer in self.consumers)]
        together = len(BitMap64().union(*shares))
        checks.check(sum(map(len, shares)) == together, "a message is held by one consumer, or due")

    def send_end(self) -> None:
        """The segment is drained: its consumers may close."""
        for consumer in self.consumers:
            if not consumer.end_sent:
                consumer.end_sent = True
                consumer.send_end(self.hosted.segment.messages_end)

    def release(self) -> None:
        """Groups that were kept back may be dealt: they are due again."""
        if self.together is not None and self.together.kept:
            self.replay |= self.together.release()

    def deal_grouped(self, block: Block, groups: dict[int, tuple[int, bool]]) -> None:
        """Deal a block with entries of which all of a group go to one consumer."""
        together = self.together = self.together or Together()
        for entry in entry_heads(block.data):
            at = 0
            while at == 0 and entry.start not in groups and (ready := self.ready()):
                at = self.deal_turn(block, [entry], at, 1, ready)
            if entry.start not in groups:
                if at == 0:
                    return
                continue
            group, begins = groups[entry.start]
            if not (due := self.due(block, entry)):
                self.pass_over(entry)
                continue
            together.meet(group, entry.first, begins=begins)
            consumer = together.owner(group, self.consumers)
            if consumer is None:
                if not (ready := self.ready()):
                    return
                consumer = self.next_of(ready)
                together.give(group, consumer)
            self.pass_over(entry)
            if consumer.ready and not together.waits(group):
                self.send_taken(consumer, block, [(entry, due)])
            else:
                self.replay -= due
                together.keep(group, due)

    def part(self, block: Block, entry: Head, consumer: QueueConsumer, room: int) -> BitMap64:
        """The messages of an entry that a consumer gets which has credit for `room` of those that are due."""
        wanted, found = self.due(block, entry), self._opened.open(block, entry.start, entry.stop)
        most = part_of(entry, found, room, consumer.window, paced=consumer.paced)
        if len(wanted) <= most:
            return wanted
        last = wanted[most - 1]
        if self.next_offset >= entry.first:
            self.next_offset = max(self.next_offset, last + 1)
        return wanted & range_set(entry.first, last)

    def due(self, block: Block, entry: Head) -> BitMap64:
        """The messages of an entry that may be delivered now."""
        due = BitMap64()
        if entry.last >= self.next_offset:
            for start, stop in self.subscription.free(max(entry.first, self.next_offset), entry.last + 1):
                due.add_range(start, stop)
            if due and (hidden := self.hosted.hidden(entry.first, entry.last + 1)) is not None:
                due -= hidden
        if self.replay:
            due |= self.replay & range_set(entry.first, entry.last)
        if entry.delayed and due:
            withheld = self._delays.withhold(block.data[entry.start : entry.stop], due)
            self.replay -= withheld
            due -= withheld
        return due

    def _wall_ms(self) -> int:
        return self.hosted.environment.clock.time_ms()

    def _steady_ms(self) -> int:
        return int(self.hosted.environment.clock.monotonic() * 1000)

    def _released(self, offsets: BitMap64) -> None:
        """The time of these has come: they are read again, and not counted as redelivered."""
        self.replay |= offsets
        self.pump()

    def send_taken(self, consumer: QueueConsumer, block: Block, taken: Sequence[tuple[Head, BitMap64 | None]]) -> None:
        """Send (entry, messages of it) each; None: all of them."""
        parts = [(entry, range_set(entry.first, entry.last) if due is None else due) for entry, due in taken]
        due = BitMap64().union(*(due for _, due in parts))
        self.replay -= due
        consumer.unacknowledged |= due
        payload, skip = payload_of(self._opened, block, parts, whole=consumer.connection.whole_entries)
        counts = self.counts.ranges(due.min(), due.max())
        consumer.send_block(payload, block.salt, len(due), skip, counts)
