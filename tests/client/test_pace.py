"""The window of a queue consumer: the pace as tables, and the credit that it becomes, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from engine._native.consume.permits import STEP, WORK_S, Pace, Permits, worth_granting
from engine.limits import RECEIVE_QUEUE_MESSAGES

MOST = RECEIVE_QUEUE_MESSAGES


def worked(pace: Pace, message_s: float, messages: int, now: float = 0.0) -> float:
    """One after the other; the time after that."""
    pace.begin(now)
    for _ in range(messages):
        now += message_s
        pace.done(1, now)
    return now


@pytest.mark.parametrize(
    ("message_s", "window"),
    [(300.0, 1), (1.0, 1), (0.2, 1), (0.14, 1), (0.1, 2), (0.05, 4), (0.01, 20), (0.001, 200), (1e-5, 20_000),
     (1e-9, MOST)],
)  # fmt: skip
def test_the_window_is_a_fifth_of_a_second_of_work(message_s: float, window: int):
    pace = Pace(MOST)
    assert pace.window == 1
    worked(pace, message_s, 400_000 if message_s < 1e-3 else 1000)
    assert abs(pace.window - window) <= window / 20


def test_a_window_grows_and_shrinks_in_steps():
    pace, seen = Pace(MOST), [1]
    now = 0.0
    for message_s in (1e-9, 1.0):
        pace.begin(now)
        for _ in range(500_000 if message_s < 1 else 30):
            now += message_s
            pace.done(1, now)
            if pace.window != seen[-1]:
                seen.append(pace.window)
    top = seen.index(MOST)
    assert seen[: top + 1] == [STEP**i for i in range(top)] + [MOST]
    assert seen[-1] == 1
    assert all(after >= before / STEP for before, after in zip(seen[top:], seen[top + 1 :], strict=False))


def test_one_quick_message_does_not_decide():
    pace = Pace(MOST)
    now = worked(pace, 1e-6, 1)
    assert pace.window == STEP
    worked(pace, 10.0, 2, now)
    assert pace.window == 1


def test_time_without_messages_is_not_counted():
    """A message each second that takes a millisecond: the pace is a thousand in a second."""
    pace = Pace(MOST)
    for i in range(2000):
        pace.begin(float(i))
        pace.done(1, i + 0.001)
        pace.pause(i + 0.001)
    assert abs(pace.window - WORK_S / 0.001) <= 10


def test_a_batch_counts_as_its_messages():
    pace, now = Pace(MOST), 0.0
    pace.begin(now)
    for _ in range(50):
        batch = pace.window
        now += 0.002 * batch
        pace.done(batch, now)
    assert pace.window == 100


def test_a_clock_that_stands_still():
    pace = Pace(MOST)
    worked(pace, 0.0, 500_000)
    assert pace.window == MOST


# -- credit -------------------------------------------------------------------------------------------------------


class Segment:
    """An attachment, as far as Permits see it."""

    def __init__(self) -> None:
        self.granted = 0
        self.frames = 0
        self.announced_window: int | None = None

    def grant(self, messages: int, size: int) -> None:
        assert messages > 0
        assert size == 0
        self.granted += messages
        self.frames += 1


class World:
    """Permits, and segments that send as far as they have credit."""

    def __init__(self, size: int | None, segments: int = 1) -> None:
        self.now = 0.0
        self.permits: Any = Permits(size, lambda: self.now)
        self.segments = [Segment() for _ in range(segments)]
        self.held = 0
        for segment in self.segments:
            self.permits.admit(segment)

    def send(self, number: int = 0, messages: int | None = None) -> int:
        segment = self.segments[number]
        count = segment.granted if messages is None else messages
        segment.granted -= count
        self.permits.arrived(segment, count)
        self.held += count
        self.permits.change(count)
        return count

    def acknowledge(self, messages: int = 1, after_s: float = 0.0) -> None:
        self.now += after_s
        self.held -= messages
        self.permits.change(-messages, messages)


@pytest.mark.parametrize(("window", "frame"), [(1, 1), (2, 1), (3, 2), (4, 2), (31, 16), (32, 8), (100_000, 25_000)])
def test_credit_is_granted_for_a_part_of_the_window(window: int, frame: int):
    assert worth_granting(window) == frame
    world = World(window)
    assert world.send() == window
    before = world.segments[0].frames
    for i in range(frame):
        assert world.segments[0].frames == before, i
        world.acknowledge()
    assert world.segments[0].granted == frame


def test_what_is_not_acknowledged_is_never_more_than_the_window():
    world = World(10)
    for i in range(1000):
        world.send(messages=min(world.segments[0].granted, 1 + i % 3))
        assert world.held + world.segments[0].granted <= 10
        if world.held:
            world.acknowledge(1 + i % world.held)


def test_a_program_that_asks_gets_more_than_it_acknowledges():
    for size in (1, None):
        world = World(size)
        for _ in range(100):
            world.send()
            world.permits.ask()
            assert world.segments[0].granted >= 1
        assert world.held >= 100
        world.acknowledge(world.held)
        assert world.segments[0].granted >= 1


def test_a_program_with_several_tasks_keeps_a_window_of_its_pace():
    """Ten tasks of 50 ms each, which acknowledge in turn: 200 messages a second, so about 40 ahead."""
    world = World(None)
    for _ in range(3000):
        world.send()
        if world.held < 10:
            world.permits.ask()
        else:
            world.acknowledge(after_s=0.005)
    assert 30 <= world.permits.window <= 50


def test_each_segment_has_credit_for_one_message_while_the_consumer_holds_nothing():
    world = World(1, segments=50)
    assert [segment.granted for segment in world.segments] == [1] * 50
    for number in range(50):
        world.send(number)
    assert all(segment.granted == 0 for segment in world.segments)
    for left in range(50, 0, -1):
        assert all(segment.granted == 0 for segment in world.segments), left
        world.acknowledge()
    assert [segment.granted for segment in world.segments] == [1] * 50


def test_a_busy_segment_is_granted_what_idle_ones_leave():
    world = World(40, segments=4)
    for _ in range(100):
        world.send(0)
        world.acknowledge(world.held)
        assert world.segments[0].granted == 10
    assert [segment.granted for segment in world.segments[1:]] == [20, 13, 10], "parts at the time they were admitted"


def test_a_segment_that_was_left_is_granted_nothing():
    world = World(4, segments=2)
    world.permits.leave(world.segments[0])
    before = world.segments[0].granted
    world.permits.arrived(world.segments[0], 1)
    world.send(1)
    world.acknowledge(world.held)
    assert world.segments[0].granted == before
    world.permits.admit(world.segments[0])
    assert world.segments[0].granted > before


def test_more_than_was_granted_is_worked_off_first():
    """The broker may exceed a window that follows the pace."""
    world = World(4)
    world.segments[0].granted = 0
    world.permits.arrived(world.segments[0], 28)
    world.held += 28
    world.permits.change(28)
    for held in range(27, 2, -1):
        world.acknowledge()
        assert world.segments[0].granted == 0, held
    world.acknowledge()
    assert world.segments[0].granted == 26, "what makes up for the excess, and the room"


@pytest.mark.parametrize("told", [None, 4])
def test_the_broker_is_told_a_window_that_follows_the_pace(told: int | None):
    world = World(4 if told is None else None)
    world.send()
    world.acknowledge(after_s=0.05)
    assert world.segments[0].announced_window == told
