"""Flights: what is durable is taken off the head, and nothing behind what is not."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from engine._native.serve.flights import Flight, answered
from engine.errors import EngineError


def test_a_dropped_flight_is_over_told_once_and_never_answered() -> None:
    told: list[Any] = []
    flight = Flight("producer", memoryview(b"entries"), 0.5, told.append)
    assert not flight.done()
    assert not flight.cancelled()
    assert flight.cancel()
    assert not flight.cancel()
    assert (flight.done(), flight.cancelled(), told) == (True, True, ["producer"])
    with pytest.raises(EngineError, match="once"):
        flight.set_result([])
    assert told == ["producer"]


def test_what_is_behind_a_dropped_flight_waits_for_its_owner_to_take_it_off() -> None:
    flights = [Flight(None, memoryview(b"12345"), since, lambda _: None) for since in (1.0, 2.0, 3.0)]
    flights[0].set_result([])
    flights[1].cancel()
    flights[2].set_result([])
    waiting, since = deque[Any](flights), list[float]()
    assert answered(waiting, [], [], since) == (0, 5)
    assert (list(waiting), since) == (flights[1:], [1.0])
    waiting.popleft()
    assert answered(waiting, [], [], since) == (0, 5)
    assert (list(waiting), since) == ([], [1.0, 3.0])


def test_a_flight_that_has_landed_cannot_be_dropped() -> None:
    flight = Flight(None, memoryview(b""), 0.0, lambda _: None)
    flight.set_exception(EngineError("no"))
    assert not flight.cancel()
    assert not flight.cancelled()
