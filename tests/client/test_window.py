"""How much a producer has in flight follows the rate of delivery and the time of an idle way."""

from __future__ import annotations

import asyncio

import pytest

from engine.client.produce.window import FLOOR, RATES, TARGET_S, WOKEN_SHARE, Window
from engine.errors import StorageError
from engine.limits import MIB
from tests.client.sending_kit import Entry, Flying

LIMIT = 64 * MIB


def drive(window: Window, rate: float, idle: float, seconds: float, now: float = 0.0) -> float:
    """Send as much as the window allows over a way of this rate and this time when idle; returns the time then."""
    stop = now + seconds
    while now < stop:
        window.used = min(window.size, LIMIT)
        window.send(object(), now)
        took = max(idle, window.used / rate)
        window.acknowledged += window.used
        now += took
        window.end(now)
    return now


@pytest.mark.parametrize(
    ("rate", "idle", "low", "high"),
    [
        (400e6, 0.005, 0.045, 0.075),  # a fast disk: the target, and twice the idle time
        (400e6, 0.010, 0.045, 0.1),
        (1e6, 0.005, 4.1, 8.5),  # the floor takes longer, so the way is never idle: two floors more
        (100e6, 0.050, 0.1, 0.18),
    ],
)
def test_what_is_in_flight_is_bounded_by_time(rate, idle, low, high):
    window = Window()
    drive(window, rate, idle, 30.0)
    assert low <= window.size / rate <= high


def test_a_way_that_takes_longer_than_the_target_is_filled():
    window = Window()
    drive(window, 200e6, 0.3, 30.0)
    assert window.size >= 200e6 * 0.3  # what is under way at the full rate


def test_a_rate_that_falls_is_followed_and_one_that_rises_too():
    window = Window()
    now = drive(window, 400e6, 0.005, 5.0)
    before = window.size
    now = drive(window, 100e6, 0.005, 5.0, now)
    assert window.size < before / 3
    drive(window, 400e6, 0.005, 5.0, now)
    assert window.size > before * 0.9


def test_a_program_that_sends_less_than_it_could_does_not_shrink_it_at_once():
    window = Window()
    drive(window, 400e6, 0.005, 5.0)
    for _ in range(RATES - 2):
        window.used = 100
        window.send(object(), 100.0)
        window.acknowledged += 100
        window.end(100.005)
    assert window.size >= 400e6 * TARGET_S


def test_it_is_never_below_the_floor():
    window = Window()
    for n in range(50):
        window.send(object(), float(n))
        window.end(n + 1e-9)
        assert window.size == FLOOR


def test_what_waits_for_room_waits_until_the_window_has_drained():
    window = Window()
    window.used = FLOOR
    assert not window.is_full
    window.used = FLOOR + 1
    assert window.is_full
    window.used = int(FLOOR * WOKEN_SHARE) + 1
    assert not window.is_full
    assert not window.has_drained
    window.used = int(FLOOR * WOKEN_SHARE)
    assert window.has_drained


async def test_a_producer_has_no_room_while_its_window_is_full():
    flying = Flying()
    entries = [Entry(n, pending=FLOOR // 4) for n in range(5)]
    flying.enter(*entries[:4])
    assert flying.in_flight.has_room
    flying.enter(entries[4])
    assert not flying.in_flight.has_room
    assert flying.in_flight.has_memory
    waiting = asyncio.ensure_future(flying.in_flight.wait_room())
    await asyncio.sleep(0)
    flying.acknowledge(entries[0])
    assert flying.in_flight.has_room
    await asyncio.sleep(0)
    assert not waiting.done()  # there is room, and not for full batches
    flying.acknowledge(entries[1])
    await waiting
    assert flying.in_flight.window.used == 3 * (FLOOR // 4)
    flying.refuse(StorageError("the disk is gone"), *entries[2:])
    assert flying.in_flight.window.used == 0


async def test_an_entry_that_fails_is_not_measured():
    flying = Flying()
    first, second = Entry(0), Entry(1)
    flying.enter(first, second)
    window = flying.in_flight.window
    window.send(first, 0.0)
    flying.refuse(StorageError("the disk is gone"), first)
    assert window.measured is None
    window.send(second, 1e12)
    flying.acknowledge(second)
    assert window.measured is None
    assert window.size >= FLOOR
