"""What a user has and has not acknowledged, against a plain table of messages and times."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from pyroaring import BitMap64

from engine.client.consume.unacked import SLOTS, Unacknowledged

TIMEOUT_S = 16.0
SEGMENTS = st.integers(0, 1)
CHOICE = st.integers(0, 2**16 - 1)  # which of some offsets: by the bits


class Having(RuleBasedStateMachine):
    """`queue`: (segment, offset) in the order of arrival; `got`: when the user received what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.unacked = Unacknowledged(TIMEOUT_S, lambda: self.now)
        self.queue: deque[tuple[int, int]] = deque()
        self.got: dict[tuple[int, int], float] = {}
        self.back: dict[int, set[int]] = {0: set(), 1: set()}  # may arrive again
        self.next = {0: 0, 1: 0}

    @rule(segment=SEGMENTS, count=st.integers(1, 20), choice=CHOICE)
    def arrive(self, segment: int, count: int, choice: int) -> None:
        """New ones, and some that came back."""
        again = self.chosen(self.back[segment], choice)
        self.back[segment] -= again
        offsets = again | set(range(self.next[segment], self.next[segment] + count))
        self.next[segment] += count
        self.queue.extend((segment, offset) for offset in sorted(offsets))
        self.unacked.arrived(segment, BitMap64(offsets))

    @rule(count=st.integers(0, 30), told=st.booleans())
    def receive(self, count: int, told: bool) -> None:
        for _ in range(min(count, len(self.queue))):
            self.got[self.queue.popleft()] = self.now
        if told:
            self.unacked.settle(len(self.queue))

    @rule(segment=SEGMENTS, choice=CHOICE)
    def take(self, segment: int, choice: int) -> None:
        """Acknowledged, or handed back; also what the user does not have."""
        self.unacked.settle(len(self.queue))
        named = self.chosen(set(range(self.next[segment])), choice)
        mine = {offset for offset in named if (segment, offset) in self.got}
        assert set(self.unacked.take(segment, BitMap64(named))) == mine
        for offset in mine:
            del self.got[segment, offset]
        self.back[segment] |= mine

    @rule(segment=SEGMENTS)
    def lose(self, segment: int) -> None:
        self.unacked.settle(len(self.queue))
        for key in [key for key in (*self.got, *self.queue) if key[0] == segment]:
            self.got.pop(key, None)
            self.back[segment].add(key[1])
        self.queue = deque(key for key in self.queue if key[0] != segment)
        self.unacked.drop(segment)

    @precondition(lambda self: self.queue)
    @rule(segment=SEGMENTS, choice=CHOICE)
    def forget(self, segment: int, choice: int) -> None:
        """Acknowledged before they were received."""
        self.unacked.settle(len(self.queue))
        named = self.chosen({offset for i, offset in (*self.queue, *self.got) if i == segment}, choice)
        self.queue = deque(key for key in self.queue if key[0] != segment or key[1] not in named)
        for offset in named:
            self.got.pop((segment, offset), None)
        self.unacked.forget(segment, BitMap64(named))

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0]))
    def wait(self, seconds: float) -> None:
        """Looked at as often as it asks for: nothing too early, nothing late by more than two ticks."""
        self.unacked.settle(len(self.queue))
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + TIMEOUT_S / SLOTS, end)
            for segment, offsets in self.unacked.expired():
                for offset in offsets:
                    # As a sum, which is how a deadline is made: 51.1 + 16.0 is 67.1, but 67.1 - 16.0 is less than 51.1.
                    assert self.got.pop((segment, offset)) + TIMEOUT_S <= self.now
                    self.back[segment].add(offset)
            # Of several ticks, each of which is rounded.
            assert all(time + TIMEOUT_S * (1 + 2 / SLOTS) > self.now - 1e-6 for time in self.got.values())

    @invariant()
    def it_counts(self) -> None:
        assert self.unacked.count(len(self.queue)) == len(self.got)
        assert self.unacked.busy or not (self.got or self.queue)

    @staticmethod
    def chosen(offsets: set[int], choice: int) -> set[int]:
        return {offset for i, offset in enumerate(sorted(offsets)) if choice >> i % 16 & 1}


TestHaving = Having.TestCase
TestHaving.settings = settings(max_examples=100, stateful_step_count=40)


@pytest.mark.fuzz
def test_having_for_long() -> None:
    run_state_machine_as_test(Having, settings=settings(max_examples=3_000, stateful_step_count=60))


@pytest.mark.parametrize("received", [50.1, 0.1, 1e6 + 0.1, 2**40 + 0.3])
def test_the_time_is_over_when_the_clock_shows_the_deadline_and_not_before(received: float) -> None:
    """Also of a message that comes a tick behind another one, and shares its slot, in numbers that are rounded."""
    now = received
    unacked = Unacknowledged(TIMEOUT_S, lambda: now)
    unacked.arrived(0, BitMap64([0, 1]))
    unacked.settle(1)
    now = second = received + TIMEOUT_S / SLOTS
    unacked.settle(0)
    due = second + TIMEOUT_S
    now = math.nextafter(received + TIMEOUT_S, 0)
    assert list(unacked.expired()) == []
    now = math.nextafter(due, 0)
    late = {offset for _, offsets in unacked.expired() for offset in offsets}
    assert 1 not in late, "it would be early"
    now = due + 2 * TIMEOUT_S / SLOTS
    late |= {offset for _, offsets in unacked.expired() for offset in offsets}
    assert late == {0, 1}
