"""The dispatcher of a queue against a slow reference, a plain table of messages, on virtual time.

At most one holder, none lost, counts right, none delivered after its acknowledgement or before its time, what came
back goes first, and nobody is served while somebody of a better priority has room (semantics 22, C2).
"""

from __future__ import annotations

import asyncio
import functools
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap64

from engine._native.format.heads import entry_heads
from engine._native.format.offsets import runs
from engine._native.serve.blocks import Block
from engine._native.serve.waiters import Waiters
from engine.aio.tasks import Supervisor
from engine.broker.delivery.opened import Participation
from engine.broker.delivery.queue import QueueConsumer
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.transactions.headers import TransactionHeaders
from engine.broker.transactions.operations import Operations
from engine.limits import READ_BLOCK_SIZE
from engine.metadata.memory import MemoryMetadataStore
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName
from engine.model.redelivery import Backoff
from engine.storage.cursor.store import CursorStore
from engine.storage.file.continuation import Gaps
from engine.testing.clock import LoopClock
from engine.testing.loop import VirtualLoop
from engine.wire import commands
from tests.broker.environments import hosted_segment
from tests.reference.entry_reference import PlainMessage, Stamp, encode

NAME = SegmentName(TopicName.parse("t"), HashRange(0, 0xFFFF), 0)
SETTLE_S = 0.05


class FakeSegment:
    """A block holds up to three entries, and comes at once or later."""

    def __init__(self, name: SegmentName) -> None:
        self.name = name
        self.entries: list[tuple[int, int]] = []
        self.durable_offset = self.first_offset = self.next_offset = 0
        self.sealed = self.sealing = False
        self.gaps = Gaps()
        self.marks = SimpleNamespace(since=lambda offset: None)
        self.slow = False
        self._waiters = Waiters()
        self.call_when_durable = self._waiters.add

    def publish(self, count: int) -> None:
        self.entries.append((self.durable_offset, count))
        self.next_offset = self.durable_offset = self.durable_offset + count
        self._waiters.wake()

    def read(self, offset: int, bytes_max: int, *, at_once: bool = False) -> Any:
        block = self._block(offset)
        return self._later(block) if self.slow and block is not None else block

    async def _later(self, block: Block) -> Block:
        await asyncio.sleep(0.001)
        return block

    def _block(self, offset: int) -> Block | None:
        chosen = [(first, count) for first, count in self.entries if first + count > offset][:3]
        if not chosen:
            return None
        data = b"".join(entry(first, count) for first, count in chosen)
        first, stop = chosen[0][0], sum(chosen[-1])
        return Block([memoryview(data)], 0, first, stop, stop - first)


@functools.cache
def entry(first: int, count: int) -> bytes:
    return encode([PlainMessage(b"", sequence_id=i) for i in range(count)], stamp=Stamp(first_offset=first))


class Member:
    """One consumer, as its client sees it."""

    role = ""

    def __init__(self, world: Dispatching, ident: int, priority: int) -> None:
        self.world, self.ident, self.priority = world, ident, priority
        self.writable = True
        self.block_size = READ_BLOCK_SIZE
        self.whole_entries = False
        self.consumer: QueueConsumer

    def forget(self, attachment: Any) -> None:
        assert attachment is self.consumer

    def send(self, header: commands.Header, data: Any = b"") -> None:
        if isinstance(header, commands.Message):
            pieces = data if isinstance(data, list) else [data]
            self.world.came(self, header, memoryview(b"".join(pieces)))

    @property
    def ready(self) -> bool:
        return self.writable and self.consumer.messages_credit > 0 and self.consumer.bytes_credit > 0


