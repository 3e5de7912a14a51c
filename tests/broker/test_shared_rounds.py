"""Which consumer of a shared segment is sent which messages, frame by frame, beside a plain model of it."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from engine._native.format.heads import entry_heads
from engine._native.serve.blocks import Block
from engine.aio.tasks import Supervisor
from engine.broker.delivery.opened import Participation
from engine.broker.delivery.shared import SharedConsumer, SharedDispatcher
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.transactions.headers import TransactionHeaders
from engine.broker.transactions.operations import Operations
from engine.errors import FencedError
from engine.metadata.memory import MemoryMetadataStore
from engine.storage.cursor.store import CursorStore
from engine.testing.clock import LoopClock
from engine.testing.loop import VirtualLoop
from engine.wire import commands
from tests.broker.environments import hosted_segment
from tests.broker.sharing import FOUR
from tests.broker.test_queue_model import NAME, FakeSegment
from tests.reference.entry_reference import PlainMessage, Stamp, encode
from tests.reference.shared_reference import PlainBucket, PlainShared, PlainSharer, PlainStamped, read_entries

BLOCK_SIZE = 2_000
MUCH = 1 << 40


@functools.cache
def image(first: int, count: int, bucket: int) -> bytes:
    messages = [PlainMessage(b"v", sequence_id=i) for i in range(count)]
    return encode(messages, buckets=(FOUR[bucket], FOUR[bucket]), stamp=Stamp(first_offset=first))


class Segment(FakeSegment):
    def __init__(self) -> None:
        super().__init__(NAME)
        self.images: list[tuple[PlainStamped, bytes]] = []

    def append(self, count: int, bucket: int) -> PlainStamped:
        data = image(self.durable_offset, count, bucket)
        entry = PlainStamped(self.durable_offset, self.durable_offset + count, len(data), bucket)
        self.images.append((entry, data))
        self.publish(count)
        return entry

    def read(self, offset: int, bytes_max: int, *, at_once: bool = False) -> Any:
        chosen = read_entries([entry for entry, _ in self.images], offset, bytes_max, None)
        if not chosen:
            return None
        block = self.block(chosen)
        return self._later(block) if self.slow else block

    def block(self, chosen: list[PlainStamped]) -> Block:
        parts = [memoryview(image(entry.first, entry.stop - entry.first, entry.bucket)) for entry in chosen]
        first, stop = chosen[0].first, chosen[-1].stop
        return Block([memoryview(b"".join(parts[:2])), *parts[2:]], 0, first, stop, stop - first)


class Gate:
    """What transactions keep from the readers of the segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.limit: int | None = None
        self.offsets = BitMap64()

    def hidden(self, start: int, stop: int) -> BitMap64 | None:
        found = BitMap64(self.offsets)
        found.remove_range(0, start)
        found.remove_range(stop, MUCH)
        return found or None

    def cut(self, block: Block) -> Block:
        limit = MUCH if self.limit is None else self.limit
        entries = [one for one, _ in self.segment.images if block.first_offset <= one.first < block.next_offset]
        return self.segment.block([one for one in entries if one.first < limit])


