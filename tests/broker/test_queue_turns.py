"""Which consumer of a queue is sent which messages, frame by frame, beside a plain model of it."""

from __future__ import annotations

import asyncio
import functools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from engine import checks
from engine._native.format.heads import entry_heads
from engine._native.format.offsets import runs
from engine._native.serve.blocks import Block
from engine.aio.tasks import Supervisor
from engine.broker.delivery.opened import Participation
from engine.broker.delivery.queue import QueueConsumer
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.transactions.headers import TransactionHeaders
from engine.broker.transactions.operations import Operations
from engine.limits import READ_BLOCK_SIZE
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.cursor.store import CursorStore
from engine.testing.clock import EPOCH_MS, LoopClock
from engine.testing.loop import VirtualLoop
from engine.wire import commands
from tests.broker.environments import hosted_segment
from tests.broker.test_queue_model import NAME, FakeSegment
from tests.reference.delivery_reference import PlainEntry, PlainMember, PlainQueue
from tests.reference.entry_reference import PlainMessage, Stamp, encode

BLOCK_ENTRIES = 40
LATER_MS = EPOCH_MS + 10**9


@functools.cache
def image(first: int, count: int, kind: str) -> bytes:
    """An entry. `kind`: "plain", "wide": large messages, "delayed": every other one is not due while the test runs."""
    times = [LATER_MS if kind == "delayed" and i % 2 else None for i in range(count)]
    messages = [
        PlainMessage(bytes(100 if kind == "wide" else 1), sequence_id=i, deliver_at_ms=time)
        for i, time in enumerate(times)
    ]
    return encode(messages, stamp=Stamp(first_offset=first))


class Segment(FakeSegment):
    def __init__(self) -> None:
        super().__init__(NAME)
        self.images: list[tuple[PlainEntry, bytes]] = []

    def append(self, count: int, kind: str) -> PlainEntry:
        first = self.durable_offset
        data = image(first, count, kind)
        later = frozenset(range(first + 1, first + count, 2)) if kind == "delayed" else frozenset[int]()
        [head] = entry_heads(data)
        entry = PlainEntry(first, first + count, len(data), head.delayed, later)
        self.images.append((entry, data))
        self.publish(count)
        return entry

    def _block(self, offset: int) -> Block | None:
        chosen = [one for one in self.images if one[0].stop > offset][:BLOCK_ENTRIES]
        if not chosen:
            return None
        first, stop = chosen[0][0].first, chosen[-1][0].stop
        return Block([memoryview(b"".join(data for _, data in chosen))], 0, first, stop, stop - first)


