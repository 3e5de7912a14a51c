"""Histograms count what they see, at or below each bound, whatever it is."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.aio.histogram import COUNT, LATENCY_S, SIZE_BYTES, WAIT_MS, Histogram
from engine.aio.loop_lag import LoopLag

VALUES = st.lists(st.floats(0, 100, allow_nan=False), max_size=50)


@given(VALUES, st.lists(st.sampled_from(range(1, 90)), min_size=1, unique=True))
def test_each_bound_counts_what_is_at_or_below_it(values, bounds):
    histogram = Histogram(sorted(float(bound) for bound in bounds))
    for value in values:
        histogram.observe(value)
    found = histogram.statistics()
    assert list(found.counts) == [sum(value <= bound for value in values) for bound in found.bounds]
    assert found.count == len(values)
    assert found.total == pytest.approx(sum(values))


@pytest.mark.parametrize("bounds", [LATENCY_S, WAIT_MS, SIZE_BYTES, COUNT])
def test_bounds_rise(bounds):
    assert list(bounds) == sorted(set(bounds))


def test_a_record_does_not_change_with_its_histogram():
    histogram = Histogram([1.0])
    before = histogram.statistics()
    histogram.observe(0.5)
    assert (before.count, histogram.statistics().count) == (0, 1)


class Heard(Histogram):
    """Says when it has seen something."""

    def __init__(self) -> None:
        super().__init__()
        self.event = asyncio.Event()

    def observe(self, value: float) -> None:
        super().observe(value)
        self.event.set()


async def test_a_loop_that_is_held_up_is_late():
    lag, loop = LoopLag(), asyncio.get_running_loop()
    lag.histogram = heard = Heard()
    lag.start()
    lag.start()
    await heard.event.wait()  # one look in peace
    heard.event.clear()
    held_until = loop.time() + 0.5
    while loop.time() < held_until:  # no other task gets a turn
        pass
    await heard.event.wait()
    lag.stop()
    lag.stop()
    assert lag.recent > 0.2
    assert lag.histogram.statistics().total >= lag.recent
