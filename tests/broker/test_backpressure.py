"""Backpressure of one connection: against three plain flags, under any order of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.broker.pools.ports import Pause
from engine.broker.session.backpressure import ANSWERS_UNSENT_MAX, Backpressure, Writing
from engine.limits import CONNECTION_WRITE_LOW


class Stream:
    """Notes whether it is read from."""

    def __init__(self) -> None:
        self.reads = True
        self.unsent_bytes = 0

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True


class Pool:
    """A queue of connections that wait for their turn; `crowded` also while others are said to wait."""

    def __init__(self) -> None:
        self.others = False
        self.waiting: dict[Any, None] = {}

    @property
    def crowded(self) -> bool:
        return self.others or bool(self.waiting)

    def note(self, connection: Any) -> None: ...

    def queue(self, connection: Any) -> None:
        connection.wait_turn()
        self.waiting.setdefault(connection)


class World:
    """A connection, and the flags that say the same: the stream is full, the pool holds it back, it waits."""

    def __init__(self) -> None:
        self.stream, self.pool, self.resumed = Stream(), Pool(), 0
        self.pressure = Backpressure(self.stream, self.pool, self._resumed)  # type: ignore[arg-type]
        self.full = self.held_back = self.waits = False

    def _resumed(self) -> None:
        self.resumed += 1

    def stream_full(self) -> None:
        if not self.full:
            self.pressure.pause_writing()
            self.full = True

    def stream_drained(self) -> None:
        if self.full:
            self.full = False
            self.waits = self.waits or self.pool.crowded
            self.pressure.resume_writing()

    def pool_full(self) -> None:
        self.pressure.hold_back()
        self.held_back = True

    def pool_relieves(self) -> None:
        if self.held_back:
            self.pressure.relieve()
            self.pool.queue(self.pressure)
            self.held_back, self.waits = False, True

    def turn_spent(self) -> None:
        self.pool.queue(self.pressure)
        self.waits = True

    def turn_comes(self) -> None:
        if self.pool.waiting:
            self.pool.waiting.clear()
            self.pressure.take_turn()
            self.waits = False

    def others_come(self) -> None:
        self.pool.others = True

    def others_go(self) -> None:
        self.pool.others = False


EVENTS: list[Callable[[World], None]] = [
    World.stream_full,
    World.stream_drained,
    World.pool_full,
    World.pool_relieves,
    World.turn_spent,
    World.turn_comes,
    World.others_come,
    World.others_go,
]


@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_it_is_writable_when_no_flag_is_set(events: list[Callable[[World], None]]) -> None:
    world = World()
    pressure = world.pressure
    for event in events:
        before, resumed = pressure.writable, world.resumed
        event(world)
        assert pressure.writable is not (world.full or world.held_back or world.waits)
        assert pressure.writable is (pressure.writing is Writing.OPEN)
        assert pressure.held_back is world.held_back
        assert world.resumed - resumed == (pressure.writable and not before)
        assert pressure.writing is not Writing.QUEUED or pressure in world.pool.waiting
    for last in (World.stream_drained, World.pool_relieves, World.turn_comes):
        last(world)
    assert pressure.writable, "nothing is in its way any more"


@given(st.lists(st.sampled_from(EVENTS), max_size=20))
def test_nothing_opens_a_closed_connection(events: list[Callable[[World], None]]) -> None:
    world = World()
    world.pressure.close()
    for event in events:
        event(world)
        assert world.pressure.writing is Writing.CLOSED
        assert not world.pressure.writable
    assert world.resumed == 0
    assert world.pressure.takes_answers


def test_frames_are_read_when_every_reason_is_released() -> None:
    world = World()
    pressure = world.pressure
    assert [pressure.hold(reason) for reason in (Pause.PUBLISHING, Pause.REQUESTS, Pause.REQUESTS)] == [
        True,
        True,
        False,
    ]
    assert pressure.held
    pressure.release(Pause.PUBLISHING)
    pressure.release(Pause.PUBLISHING)
    assert not world.stream.reads
    pressure.release(Pause.REQUESTS)
    assert world.stream.reads
    assert not pressure.held


@pytest.mark.parametrize(
    ("full", "held_back", "unsent", "read", "answered"),
    [
        (False, False, 0, True, True),
        (True, False, ANSWERS_UNSENT_MAX // 2, True, True),
        (True, False, ANSWERS_UNSENT_MAX // 2 + 1, True, False),
        (True, False, ANSWERS_UNSENT_MAX + 1, False, False),
        (False, True, CONNECTION_WRITE_LOW, False, True),
        (False, True, CONNECTION_WRITE_LOW + 1, False, False),
    ],
)
def test_a_peer_that_does_not_read_answers_is_asked_for_no_more(
    full: bool, held_back: bool, unsent: int, read: bool, answered: bool
) -> None:
    world = World()
    world.stream.unsent_bytes = unsent
    if full:
        world.stream_full()
    if held_back:
        world.pool_full()
    world.pressure.check_answers()
    assert (world.stream.reads, world.pressure.takes_answers) == (read, answered)
    world.stream.unsent_bytes = 0
    world.stream_drained()
    world.pool_relieves()
    world.turn_comes()
    assert world.stream.reads
