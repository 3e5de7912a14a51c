"""Which processes are started, and when: events and times in, actions out."""

from __future__ import annotations

import pytest

from engine.processes.supervision import (
    PAUSE_S_FIRST,
    PAUSE_S_MAX,
    STEADY_S,
    STOP_S_MAX,
    Action,
    State,
    Supervision,
    Verb,
    pause_after,
)

START, STOP, KILL, FAIL = Verb.START, Verb.STOP, Verb.KILL, Verb.FAIL


def serving(count: int = 2) -> Supervision:
    """All processes serve since 0."""
    found = Supervision(count)
    assert found.begin(0.0) == [Action(START, index) for index in range(count)]
    for index in range(count):
        assert not found.complete
        found.serves(index, 0.0)
    assert found.complete
    return found


def test_a_process_that_dies_is_started_at_once():
    found = serving()
    assert found.died(1, 1.0, refused=False) == [Action(START, 1)]
    assert [p.state for p in found.processes] == [State.SERVING, State.STARTING]
    assert [p.restarts for p in found.processes] == [0, 1]
    assert not found.complete


def test_a_process_that_keeps_dying_waits_longer_each_time():
    found, now, pauses = serving(1), 0.0, []
    for _ in range(9):
        actions = found.died(0, now, refused=True)
        if not actions:
            due = found.next_due
            assert due is not None
            assert not found.tick(due - 0.001)
            pauses.append(due - now)
            now = due
            actions = found.tick(now)
        assert actions == [Action(START, 0)]
    assert pauses == pytest.approx([min(PAUSE_S_FIRST * 2**n, PAUSE_S_MAX) for n in range(8)])


def test_a_process_that_has_served_for_long_is_started_at_once_again():
    found = serving(1)
    found.died(0, 1.0, refused=False)
    found.serves(0, 2.0)
    assert found.died(0, 2.0 + STEADY_S - 0.1, refused=False) == []
    found.tick(100.0)
    found.serves(0, 100.0)
    assert found.died(0, 100.0 + STEADY_S, refused=False) == [Action(START, 0)]


@pytest.mark.parametrize(("deaths", "pause"), [(0, 0.0), (1, 0.0), (2, 0.1), (3, 0.2), (8, 5.0), (10_000, 5.0)])
def test_pauses(deaths: int, pause: float):
    assert pause_after(deaths) == pytest.approx(pause)


def test_what_a_first_start_refuses_ends_the_server():
    found = Supervision(2)
    found.begin(0.0)
    found.serves(0, 0.1)
    assert found.died(1, 0.2, refused=True) == [Action(FAIL, 1)]
    assert found.stop(0.3) == [Action(STOP, 0)]
    assert found.died(0, 0.4, refused=False) == []
    assert found.over


def test_a_kill_during_the_first_start_does_not_end_the_server():
    found = Supervision(1)
    found.begin(0.0)
    assert found.died(0, 0.2, refused=False) == [Action(START, 0)]
    assert found.died(0, 0.3, refused=True) == []  # it has been started again before: a later start may succeed
    assert found.processes[0].state is State.RESTING


def test_stopping_ends_all_and_starts_none():
    found = serving(3)
    found.died(2, 0.1, refused=False)
    found.died(2, 0.2, refused=False)
    assert found.processes[2].state is State.RESTING
    assert found.stop(1.0) == [Action(STOP, 0), Action(STOP, 1)]
    assert found.processes[2].state is State.ENDED
    assert found.stop(1.5) == []
    assert found.died(0, 2.0, refused=False) == []
    assert found.next_due == 1.0 + STOP_S_MAX
    assert found.tick(1.0 + STOP_S_MAX) == [Action(KILL, 1)]
    assert found.tick(2.0 + STOP_S_MAX) == []
    assert not found.over
    assert found.died(1, 40.0, refused=False) == []
    assert found.over


def test_a_process_that_dies_while_it_stops_is_not_started():
    found = Supervision(1)
    found.begin(0.0)
    found.stop(0.1)
    assert found.died(0, 0.2, refused=True) == []
    assert found.over


def test_a_server_that_never_began_is_over():
    found = Supervision(2)
    assert found.stop(0.0) == []
    assert found.over


def test_only_moves_of_the_table():
    found = serving(1)
    with pytest.raises(ValueError, match="cannot change from serving to starting"):
        found.processes[0].move_to(State.STARTING, 1.0)
