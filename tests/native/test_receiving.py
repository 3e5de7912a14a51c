"""What of receiving repeats with each message, beside a plain model of it."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine._native.consume.asked import by_segment, merged, vector_of
from engine._native.consume.entry_queue import EntryQueue
from engine._native.consume.receiving import Arriving, Holdings, Inbox, Reached, Skipped, Wait
from engine._native.consume.receiving import Share as NativeShare
from engine.client.consume.receiving import Receiving
from engine.errors import AlreadyClosedError, CorruptionError
from engine.model.positions import bucket_position
from tests.kit.fake_entries import SALT, block
from tests.reference import receiving_reference as reference

places = st.builds(
    lambda segment, bucket: segment if bucket is None else bucket_position(segment, bucket),
    st.integers(0, 2**52 - 1) | st.integers(0, 2),
    st.none() | st.integers(0, 1023),
) | st.integers(-(2**63), 2**63 - 1)  # also what no broker has said: the bytes of an id have room for it
vectors = st.dictionaries(places, st.integers(0, 2**62))


@given(vectors)
def test_vectors_by_segment(vector: dict[int, int]):
    assert by_segment(vector) == reference.by_segment(vector)


@given(vectors, vectors)
def test_merged_has_the_larger_position_of_each_place(one: dict[int, int], other: dict[int, int]):
    first, second = by_segment(one), by_segment(other)
    assert merged(first, second) == reference.merged(first, second)
    assert (first, second) == (by_segment(one), by_segment(other)), "neither is changed"


class Attached(Arriving):
    """One of a segment 1 that is read alone."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner, Block, ordered=True, by_cursor=True)
        self.segment_id = 1
        self.progress = Progress()
        self.gaps = Skipped()
        self.parked = None
        self.pushed = 0
        self.others: list[Any] = []

    def other_received(self, header: Any) -> None:
        self.others.append(header)


class Progress(Reached):
    marks = None


class Block(SimpleNamespace):
    """A header of messages."""

    salt, skip, redelivered = SALT, None, None


class Consumer(Inbox):
    """It credits at once what it owes."""

    def __init__(self, window_messages: int = 0, window_bytes: int = 2**40) -> None:
        self._queue = EntryQueue("t", lambda segment, offset, positions: (segment, offset, positions))
        self._loop: Any = None
        self._receives: deque[Wait] = deque()
        self._failure: Exception | None = None
        self._paused = self._evolves = False
        self._member_of: Any = None
        self._damage: Any = SimpleNamespace(stopped={})
        self.unread = 0
        self._pushed_messages = self._pushed_bytes = self._credited_messages = self._credited_bytes = 0
        self._window_messages, self._window_bytes = window_messages, window_bytes
        self.holdings = Holdings()
        self._budget_share = NativeShare(self.holdings)
        self.attachments = {1: Attached(self)}
        self.credited: list[tuple[int, int]] = []

    _in_turn: Any = Receiving._in_turn

    def _return_credit(self) -> None:
        messages, size = self._queue.take_credit().get(1, (0, 0))
        self.credited.append((messages, size))
        self._credited_messages += messages
        self._credited_bytes += size
        self._recount()

    def arrive(self, first: int, messages: int) -> int:
        """A block of one entry; its bytes."""
        data = block(1, first, [b"v"] * messages)
        self.attachments[1].frame_received(Block(messages=messages), memoryview(data))
        return len(data)


@given(st.lists(st.integers(0, 9)), st.integers(0, 40), st.sampled_from((600, 2_000, 2**40)))
def test_blocks_and_receives_as_the_model_has_them(steps: list[int], window: int, size: int):
    """A step is a pop, or so many messages that come."""
    consumer, model, offset = Consumer(window, size), reference.PlainInbox(window, size), 0
    for messages in steps:
        if messages:
            taken = consumer.arrive(offset, messages)
            model.came(reference.PlainBlock(offset, messages, taken))
            offset += messages
        else:
            message, expected = consumer._pop_message(), model.pop()
            assert (None if message is None else message.offset) == expected
            if message is not None:
                assert vector_of(message) == message.id[2]
                consumer._popped()
        assert consumer.waiting == len(model.waiting)
        assert consumer.credited == model.credited
        assert consumer.holdings.held == model.held
        assert consumer.attachments[1].progress.expected == offset


def test_frames_of_a_closed_or_broken_attachment_are_ignored():
    consumer = Consumer()
    attachment = consumer.attachments[1]
    attachment.broken = True
    consumer.arrive(0, 3)
    attachment.frame_received("end", memoryview(b""))
    attachment.closed = True
    attachment.frame_received("again", memoryview(b""))
    assert (consumer.waiting, attachment.others) == (0, ["end"])


def test_gaps_are_passed_and_the_cursor_leaves_out_what_is_below():
    consumer = Consumer()
    attachment = consumer.attachments[1]
    attachment.gaps.runs.append((3, 9))
    attachment.progress.confirmed = 2
    consumer.arrive(0, 3)
    assert (consumer.waiting, attachment.progress.expected, attachment.progress.arrived) == (1, 9, 9)


async def test_a_waiting_receive_is_served_in_its_turn_and_at_its_timeout():
    consumer = Consumer()
    consumer._loop = asyncio.get_running_loop()
    first, second, late = (
        asyncio.create_task(consumer._in_turn(consumer._pop_message, timeout)) for timeout in (None, None, 0.0)
    )
    assert await late is None
    consumer.arrive(0, 2)
    assert [(await one).offset for one in (first, second)] == [0, 1]
    assert not consumer._receives


async def test_a_cancelled_receive_has_taken_nothing_and_the_next_one_goes_on():
    consumer = Consumer()
    consumer._loop = asyncio.get_running_loop()
    first, second = (asyncio.create_task(consumer._in_turn(consumer._pop_message, None)) for _ in range(2))
    await asyncio.sleep(0)
    consumer.arrive(0, 1)
    first.cancel()
    assert (await second).offset == 0
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_consumer_that_has_failed_lets_nobody_wait():
    consumer = Consumer()
    consumer._loop = asyncio.get_running_loop()
    consumer._failure = AlreadyClosedError("closed")
    with pytest.raises(AlreadyClosedError):
        await consumer._in_turn(consumer._pop_message, None)


def test_a_bad_entry_is_for_damage():
    met: list[Exception] = []
    consumer = Consumer()
    consumer._damage.past = lambda error, pop: met.append(error)
    data = bytearray(block(1, 0, [b"v"]))
    data[-1] ^= 1
    consumer.attachments[1].frame_received(Block(messages=1), memoryview(bytes(data)))
    assert consumer._pop_message() is None
    assert [type(error) for error in met] == [CorruptionError]
