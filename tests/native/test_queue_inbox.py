"""What a queue consumer counts of each block and each receive, beside plain models of it."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from engine._native.consume.entry_queue import EntryQueue
from engine._native.consume.permits import Permits, worth_granting
from engine._native.consume.receiving import Arriving, Holdings, Reached, Share, Skipped, Wait
from engine._native.consume.unacked import QueueInbox, Unacknowledged
from engine.errors import InvalidArgumentError
from engine.limits import RECEIVE_QUEUE_MESSAGES
from tests.kit.fake_entries import SALT, block
from tests.reference.permits_reference import PlainPace, PlainPermits
from tests.reference.unacked_reference import PlainUnacked


class Segment:
    """An attachment, as far as Permits see it."""

    def __init__(self, number: int, grants: list[tuple[int, int, int | None]]) -> None:
        self.number, self.grants = number, grants
        self.announced_window: int | None = None

    def grant(self, messages: int, size: int) -> None:
        assert size == 0
        self.grants.append((self.number, messages, self.announced_window))


numbers = st.integers(0, 4)
steps = st.one_of(
    st.tuples(st.just("admit"), numbers, st.none()),
    st.tuples(st.just("leave"), numbers, st.none()),
    st.tuples(st.just("send"), numbers, st.integers(1, 300)),
    st.tuples(st.just("done"), st.integers(1, 300), st.booleans()),
    st.tuples(st.just("ask"), st.none(), st.none()),
    st.tuples(st.just("wait"), st.sampled_from((1e-6, 1e-3, 0.05, 0.3, 10.0)), st.none()),
)


@given(st.none() | st.integers(1, 5) | st.integers(28, 200), st.lists(steps, max_size=80))
def test_credit_is_granted_as_the_model_grants_it(size: int | None, played: list[tuple[str, Any, Any]]):
    now = 0.0
    grants: list[tuple[int, int, int | None]] = []
    segments = [Segment(number, grants) for number in range(5)]
    permits = Permits(size, lambda: now)
    model = PlainPermits(size, lambda: now, PlainPace(RECEIVE_QUEUE_MESSAGES))
    for step, one, other in played:
        if step == "admit":
            permits.admit(segments[one])
            model.admit(one)
        elif step == "leave":
            permits.leave(segments[one])
            model.leave(one)
        elif step == "send":
            permits.arrived(segments[one], other)
            permits.change(other)
            model.arrived(one, other)
            model.change(other)
        elif step == "done":
            count = min(one, model.held)
            permits.change(-count, count if other else 0)
            model.change(-count, count if other else 0)
        elif step == "ask":
            permits.ask()
            model.ask()
        else:
            now += one
        assert (permits.window, permits.held) == (model.window, model.held)
        assert grants == model.grants


@pytest.mark.parametrize("size", [0, -3])
def test_a_window_of_no_messages_is_refused(size: int):
    with pytest.raises(InvalidArgumentError, match=f"size must be at least 1, got {size}"):
        Permits(size, lambda: 0.0)


def test_the_worth_of_a_grant():
    assert [worth_granting(window) for window in (1, 2, 3, 31, 32, 100_000)] == [1, 1, 2, 16, 8, 25_000]


class Block(SimpleNamespace):
    """A header of messages."""

    salt = SALT


class Progress(Reached):
    marks = None


class Attached(Arriving):
    """One of a segment 1 that is read by a queue."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner, Block, ordered=False, by_cursor=False)
        self.segment_id = 1
        self.progress, self.gaps = Progress(), Skipped()
        self.parked = None
        self.pushed = 0
        self.grants: list[int] = []
        self.announced_window: int | None = None

    def grant(self, messages: int, size: int) -> None:
        self.grants.append(messages)


