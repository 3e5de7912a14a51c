"""Ages of things whose beginnings the wall clock tells, while the wall clock is set."""

from __future__ import annotations

import random

import pytest

from engine.clock import STEPS_MAX, Ages, ForwardSteps
from engine.testing.clock import FakeClock

DAY_S = 86_400
DAY_MS = DAY_S * 1000


def test_an_age_grows_with_the_monotonic_clock_alone() -> None:
    clock = FakeClock()
    ages, began = Ages[str](clock, ForwardSteps(clock)), clock.time_ms() - 7_000
    assert ages.update({"a": began}) == {"a": 7.0}
    for step_ms in (-DAY_MS, 3 * DAY_MS, -DAY_MS // 2):
        clock.jump(step_ms)
        clock.advance(1.0)
        assert ages.update({"a": began})["a"] == ages.age("a", began)
    assert ages.age("a", began) == 10.0


def test_a_beginning_in_the_future_counts_as_now() -> None:
    """As after a restart with a clock that was set back meanwhile."""
    clock = FakeClock()
    ages, began = Ages[str](clock, ForwardSteps(clock)), clock.time_ms() + DAY_MS
    assert ages.age("a", began) is None  # nothing can be said
    assert ages.update({"a": began}) == {"a": 0.0}
    clock.advance(5.0)
    assert ages.update({"a": began}) == {"a": 5.0}


def test_what_was_not_there_at_the_last_look_is_younger_than_that() -> None:
    clock = FakeClock()
    ages = Ages[str](clock, ForwardSteps(clock))
    ages.update({})
    clock.advance(0.25)
    began = clock.time_ms()
    clock.jump(DAY_MS)
    clock.advance(0.25)
    assert ages.age("a", began) == 0.25
    assert ages.update({"a": began}) == {"a": 0.25}
    clock.advance(1.0)
    behind = began - DAY_MS  # by a clock that is a day behind this one
    assert ages.age("b", behind) == 1.0
    assert ages.update({"a": began, "b": behind}) == {"a": 1.25, "b": 1.0}


def test_what_a_look_does_not_find_is_forgotten_and_what_begins_anew_is_new() -> None:
    clock = FakeClock()
    ages, began = Ages[str](clock, ForwardSteps(clock)), clock.time_ms()
    ages.update({"a": began, "b": began})
    clock.advance(5.0)
    assert ages.update({"b": began + 5_000}) == {"b": 0.0}
    clock.advance(5.0)
    assert ages.update({"a": began}) == {"a": 5.0}  # as far as is known; no longer than since the last look


def test_things_were_asked_for_before_they_are_looked_at() -> None:
    """One that begins while the others are read, and is not among them, was not overlooked."""
    clock = FakeClock()
    ages, asked = Ages[str](clock, ForwardSteps(clock)), clock.monotonic()
    clock.advance(2.0)
    assert ages.update({}, asked) == {}
    clock.advance(1.0)
    assert ages.update({"a": clock.time_ms() - DAY_MS}) == {"a": 3.0}


def test_what_a_clock_that_is_set_forward_leaves_out() -> None:
    clock = FakeClock()
    steps, before = ForwardSteps(clock), clock.time_ms()
    clock.advance(10.0)
    steps.sample()
    clock.jump(DAY_MS)
    steps.sample()
    after = clock.time_ms()
    clock.advance(10.0)
    steps.sample()
    assert (steps.left_out_ms(before), steps.left_out_ms(after)) == (DAY_MS, 0)
    clock.jump(-DAY_MS // 4)
    steps.sample()
    assert steps.left_out_ms(before) == DAY_MS - DAY_MS // 4
    clock.jump(-2 * DAY_MS)
    steps.sample()
    assert steps.left_out_ms(before) == 0


def test_what_a_clock_showed_so_long_ago() -> None:
    clock = FakeClock()
    steps, start = ForwardSteps(clock), clock.time_ms()
    for _ in range(2):
        clock.advance(10.0)
        steps.sample()
        clock.jump(DAY_MS)
        steps.sample()
    clock.advance(10.0)
    now = steps.sample()
    for passed_s, shown_ms in ((1, 29_000 + 2 * DAY_MS), (11, 19_000 + DAY_MS), (21, 9_000), (40, -10_000)):
        assert steps.shown_ago(now, passed_s * 1000) == start + shown_ms


def test_a_clock_that_drifts_is_not_set() -> None:
    clock = FakeClock()
    steps, before = ForwardSteps(clock), clock.time_ms()
    for _ in range(1000):
        clock.advance(0.5)
        clock.jump(3)
        steps.sample()
    assert steps.left_out_ms(before) == 0


@pytest.mark.parametrize("seed", range(5))
def test_of_many_steps_the_sum_is_kept(seed: int) -> None:
    rng, clock = random.Random(seed), FakeClock()
    steps, before, left_out = ForwardSteps(clock), clock.time_ms(), 0
    for _ in range(5 * STEPS_MAX):
        clock.advance(rng.uniform(0.1, 10.0))
        step_ms = rng.choice((DAY_MS, 3_000, 60_000, -2_000))
        clock.jump(step_ms)
        steps.sample()
        left_out = max(0, left_out + step_ms)
    assert abs(steps.left_out_ms(before) - left_out) <= 5 * STEPS_MAX  # rounded to a millisecond each


def test_what_is_first_seen_after_a_step_forward_is_not_older_by_it() -> None:
    """A broker that takes over what another has begun, and was running itself."""
    clock = FakeClock()
    ages, began = Ages[str](clock, ForwardSteps(clock)), clock.time_ms()
    clock.advance(3.0)
    clock.jump(DAY_MS)
    assert ages.age("a", began) == 3.0
    assert ages.update({"a": began}) == {"a": 3.0}
    assert Ages[str](clock, ForwardSteps(clock)).update({"a": began}) == {"a": DAY_S + 3.0}, "a process begun later"
