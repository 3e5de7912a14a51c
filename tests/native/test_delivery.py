"""Blocks on their way to a consumer, beside a plain model of it; and bytes sent in one turn of the loop."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from engine._native.format.offsets import runs
from engine._native.serve.blocks import Block
from engine._native.serve.cursors import Acked
from engine._native.serve.delivery import TURN_BYTES, DeliveryTimes, LoneOutlet, Outgoing, Outlet
from engine._native.serve.meters import Buckets, Tally
from engine._native.serve.readers import BlockReader, ReadTurns
from engine._native.serve.waiters import Waiters
from engine.errors import StorageError
from engine.limits import ENTRY_MESSAGES_MAX, READ_BLOCK_SIZE
from tests.kit.entry_images import entry
from tests.reference.delivery_reference import PlainLone


class Segment:
    """Blocks of entries that are durable."""

    sealed = False

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.durable_offset = self.next_offset = 0
        self.gaps: Any = SimpleNamespace(runs=())
        self.marks = SimpleNamespace(since=lambda offset: None)
        self.waiters = Waiters()
        self.call_when_durable = self.waiters.add
        self.error: StorageError | None = None

    def publish(self, messages: int) -> Block:
        first = self.durable_offset
        block = Block([memoryview(entry(0, (b"v",)))] * messages, 0, first, first + messages, messages)
        self.blocks.append(block)
        self.durable_offset = self.next_offset = first + messages
        self.waiters.wake(self.durable_offset)
        return block

    def read(self, offset: int, bytes_max: int, *, at_once: bool) -> Block | None:
        if self.error is not None:
            raise self.error
        return next((one for one in self.blocks if one.first_offset <= offset < one.next_offset), None)


class Reader(BlockReader):
    def misplaced(self, block: Block, offset: int) -> Any: ...

    def check_idle(self) -> None: ...


class Cursor(Acked):
    def __init__(self) -> None:
        self.position, self.above = 0, BitMap64()

    def acknowledge(self, offset: int) -> None:
        self.above.add(offset)
        while self.position in self.above:
            self.above.remove(self.position)
            self.position += 1


class Lone(LoneOutlet):
    """`sent_blocks`: [first, stop) of each block, and what of it is skipped."""

    def __init__(self) -> None:
        segment = self.segment = Segment()
        clock: Any = SimpleNamespace(monotonic=lambda: 1.0, time_ms=lambda: 0)
        self.times = DeliveryTimes(clock, Buckets((1.0,)))
        reads = ReadTurns(deque(), lambda: False)
        hosted = SimpleNamespace(
            segment=segment, transactions=None, sent_messages=0, sent_bytes=0,
            name=SimpleNamespace(segment_id=7), environment=SimpleNamespace(latency=self.times, reads=reads),
        )  # fmt: skip
        self.cursor = Cursor()
        subscription = SimpleNamespace(
            cursor=self.cursor, pending=SimpleNamespace(offsets=BitMap64()), due_from=self.due_from
        )
        self.peer = SimpleNamespace(writable=True, block_size=READ_BLOCK_SIZE, send=self.sent_frame)
        self.sent_blocks: list[tuple[int, int, list[list[int]]]] = []
        self.errors: list[Any] = []
        tallies = [Tally(lambda: 0.0) for _ in range(2)]
        super().__init__(self.peer, 3, hosted, subscription, SimpleNamespace, *tallies)
        self.read_with(Reader(hosted, self.step, self.close), 0)
        self.window = ENTRY_MESSAGES_MAX

    def sent_frame(self, header: Any, data: Any) -> None:
        assert (header.consumer_id, header.segment_id) == (3, 7)
        block = next(b for b in self.segment.blocks if b.next_offset == self.next_offset)
        self.sent_blocks.append((block.first_offset, block.next_offset, header.skip or []))
        skipped = sum(last + 1 - first for first, last in header.skip or ())
        assert header.messages == block.messages - skipped

    def due_from(self, offset: int) -> int:
        while offset < self.cursor.position or offset in self.cursor.above:
            offset += 1
        return offset

    def skipped(self, block: Block) -> list[list[int]]:
        inside = range(block.first_offset, block.next_offset)
        return runs(BitMap64([o for o in inside if o < self.cursor.position or o in self.cursor.above]))

    def close(self, error: Any = None) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("seed", range(20))
async def test_a_lone_consumer_is_sent_what_the_model_is(seed: int):
    rng, lone, model = random.Random(seed), Lone(), PlainLone()
    lone.pump()
    for _ in range(300):
        step = rng.random()
        if step < 0.4:
            block = lone.segment.publish(rng.randrange(1, 5))
            model.blocks.append((block.first_offset, block.next_offset, block.size))
        elif step < 0.6:
            messages, size = rng.randrange(8), rng.randrange(3_000)
            lone.messages_credit += messages
            lone.bytes_credit += size
            model.messages, model.size = model.messages + messages, model.size + size
        elif step < 0.7:
            lone.peer.writable = model.writable = not model.writable
        elif lone.segment.durable_offset:
            offset = rng.randrange(lone.segment.durable_offset)
            if offset >= lone.cursor.position:
                lone.cursor.acknowledge(offset)
                model.acked.add(offset)
        if step >= 0.4:
            lone.pump()
        else:
            await asyncio.sleep(0)  # who waits for more is called
        model.pump()
        assert lone.sent_blocks == model.sent
        assert (lone.messages_credit, lone.bytes_credit) == (model.messages, model.size)
    assert lone.hosted.sent_messages == sum(b - a - sum(y + 1 - x for x, y in skip) for a, b, skip in model.sent)
    assert (lone.out.messages, lone.sent.messages) == (lone.hosted.sent_messages,) * 2
    assert sum(lone.times.durable_to_delivered_s.sums()[-1:]) == len(model.sent)


async def test_an_error_of_the_segment_closes_it_and_it_is_not_asked_again():
    lone = Lone()
    lone.segment.error = StorageError("broken")
    lone.messages_credit = lone.bytes_credit = 10
    lone.pump()
    assert (lone.errors, lone.reader.busy) == ([lone.segment.error], False)


async def test_a_closed_one_takes_no_step():
    lone = Lone()
    lone.pump()
    lone.messages_credit = lone.bytes_credit = 10
    lone.closed = True
    lone.segment.publish(1)
    await asyncio.sleep(0)
    assert (lone.sent_blocks, lone.reader.busy) == ([], False)


@pytest.mark.parametrize(
    ("window", "paced", "messages", "room"),
    [(10, False, 3, True), (10, False, 4, False), (16, True, 4, True), (15, True, 4, False), (65_535, False, 9, True)],
)
def test_room_for_messages(window: int, paced: bool, messages: int, room: bool):
    outlet = Outlet(None, 1, None, None, SimpleNamespace, Tally(lambda: 0.0), Tally(lambda: 0.0))
    outlet.messages_credit, outlet.window, outlet.paced = 3, window, paced
    assert outlet.has_room_for(messages) is room


def test_what_an_outlet_sent_is_counted_by_a_tally():
    outlet = Outlet(None, 1, None, None, SimpleNamespace, Tally(lambda: 0.0), Tally(lambda: 0.0))
    with pytest.raises(TypeError):
        outlet.sent = SimpleNamespace()


class Pool(Outgoing):
    def __init__(self) -> None:
        super().__init__(0, ReadTurns(deque(), lambda: False))
        self.counted: list[int] = []

    def count(self, connection: Any, unsent: int) -> None:
        connection.noted = unsent
        self.counted.append(unsent)


class Peer:
    """A connection; `turns`: W for each time it has to wait, T for each turn it gets."""

    def __init__(self) -> None:
        self.stream, self.noted, self.turns = SimpleNamespace(unsent_bytes=0), 0, ""

    def wait_turn(self) -> None:
        self.turns += "W"

    def take_turn(self) -> None:
        self.turns += "T"


async def test_who_sends_more_than_a_turn_has_waits_for_a_later_one_in_order():
    pool, first, second = Pool(), Peer(), Peer()
    pool.sent(first, [bytes(TURN_BYTES // 2)] * 2)
    assert (first.turns, pool.crowded) == ("", False)
    pool.sent(first, b"x")
    pool.sent(second, memoryview(b"y"))
    assert (first.turns, second.turns, pool.crowded) == ("W", "W", True)
    await asyncio.sleep(0)
    assert (first.turns, second.turns, pool.spent, pool.crowded) == ("WT", "WT", 0, False)


async def test_unsent_bytes_count_when_they_change_and_less_only_while_there_is_room():
    pool, peer = Pool(), Peer()
    for unsent, timer in ((0, None), (5, None), (5, None), (3, "full"), (3, None), (9, "full")):
        peer.stream.unsent_bytes, pool.timer = unsent, timer
        pool.note(peer)
    assert pool.counted == [5, 3, 9]


async def test_one_whose_turn_fails_takes_none_from_the_others():
    class Failing(Peer):
        def take_turn(self) -> None:
            raise ZeroDivisionError

    pool, last = Pool(), Peer()
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    for peer in (Failing(), last):
        pool.queue(peer)
    for _ in range(3):
        await asyncio.sleep(0)
    pool.queue(last)
    for _ in range(3):
        await asyncio.sleep(0)
    assert (last.turns, [type(e) for e in failures]) == ("WTWT", [ZeroDivisionError])
