"""A few read from files as they like; a crowd reads in turn, and lets those go first whose messages are not durable."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from engine._native.serve.blocks import Block
from engine._native.serve.waiters import Waiters
from engine.aio.pace import REST_S
from engine.broker.pools.file_reads import READING_BYTES, FileReads
from engine.broker.segment.reader import COLD_BLOCKS, SegmentReader
from engine.clock import SystemClock
from engine.testing.loop import run_virtual
from tests.broker.environments import environment


def begin(reads: FileReads, size: int) -> asyncio.Future[None]:
    """A read that lasts until somebody ends it."""
    read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    reads.began(size, read)
    return read


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_few_read_at_the_same_time_and_above_the_limit_they_wait():
    async def play() -> None:
        reads = FileReads(lambda: False)
        assert reads.turn() is None
        first = begin(reads, READING_BYTES // 2)
        assert reads.turn() is None
        second = begin(reads, READING_BYTES // 2)
        waits = reads.turn()
        assert waits is not None
        assert reads.crowded
        await settle()
        assert not waits.done()
        first.set_result(None)
        second.set_result(None)
        await waits
        assert (reads.bytes, reads.crowded) == (0, False)

    run_virtual(play())


def test_a_crowd_reads_one_after_the_other_in_the_order_in_which_it_came():
    async def play() -> None:
        reads, order, under_way = FileReads(lambda: False), [], []
        under_way.append(begin(reads, READING_BYTES))

        def admitted(name: int) -> None:
            order.append(name)
            under_way.append(begin(reads, 1))

        for name in range(5):
            turn = reads.turn()
            assert turn is not None
            turn.add_done_callback(lambda _, name=name: admitted(name))
        for done in range(5):
            await settle()
            assert order == [*range(done)]
            under_way.pop().set_result(None)
        await settle()
        assert order == [*range(5)]

    run_virtual(play())


def test_while_messages_wait_to_become_durable_there_is_a_rest_after_each():
    async def play() -> None:
        loop, reads, times = asyncio.get_running_loop(), FileReads(lambda: True), []
        block = begin(reads, READING_BYTES)
        turns = [reads.turn() for _ in range(3)]
        for turn in turns:
            assert turn is not None
            turn.add_done_callback(lambda _: times.append(loop.time()))
        block.set_result(None)
        await asyncio.gather(*turns)
        assert all(later - earlier >= REST_S for earlier, later in itertools.pairwise(times))

    run_virtual(play())


def test_on_the_loop_is_read_while_nobody_waits_for_anything():
    async def play() -> None:
        waits_to_become_durable = False
        reads = FileReads(lambda: waits_to_become_durable)
        block = begin(reads, READING_BYTES)
        assert reads.at_once
        turn = reads.turn()
        assert turn is not None
        assert not reads.at_once, "who waits for a turn comes first"
        block.set_result(None)
        await turn
        await settle()
        assert reads.at_once
        waits_to_become_durable = True
        assert not reads.at_once

    run_virtual(play())


def test_who_gives_his_turn_up_is_passed_over():
    async def play() -> None:
        reads = FileReads(lambda: False)
        block = begin(reads, READING_BYTES)
        gone, waits = reads.turn(), reads.turn()
        assert gone is not None
        assert waits is not None
        gone.cancel()
        block.set_result(None)
        await waits
        assert not reads.crowded

    run_virtual(play())


class ColdSegment:
    """Nothing of it is in memory, and what the system has in its cache changes."""

    transactions = None

    def __init__(self) -> None:
        self.environment, self.segment = environment(SystemClock()), self
        self.warm = False
        self.asked: list[bool] = []  # what was read: at once, if it may be?

    def read(self, offset: int, bytes_max: int, *, at_once: bool) -> Any:
        self.asked.append(at_once)
        block = Block([memoryview(b"x")], 0, offset, offset + 1, 1)
        return block if self.warm and at_once else asyncio.sleep(0, block)


def test_what_is_not_in_the_cache_is_read_by_workers_for_a_while():
    async def play() -> None:
        segment: Any = ColdSegment()
        blocks: list[Block | None] = []
        reader = SegmentReader(segment, blocks.append, lambda error: None)
        for offset in range(COLD_BLOCKS + 2):
            assert reader.read(offset, 1) is None
            await settle()
        assert [block.first_offset for block in blocks if block is not None] == [*range(COLD_BLOCKS + 2)]
        assert segment.asked == [True, *[False] * COLD_BLOCKS, True]

    run_virtual(play())


def test_nothing_is_read_ahead_that_comes_at_once_anyway():
    async def play() -> None:
        segment: Any = ColdSegment()
        segment.warm = True
        blocks: list[Block | None] = []
        reader = SegmentReader(segment, blocks.append, lambda error: None)
        reader.read_ahead(0, 1)
        assert (segment.asked, reader.busy) == ([], False)
        block = reader.read(0, 1)
        assert block is not None
        assert (block.first_offset, reader.busy, blocks) == (0, False, [])
        segment.warm = False
        assert reader.read(1, 1) is None
        await settle()
        reader.read_ahead(2, 1)
        assert reader.busy
        await settle()
        assert [block.first_offset for block in blocks if block is not None] == [1, 2]

    run_virtual(play())


def test_what_is_stopped_as_it_ends_is_not_the_end_of_what_is_read_next():
    async def play() -> None:
        segment: Any = ColdSegment()
        steps: list[Block | None] = []
        reader = SegmentReader(segment, steps.append, lambda error: None)
        waiters = Waiters()
        segment.call_when_durable = waiters.add
        reader.wait(5)
        waiters.wake()  # the loop calls the reader in its next turn
        reader.stop()
        assert reader.read(1, 1) is None
        for _ in range(2):
            await asyncio.sleep(0)
            assert (reader.busy, steps) == (True, []), "only the read is under way"
        await settle()
        assert [block and block.first_offset for block in steps] == [1]

    run_virtual(play())