class World:
    """A dispatcher and the model of it, to which the same happens. `slow`: each block is read from disk.

    Then frames may be others, and what each consumer is sent is the same.
    """

    def __init__(self, *, slow: bool) -> None:
        self.slow = slow
        self.loop = VirtualLoop()
        self.model = PlainShared(BLOCK_SIZE, [PlainBucket() for _ in FOUR])
        self.consumers: dict[int, SharedConsumer] = {}
        self.sent: list[tuple[int, list[int], int]] = []
        self.buckets: list[int] = []  # of each offset
        self.loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        clock = LoopClock(self.loop)
        self.segment = Segment()
        self.segment.slow = self.slow
        spec: Any = SimpleNamespace(name=NAME, bucket_ends=FOUR)
        self.hosted = hosted_segment(spec, self.segment, clock)
        store = MemoryMetadataStore(clock)
        cursor = await CursorStore(store).create(NAME, "s", 0)
        parts = Participation(TransactionHeaders(store), Operations(store), Supervisor("test"))
        self.subscription = HostedSubscription(self.hosted, "s", cursor, parts)

    @property
    def dispatcher(self) -> SharedDispatcher:
        found = self.subscription._shared
        assert found is not None
        return found

    @property
    def gate(self) -> Gate:
        """From its first use on, transactions were written to the segment."""
        hosted: Any = self.hosted
        hosted.transactions = hosted.transactions or Gate(self.segment)
        found: Gate = hosted.transactions
        return found

    def run(self, work: Callable[[], Any]) -> None:
        async def main() -> None:
            work()
            await asyncio.sleep(2)

        self.loop.run_until_complete(main())
        assert not self.loop.problems, self.loop.problems
        if self.slow:
            assert self.by_consumer(self.sent) == self.by_consumer(self.model.sent)
        else:
            assert self.sent == self.model.sent
            assert self.dispatcher.ledger.next_offset == self.model.next_offset
        for member in filter(None, self.model.members):
            consumer, number = self.consumers[member.ident], self.model.members.index(member)
            assert (consumer.messages_credit, consumer.bytes_credit) == (member.messages, member.size)
            assert consumer.pending == sum(len(b.sent) for b in self.model.buckets if b.holder == number)
            assert consumer.bucket_count == sum(b.owner == number for b in self.model.buckets)
        withheld = sum(bool(b.sent) and b.holder != b.owner and not b.waits for b in self.model.buckets)
        assert self.dispatcher.sharing.withheld == withheld

    @staticmethod
    def by_consumer(sent: list[tuple[int, list[int], int]]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for ident, offsets, _ in sent:
            found.setdefault(ident, []).extend(offsets)
        return found

    def came(self, ident: int, header: commands.Header, data: Any = b"") -> None:
        if isinstance(header, commands.Message):
            joined = b"".join(data if isinstance(data, list) else [data])
            offsets = {o for head in entry_heads(memoryview(joined)) for o in range(head.first, head.last + 1)}
            offsets -= {o for first, last in header.skip or () for o in range(first, last + 1)}
            assert len(offsets) == header.messages
            self.sent.append((ident, sorted(offsets), len(joined)))

    @property
    def front(self) -> int:
        """From here on nothing was routed."""
        return max(self.dispatcher.ledger.next_offset, self.model.next_offset)

    def member(self, ident: int) -> PlainSharer:
        return next(m for m in self.model.members if m is not None and m.ident == ident)

    # -- what happens --------------------------------------------------------------------------------------------------

    def publish(self, entries: list[tuple[int, int]]) -> None:
        def work() -> None:
            for count, bucket in entries:
                self.model.entries.append(self.segment.append(count, bucket))
                self.buckets += [bucket] * count
            self.model.pump()

        self.run(work)

    def mark(self, entries: list[tuple[int, int]], marks: list[tuple[str, tuple[float, int, int]]]) -> None:
        """Publish entries of which some messages are acknowledged, held, hidden or not decided already."""
        first = self.segment.durable_offset
        ends = list(itertools.accumulate((count for count, _ in entries), initial=first))
        for kind, (where, length, step) in marks:
            begin = first + int(where * (ends[-1] - first))
            offsets = set(range(begin, min(begin + length, ends[-1]), step))
            if kind == "open":
                if self.model.limit is None:
                    self.gate.limit = self.model.limit = next(end for end in ends if end >= begin)
            else:
                getattr(self, kind)(offsets)
        self.publish(entries)

    def attach(self, name: str, messages: int, size: int) -> None:
        ident = max(self.consumers, default=0) + 1
        peer: Any = SimpleNamespace(
            role="", writable=True, room=False, block_size=BLOCK_SIZE, forget=lambda consumer: None,
            send=functools.partial(self.came, ident),
        )  # fmt: skip
        peer.has_room = lambda unsent_max: peer.room

        def work() -> None:
            self.consumers[ident] = self.subscription.attach_shared(peer, ident, name)
            self.model.attach(PlainSharer(ident, name))

        self.run(work)
        self.grant(ident, messages, size)

    def grant(self, ident: int, messages: int, size: int) -> None:
        def work() -> None:
            member = self.member(ident)
            member.messages += messages
            member.size += size
            self.consumers[ident].add_credit(messages, size)
            self.model.pump()

        self.run(work)

    def fill(self, ident: int, room: bool) -> None:
        """Its connection is full, or drained."""

        def work() -> None:
            member, peer = self.member(ident), vars(self.consumers[ident].connection)
            member.writable = peer["writable"] = not member.writable
            member.has_room = peer["room"] = room and not self.slow  # reading ahead does not depend on it
            self.consumers[ident].pump()
            self.model.pump()

        self.run(work)

    def acknowledge(self, ident: int, places: list[tuple[int, float]]) -> None:
        """In each bucket up to something that was sent to anybody."""
        sent: list[list[int]] = [[] for _ in FOUR]
        for offset in sorted({o for _, offsets, _ in self.model.sent for o in offsets}):
            sent[self.buckets[offset]].append(offset)
        positions = [(b, sent[b][int(where * len(sent[b]))] + 1) for b, where in dict(places).items() if sent[b]]
        refused: list[int] = []
        expected: list[int] = []

        async def ask() -> None:
            try:
                await self.dispatcher.acknowledge(self.consumers[ident], positions)
            except FencedError as e:
                refused.extend(map(int, str(e).split("[")[-1].rstrip("]").split(",")))

        def work() -> None:
            self.asked = asyncio.ensure_future(ask())
            expected.extend(self.model.acknowledge(self.member(ident), positions))

        self.run(work)
        assert self.asked.done()
        assert refused == expected

    def ahead(self, offsets: set[int]) -> None:
        """Ids of an earlier attachment are acknowledged."""

        def work() -> None:
            self.subscription.ack_set(BitMap64(offsets))
            self.model.acked |= offsets

        self.run(work)

    def hold(self, offsets: set[int]) -> None:
        """An open transaction acknowledges what an earlier attachment was sent."""
        self.subscription.pending.offsets |= BitMap64(offsets - self.model.acked)
        self.model.held |= offsets - self.model.acked

    def commit(self) -> None:
        """All that transactions hold is acknowledged."""

        def work() -> None:
            held, self.subscription.pending.offsets = self.subscription.pending.offsets, BitMap64()
            self.subscription.take(held)
            self.subscription.resume()
            self.model.commit()

        self.run(work)

    def hide(self, offsets: set[int]) -> None:
        """They are of an aborted transaction."""
        self.gate.offsets |= BitMap64(offsets)
        self.model.hidden |= offsets

    def decide(self) -> None:
        """No transaction is open any more."""

        def work() -> None:
            self.gate.limit = self.model.limit = None
            self.dispatcher.pump()
            self.model.pump()

        self.run(work)

    def retain(self, part: float) -> None:
        """Retention deletes some of the oldest entries."""
        self.model.entries = self.model.entries[int(part * len(self.model.entries)) :]
        self.segment.first_offset = self.model.entries[0].first
        self.segment.images = self.segment.images[-len(self.model.entries) :]

    def detach(self, ident: int) -> None:
        def work() -> None:
            self.consumers[ident].connection_lost()
            self.model.detach(self.member(ident))

        self.run(work)

    def close(self) -> None:
        async def end() -> None:
            for consumer in self.consumers.values():
                consumer.connection_lost()

        self.loop.run_until_complete(end())
        self.loop.close()


who = st.integers(0, 3)
some = st.tuples(st.floats(0, 0.999), st.integers(1, 40), st.integers(1, 3))  # where it begins, its length, every n-th
entries = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=40)
marks = st.tuples(st.sampled_from(["ahead", "hold", "hide", "open"]), some)
steps = st.one_of(
    st.tuples(st.just("publish"), entries),
    st.tuples(st.just("publish"), st.lists(st.tuples(st.just(1), st.integers(0, 3)), min_size=1, max_size=3)),
    st.tuples(st.just("attach"), st.sampled_from("abcd"), st.sampled_from([0, 1, 20, MUCH]), st.just(MUCH)),
    st.tuples(st.just("grant"), who, st.sampled_from([1, 7, 100]), st.sampled_from([1, 400, 5_000])),
    st.tuples(st.just("fill"), who, st.booleans()),
    st.tuples(st.just("detach"), who),
    st.tuples(
        st.just("acknowledge"), who, st.lists(st.tuples(st.integers(0, 3), st.floats(0, 0.999)), min_size=1, max_size=4)
    ),
    st.tuples(st.just("mark"), entries, st.lists(marks, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["ahead", "hold", "hide"]), some),
    st.tuples(st.sampled_from(["commit", "decide"])),
    st.tuples(st.just("retain"), st.floats(0, 0.5)),
)