class Consumer(QueueInbox):
    """Of one segment; its letters are the offsets of the last delivery."""

    def __init__(self, timeout: float | None = None) -> None:
        self._queue = EntryQueue("t", lambda segment, offset, positions: (segment, offset, positions))
        self._receives: deque[Wait] = deque()
        self._failure: Exception | None = None
        self._paused = self._evolves = self._closed = False
        self._member_of: Any = None
        self._damage: Any = SimpleNamespace(stopped={})
        self.unread = 0
        self._pushed_messages = self._pushed_bytes = self._credited_messages = self._credited_bytes = 0
        self._window_messages, self._window_bytes = 0, 2**40
        self._budget_share = Share(Holdings())
        self.attachments = {1: Attached(self)}
        self._unacked = Unacknowledged(timeout, lambda: 0.0)
        self._permits = Permits(40, lambda: 0.0)
        self._permits.admit(self.attachments[1])
        self._dead_letters: Any = None
        self.watched = 0

    def _watch(self) -> None:
        self.watched += 1

    def arrive(self, first: int, messages: int, skip: list[list[int]] | None = None, **header: Any) -> None:
        data = block(1, first, [b"v"] * messages)
        skipped = sum(last - start + 1 for start, last in skip or ())
        found = Block(messages=messages - skipped, skip=skip, redelivered=header.get("redelivered"))
        self.attachments[1].frame_received(found, memoryview(data))


blocks = st.tuples(st.integers(1, 9), st.sets(st.integers(0, 8), max_size=4))


@given(st.lists(blocks | st.integers(1, 6) | st.sampled_from(["take", "back"])))
def test_blocks_receives_and_acknowledgements_as_the_model_has_them(played: list[Any]):
    """A step is a block with messages to skip, so many receives, an acknowledgement, or one that failed."""
    consumer, model, offset = Consumer(), PlainUnacked(), 0
    for step in played:
        if isinstance(step, tuple):
            count, skipped = step
            skip = [[offset + i, offset + i] for i in sorted(skipped) if i < count]
            consumer.arrive(offset, count, skip or None)
            model.arrived(1, {offset + i for i in range(count)} - {offset + i for i in skipped})
            offset += count
        elif isinstance(step, int):
            for _ in range(step):
                message = consumer._pop_message()
                expected = model.queue[0][1] if model.queue else None
                assert (None if message is None else message.offset) == expected
                if message is not None:
                    consumer._popped()
                model.receive(1, 0.0)
        else:
            consumer._settle()
            asked = set(range(offset // 2))
            taken, mine = consumer._unacked.take(1, BitMap64(asked)), model.take(1, asked)
            assert set(taken) == mine
            if step == "back":
                consumer._unacked.give_back(1, taken)
                model.give_back(1, mine, 0.0)
            consumer._held_changed(len(taken) if step == "take" else 0)
        assert consumer._unacked.total == consumer._permits.held == model.total
        assert consumer._unacked.count(len(model.queue)) == len(model.got)
    consumer._settle()
    assert set(consumer._unacked.held(1)) == model.held(1)


def test_a_receive_that_waits_asks_for_more_when_nothing_is_queued():
    consumer = Consumer()
    attachment = consumer.attachments[1]
    consumer.arrive(0, 40)
    before = list(attachment.grants)
    consumer._asked()
    assert attachment.grants == before, "messages are queued"
    for _ in range(40):
        consumer._pop_message()
    consumer._asked()
    assert attachment.grants == [*before, 40], "what the program has is excused"


@pytest.mark.parametrize(("timeout", "watched"), [(None, 0), (5.0, 1)])
def test_what_may_expire_is_watched(timeout: float | None, watched: int):
    consumer = Consumer(timeout)
    consumer.arrive(0, 3)
    assert consumer.watched == watched


def test_blocks_of_a_closed_consumer_use_credit_and_are_not_held():
    consumer = Consumer()
    consumer._closed = True
    consumer.arrive(0, 3)
    assert (consumer._unacked.total, consumer._permits.held, consumer._queue.messages) == (0, 0, 0)


def test_an_heir_takes_dead_letters_out_of_a_block():
    class Letters(Consumer):
        def _without_letters(self, attachment: Any, entries: Any, header: Any, offsets: Any) -> Any:
            assert set(offsets) == {0, 2, 3, 4}
            header.skip = [[0, 1], [3, 3]]
            return header, offsets - BitMap64([0, 3])

    consumer = Letters()
    consumer.arrive(0, 5, [[1, 1]], redelivered=[[0, 0, 1]])  # there is no dead-letter topic here
    assert consumer._unacked.total == 4
    consumer = Letters()
    consumer._dead_letters = object()
    consumer.arrive(0, 5, [[1, 1]], redelivered=[[0, 0, 1]])
    assert [consumer._pop_message().offset for _ in range(2)] == [2, 4]
    assert consumer._unacked.total == 2
