"""What a user has and has not acknowledged, against a plain table of messages and times."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from pyroaring import BitMap64

from engine._native.consume.unacked import SLOTS, Unacknowledged
from tests.reference.unacked_reference import PlainUnacked

TIMEOUT_S = 16.0
SEGMENTS = st.integers(0, 1)
CHOICE = st.integers(0, 2**16 - 1)  # which of some offsets: by the bits


class Having(RuleBasedStateMachine):
    """The native one, and the plain model beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.unacked = Unacknowledged(TIMEOUT_S, lambda: self.now)
        self.model = PlainUnacked()
        self.told = 0
        self.back: dict[int, set[int]] = {0: set(), 1: set()}  # may arrive again
        self.next = {0: 0, 1: 0}

    @rule(segment=SEGMENTS, count=st.integers(1, 20), choice=CHOICE)
    def arrive(self, segment: int, count: int, choice: int) -> None:
        """New ones, and some that came back."""
        again = self.chosen(self.back[segment], choice)
        self.back[segment] -= again
        offsets = again | set(range(self.next[segment], self.next[segment] + count))
        self.next[segment] += count
        self.model.arrived(segment, offsets)
        self.unacked.arrived(segment, BitMap64(offsets))

    @rule(count=st.integers(0, 30), told=st.booleans())
    def receive(self, count: int, told: bool) -> None:
        self.model.receive(count, self.now)
        if told:
            self.settle()

    def settle(self) -> None:
        self.unacked.settle(len(self.model.queue))

    @rule(segment=SEGMENTS, choice=CHOICE, fails=st.booleans())
    def take(self, segment: int, choice: int, fails: bool) -> None:
        """Acknowledged, or handed back; also what the user does not have."""
        self.settle()
        named = self.chosen(set(range(self.next[segment])), choice)
        mine = self.model.take(segment, named)
        assert set(self.unacked.take(segment, BitMap64(named))) == mine
        if fails:
            self.unacked.give_back(segment, BitMap64(mine))
            self.model.give_back(segment, mine, self.now)
        else:
            self.back[segment] |= mine

    @rule(segment=SEGMENTS)
    def lose(self, segment: int) -> None:
        self.settle()
        self.back[segment] |= self.model.drop(segment)
        self.unacked.drop(segment)

    @precondition(lambda self: self.model.queue)
    @rule(segment=SEGMENTS, choice=CHOICE)
    def forget(self, segment: int, choice: int) -> None:
        """Acknowledged before they were received."""
        self.settle()
        named = self.chosen({offset for i, offset in (*self.model.queue, *self.model.got) if i == segment}, choice)
        self.model.forget(segment, named)
        self.unacked.forget(segment, BitMap64(named))

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 40.0]))
    def wait(self, seconds: float) -> None:
        """Looked at as often as it asks for: nothing too early, nothing late by more than two ticks."""
        self.settle()
        end, got = self.now + seconds, self.model.got
        while self.now < end:
            self.now = min(self.now + TIMEOUT_S / SLOTS, end)
            for segment, offsets in self.unacked.expired():
                for offset in offsets:
                    # As a sum, which is how a deadline is made: 51.1 + 16.0 is 67.1, but 67.1 - 16.0 is less than 51.1.
                    assert got.pop((segment, offset)) + TIMEOUT_S <= self.now
                    self.back[segment].add(offset)
            # Of several ticks, each of which is rounded.
            assert all(time + TIMEOUT_S * (1 + 2 / SLOTS) > self.now - 1e-6 for time in got.values())

    @rule()
    def tell(self) -> None:
        self.told += self.unacked.changed()
        assert self.told == self.unacked.told == self.model.total

    @invariant()
    def it_counts(self) -> None:
        assert self.unacked.total == self.model.total
        assert self.unacked.count(len(self.model.queue)) == len(self.model.got)
        assert self.unacked.busy or not self.model.total

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