def ahead_of(world: World, place: tuple[float, int, int]) -> set[int]:
    """Offsets that were not routed."""
    where, length, step = place
    end = world.segment.durable_offset
    first = world.front + int(where * (end - world.front))
    return set(range(first, min(first + length, end), step))


def take(world: World, step: tuple[Any, ...]) -> None:
    name, *given_ = step
    attached = sorted(m.ident for m in world.model.members if m is not None)
    if name in ("grant", "fill", "detach", "acknowledge"):
        given_[0] = attached[given_[0] % len(attached)]
    if name in ("ahead", "hold", "hide"):
        given_ = [ahead_of(world, given_[0])]
        if not given_[0]:
            return
    if name == "detach" and len(attached) == 1:
        return
    if name == "retain" and (world.slow or not world.model.entries):  # how far was routed says what is forgotten
        return
    getattr(world, name)(*given_)


spread_out = [("publish", [(1, i % 4) for i in range(64)])]
taken_before = [("ahead", (0.1, 9, 2)), ("hold", (0.4, 7, 1)), ("hide", (0.6, 9, 1))]
marked = ("mark", [(3, i % 4) for i in range(40)], taken_before)
undecided = ("mark", [(2, i % 4) for i in range(40)], [("open", (0.5, 1, 1))])


@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.integers(1, 4), st.lists(steps, max_size=25))
@example(False, 4, spread_out)
@example(False, 2, [*spread_out, ("attach", "c", MUCH, MUCH), ("acknowledge", 0, [(b, 0.999) for b in range(4)])])
@example(False, 3, [marked, ("attach", "d", 5, MUCH), ("commit",), *spread_out, undecided, *spread_out, ("decide",)])
@example(False, 2, [("fill", 0, False), *spread_out, ("retain", 0.4), ("fill", 0, False)])
@example(True, 3, [("fill", 1, True), *spread_out, ("attach", "a", 20, MUCH), *spread_out, ("detach", 1)])
@example(False, 3, [("grant", 0, 1, 1), ("fill", 1, True), *spread_out, ("fill", 2, False), *spread_out])
def test_sharers_are_sent_what_the_model_says(slow: bool, members: int, taken: list[tuple[Any, ...]]) -> None:
    world = World(slow=slow)
    try:
        for name, messages in zip("abcd"[:members], (300, 20, MUCH, 1), strict=False):
            world.attach(name, messages, MUCH)
        for step in taken:
            take(world, step)
        world.publish([(2, i % 4) for i in range(20)])
    finally:
        world.close()