class World:
    """A dispatcher and the model of it, to which the same happens."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.model = PlainQueue(BLOCK_ENTRIES)
        self.consumers: dict[int, QueueConsumer] = {}
        self.sent: list[tuple[int, list[int], dict[int, int]]] = []
        self.loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        clock = LoopClock(self.loop)
        self.segment = Segment()
        spec: Any = SimpleNamespace(name=NAME)
        hosted = hosted_segment(spec, self.segment, clock)
        store = MemoryMetadataStore(clock)
        cursor = await CursorStore(store).create(NAME, "s", 0)
        parts = Participation(TransactionHeaders(store), Operations(store), Supervisor("test"))
        self.subscription = HostedSubscription(hosted, "s", cursor, parts)

    def run(self, work: Any) -> None:
        async def main() -> None:
            work()
            await asyncio.sleep(0.01)

        self.loop.run_until_complete(main())
        assert not self.loop.problems, self.loop.problems
        assert self.sent == self.model.sent
        held = {ident: set(consumer.unacknowledged) for ident, consumer in self.consumers.items()}
        assert held == {member.ident: member.held for member in self.model.members}
        credit = {ident: consumer.messages_credit for ident, consumer in self.consumers.items()}
        assert credit == {member.ident: member.messages for member in self.model.members}

    def came(self, ident: int, header: commands.Header, data: Any = b"") -> None:
        if isinstance(header, commands.Message):
            heads = entry_heads(memoryview(b"".join(data if isinstance(data, list) else [data])))
            offsets = {o for head in heads for o in range(head.first, head.last + 1)}
            offsets -= {o for first, last in header.skip or () for o in range(first, last + 1)}
            counts = {o: c for first, last, c in header.redelivered or () for o in range(first, last + 1)}
            assert len(offsets) == header.messages
            self.sent.append((ident, sorted(offsets), {o: counts[o] for o in sorted(offsets & counts.keys())}))

    # -- what happens ------------------------------------------------------------------------------------------

    def publish(self, kind: str, counts: list[int]) -> None:
        def work() -> None:
            self.model.entries += [self.segment.append(count, kind) for count in counts]
            self.model.pump()

        self.run(work)

    def attach(self, priority: int, messages: int) -> None:
        ident = len(self.consumers) and max(self.consumers) + 1
        peer: Any = SimpleNamespace(
            role="", writable=True, block_size=READ_BLOCK_SIZE, whole_entries=False, forget=lambda consumer: None,
            send=functools.partial(self.came, ident),
        )  # fmt: skip

        def work() -> None:
            self.consumers[ident] = self.subscription.attach_queue(peer, ident, f"c{ident}", priority)
            self.model.attach(PlainMember(ident, priority))

        self.run(work)
        self.grant(ident, messages, None)

    def grant(self, ident: int, messages: int, window: int | None) -> None:
        def work() -> None:
            self.member(ident).grant(messages, window)
            self.consumers[ident].add_credit(messages, 1 << 40, window)
            self.model.pump()

        self.run(work)

    def block(self, ident: int) -> None:
        def work() -> None:
            member, peer = self.member(ident), self.consumers[ident].connection
            member.writable = not member.writable
            vars(peer)["writable"] = member.writable
            self.consumers[ident].pump()
            self.model.pump()

        self.run(work)

    def acknowledge(self, offsets: set[int]) -> None:
        def work() -> None:
            self.consumers[0].acknowledge(
                commands.Ack(consumer_id=0, ack_type="individual", ranges=runs(BitMap64(offsets)))
            )
            self.model.acknowledge(offsets)

        self.run(work)

    def hand_back(self, ident: int, offsets: set[int]) -> None:
        def work() -> None:
            ranges = runs(BitMap64(offsets))
            self.consumers[ident].redeliver(commands.Redeliver(consumer_id=ident, ranges=ranges))
            self.model.hand_back(self.member(ident), offsets)

        self.run(work)

    def detach(self, ident: int) -> None:
        def work() -> None:
            self.consumers.pop(ident).connection_lost()
            self.model.detach(self.member(ident))

        self.run(work)

    def member(self, ident: int) -> PlainMember:
        return next(member for member in self.model.members if member.ident == ident)

    def close(self) -> None:
        for ident in sorted(self.consumers)[1:]:
            self.detach(ident)
        self.loop.run_until_complete(self._end())
        self.loop.close()

    async def _end(self) -> None:
        self.consumers.pop(0).connection_lost()


who = st.integers(0, 3)
some = st.tuples(st.floats(0, 1), st.integers(1, 80), st.integers(1, 3))  # where it begins, its length, every n-th
steps = st.one_of(
    st.tuples(
        st.just("publish"), st.sampled_from(["plain", "wide"]), st.lists(st.integers(1, 30), min_size=1, max_size=40)
    ),
    st.tuples(st.just("publish"), st.just("plain"), st.integers(1, 60).map(lambda n: [1] * n)),
    st.tuples(st.just("publish"), st.just("delayed"), st.lists(st.integers(1, 6), min_size=1, max_size=3)),
    st.tuples(st.just("attach"), st.integers(0, 1), st.sampled_from([0, 1, 20, 300, 70_000])),
    st.tuples(st.just("grant"), who, st.sampled_from([1, 7, 100]), st.sampled_from([None, 1, 2, 40])),
    st.tuples(st.just("block"), who),
    st.tuples(st.just("detach"), who),
    st.tuples(st.just("acknowledge"), some),
    st.tuples(st.just("hand_back"), who, some),
)


def chosen(world: World, place: tuple[float, int, int]) -> set[int]:
    where, length, step = place
    end = world.segment.durable_offset
    first = int(where * end)
    return set(range(first, min(first + length, end), step))


def take(world: World, step: tuple[Any, ...]) -> None:
    name, *given_ = step
    if name in ("grant", "block", "detach", "hand_back"):
        given_[0] = sorted(world.consumers)[given_[0] % len(world.consumers)]
    if name in ("acknowledge", "hand_back"):
        given_[-1] = chosen(world, given_[-1])
        if not given_[-1]:
            return
    if (name == "detach" and given_[0] == 0) or (name == "attach" and len(world.consumers) > 3):
        return
    getattr(world, name)(*given_)


paced = [
    *(("publish", "plain", [295]), ("grant", 0, 1, 40), ("publish", "wide", [10])),  # a quarter of the window more
    *(("grant", 0, 5, 2), ("publish", "plain", [60])),  # a part, of eight windows
]


@settings(max_examples=200)
@given(st.integers(1, 3), st.lists(steps, max_size=25))
@example(1, paced)
@example(2, [("block", 1), *paced])
@example(3, [("publish", "plain", [1] * 64), ("detach", 1), ("publish", "plain", [1] * 3)])
def test_consumers_are_sent_what_the_model_says(members: int, taken: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "COSTLY", True)
        world = World()
        try:
            for ident in range(members):
                world.attach(0, (300, 20, 70_000)[ident])
            for step in taken:
                take(world, step)
            world.publish("plain", [3] * 20)
        finally:
            world.close()