class Dispatching(RuleBasedStateMachine):
    """`holder[offset]`: a member's id; `kept[offset]`: (not before, latest) in virtual seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.clock = LoopClock(self.loop)
        self.members: dict[int, Member] = {}
        self.idents = 0
        self.acked: set[int] = set()
        self.ever: set[int] = set()
        self.holder: dict[int, int] = {}
        self.kept: dict[int, tuple[float, float]] = {}
        self.counts: dict[int, int] = {}

    def run(self, work: Any = None, seconds: float = SETTLE_S) -> None:
        async def main() -> None:
            if work is not None:
                work()
            await asyncio.sleep(seconds)

        self.loop.run_until_complete(main())
        assert not self.loop.problems, self.loop.problems

    @initialize(slow=st.booleans(), members=st.integers(0, 3))
    def begin(self, slow: bool, members: int) -> None:
        async def main() -> None:
            self.segment = FakeSegment(NAME)
            self.segment.slow = slow
            spec: Any = SimpleNamespace(name=NAME)
            self.hosted = hosted_segment(spec, self.segment, self.clock)
            store = MemoryMetadataStore(self.clock)
            cursor = await CursorStore(store).create(NAME, "s", 0)
            parts = Participation(TransactionHeaders(store), Operations(store), Supervisor("test"))
            self.subscription = HostedSubscription(self.hosted, "s", cursor, parts)

        self.loop.run_until_complete(main())
        self.publish_entries([3, 20, 1])  # or most sequences end before anything happens
        for _ in range(members):
            self.attach_member(priority=self.idents % 2, credit=20)

    def teardown(self) -> None:
        def work() -> None:
            for member in list(self.members.values()):
                self.left(member, self.held(member))
                member.consumer.close()

        try:
            self.run(work)
        finally:
            self.loop.close()

    # -- the reference -----------------------------------------------------------------------------------------

    def free(self, at_latest: bool = False) -> set[int]:
        """What may be delivered now, or (at_latest) what has to be."""
        now = self.loop.time()
        kept = {o for o, (soonest, latest) in self.kept.items() if now < (latest + SETTLE_S if at_latest else soonest)}
        return set(range(self.segment.durable_offset)) - self.acked - self.holder.keys() - kept

    def came(self, member: Member, header: commands.Message, data: memoryview) -> None:
        offsets = {o for e in entry_heads(data) for o in range(e.first, e.last + 1)}
        offsets -= {o for first, last in header.skip or () for o in range(first, last + 1)}
        assert len(offsets) == header.messages > 0
        credit, window = member.consumer.messages_credit, member.consumer.window
        if member.consumer.paced:
            assert len(offsets) <= max(credit + len(offsets), 8 * window if window > 1 else 1)
        else:
            assert credit >= 0, f"{-credit} more than there was credit for"
        free = self.free()
        assert offsets <= free, f"{offsets - free} are acknowledged, held by somebody or not due"
        sure = self.free(at_latest=True)
        assert min(offsets) <= min(sure, default=1 << 60), f"{min(sure)} came before and goes first"
        better = [m for m in self.members.values() if m.priority < member.priority and m.ready]
        assert not better, f"{member.ident} is served while {better[0].ident} has room"
        counts = {o: c for first, last, c in header.redelivered or () for o in range(first, last + 1)}
        for offset in offsets:
            assert counts.get(offset, 0) == self.counts.get(offset, 0)
            self.holder[offset] = member.ident
            self.kept.pop(offset, None)
        self.ever |= offsets

    def counted(self, offsets: set[int]) -> None:
        for offset in offsets:
            self.counts[offset] = self.counts.get(offset, 0) + 1

    def held(self, member: Member) -> set[int]:
        return {o for o, ident in self.holder.items() if ident == member.ident}

    def left(self, member: Member, counted: set[int]) -> None:
        """It is gone already when the broker deals its messages out again."""
        del self.members[member.ident]
        for offset in self.held(member):
            del self.holder[offset]
        self.counted(counted)
        if not self.members:
            self.kept.clear()

    # -- what happens ------------------------------------------------------------------------------------------

    @rule(counts=st.lists(st.integers(1, 40), min_size=1, max_size=5))
    def publish(self, counts: list[int]) -> None:
        self.publish_entries(counts)

    def publish_entries(self, counts: list[int]) -> None:
        self.run(lambda: [self.segment.publish(count) for count in counts])

    @precondition(lambda self: len(self.members) < 4)
    @rule(priority=st.integers(0, 2), credit=st.sampled_from([0, 1, 3, 20, 1000]))
    def attach(self, priority: int, credit: int) -> None:
        self.attach_member(priority, credit)

    def attach_member(self, priority: int, credit: int) -> None:
        self.idents += 1
        member = Member(self, self.idents, priority)

        def work() -> None:
            connection: Any = member
            member.consumer = self.subscription.attach_queue(connection, member.ident, f"c{member.ident}", priority)
            self.members[member.ident] = member
            member.consumer.add_credit(credit, 1 << 20)

        self.run(work)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), credit=st.sampled_from([1, 5, 100]), window=st.sampled_from([None, 1, 4, 40]))
    def grant(self, data: st.DataObject, credit: int, window: int | None) -> None:
        member = self.one(data)
        self.run(lambda: member.consumer.add_credit(credit, 1 << 10, window))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def block_or_unblock(self, data: st.DataObject) -> None:
        member = self.one(data)
        member.writable = not member.writable
        self.run(member.consumer.pump)

    @precondition(lambda self: self.members and self.ever)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        """By anybody, of anything that ever was delivered."""
        self.acknowledged(self.one(data), self.some(data, self.ever))

    @precondition(lambda self: self.members and self.kept)
    @rule(data=st.data())
    def acknowledge_what_is_kept_back(self, data: st.DataObject) -> None:
        """A late acknowledgement ends a redelivery; then its time comes."""
        self.acknowledged(self.one(data), self.some(data, set(self.kept)))
        self.run(seconds=400.0)

    def acknowledged(self, member: Member, chosen: set[int]) -> None:
        self.run(lambda: self.acknowledged_now(member, chosen))

    def acknowledged_now(self, member: Member, chosen: set[int]) -> None:
        ranges = [[o, o] for o in sorted(chosen, reverse=True)]
        self.acked |= chosen
        for offset in chosen:
            self.holder.pop(offset, None)
            self.kept.pop(offset, None)
            self.counts.pop(offset, None)
        member.consumer.acknowledge(commands.Ack(consumer_id=member.ident, ack_type="individual", ranges=ranges))

    @precondition(lambda self: self.members and self.ever)
    @rule(data=st.data(), backoff=st.sampled_from([None, Backoff(0, 0), Backoff(5, 5, 1), Backoff(1, 300, 3)]))
    def hand_back(self, data: st.DataObject, backoff: Backoff | None) -> None:
        """Of what it names, what the consumer holds; some may be anything."""
        member, chosen = self.one(data), self.some(data, self.ever)
        parts = None if backoff is None else [backoff.min, backoff.max, backoff.multiplier]

        def work() -> None:
            mine = chosen & self.held(member)
            for offset in mine:
                del self.holder[offset]
                delay = 0 if backoff is None else backoff.delay(self.counts.get(offset, 0))
                if delay:
                    now = self.loop.time()
                    self.kept[offset] = (now + delay - 0.001, now + delay * 65 / 64 + 0.02)
            self.counted(mine)
            member.consumer.redeliver(
                commands.Redeliver(consumer_id=member.ident, ranges=ranges_of(chosen), backoff=parts)
            )

        self.run(work)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), how=st.sampled_from(["lost", "closed", "told"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        member = self.one(data)
        held = self.held(member)
        seen = self.some(data, held) if how == "told" and held else set()

        def work() -> None:
            self.left(member, seen if how == "told" else held)
            if how == "told":
                member.consumer.leaving(commands.CloseConsumer(consumer_id=member.ident, seen=ranges_of(seen)))
            if how == "lost":
                member.consumer.connection_lost()
            else:
                member.consumer.close()

        self.run(work)

    @rule(seconds=st.sampled_from([1.0, 7.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.run(seconds=seconds)

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "segment"):
            return
        if any(m.ready for m in self.members.values()):
            assert not self.free(at_latest=True), "somebody has room, and these wait"
        held = {o: m.ident for m in self.members.values() for o in m.consumer.unacknowledged}
        assert held == self.holder
        assert self.subscription.backlog == self.segment.durable_offset - len(self.acked)

    # -- choosing ----------------------------------------------------------------------------------------------

    def one(self, data: st.DataObject) -> Member:
        return self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @staticmethod
    def some(data: st.DataObject, offsets: set[int]) -> set[int]:
        ordered = sorted(offsets)
        step = data.draw(st.integers(1, 3))
        first = data.draw(st.integers(0, len(ordered) - 1))
        return set(ordered[first : first + data.draw(st.integers(1, 60)) : step])


def ranges_of(offsets: set[int]) -> list[list[int]]:
    return runs(BitMap64(offsets))


class Untouched:
    def __isub__(self, offsets: BitMap64) -> BitMap64:
        raise AssertionError("it was looked at")


def test_an_acknowledgement_by_the_holder_costs_the_same_beside_any_number_of_consumers() -> None:
    world = Dispatching()
    world.begin(slow=False, members=0)
    world.attach_member(priority=0, credit=1000)
    world.attach_member(priority=1, credit=0)
    holder, other = world.members.values()
    assert world.held(holder) == set(range(24))
    nothing, other.consumer.unacknowledged = other.consumer.unacknowledged, Untouched()  # type: ignore[assignment]
    world.run(lambda: world.acknowledged_now(holder, {3, 4}))
    other.consumer.unacknowledged = nothing
    world.acknowledged(other, {5})  # by somebody else it is taken from whoever has it
    world.nothing_is_lost()
    world.teardown()


TestDispatching = Dispatching.TestCase
TestDispatching.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
