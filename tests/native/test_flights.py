"""Flights: what is durable is taken off the head, and nothing behind what is not."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from engine._native.serve.flights import Flight, Sender, answered
from engine._native.serve.groups import Appended
from engine._native.serve.meters import Buckets, Tally, Usage
from engine.errors import EngineError
from tests.reference.flights_reference import Place, PlainSender


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


class Heir(Sender):
    """Says what the model says. `appends`: by their number, which is the size of their payload."""

    def __init__(self) -> None:
        self.usage = Usage(1 << 30)
        self.tally = Tally(lambda: 0.0)
        latency = SimpleNamespace(publish_to_durable_s=Buckets((1.0,)), now=lambda: 0.0)
        environment: Any = SimpleNamespace(
            latency=latency, publish=self.usage, landings=SimpleNamespace(add=lambda sender: None)
        )
        segment = SimpleNamespace(append_for=self._append)
        hosted = SimpleNamespace(
            environment=environment, incoming=self.tally, segment=segment, term=1, encrypted_only=False
        )
        super().__init__(SimpleNamespace(pressure=None), 1, hosted, b"p")
        self.appends: list[Flight] = []
        self.told: list[Any] = []
        self.ended = False

    def _append(self, flight: Flight, payload: Any, name: bytes, term: int) -> None:
        self.appends.append(flight)

    def answer_head(self, head: Any, since: list[float]) -> bool:
        self.send_receipts()
        self.in_flight.popleft()
        self.usage.free(len(head.payload))
        self.told.append(("dropped" if head.cancelled() else "failed", self.appends.index(head)))
        return True

    def send_receipt(self, sequences: list[int], offsets: list[int]) -> None:
        self.told.append(("receipt", sequences, offsets))

    def close(self, error: Any = None) -> None:
        self.ended = self.closed = True


def end(flight: Flight, how: list[Place] | str) -> None:
    if isinstance(how, list):
        flight.set_result([Appended(first, first + count - 1, at, count, False) for first, at, count in how])
    elif how == "failed":
        flight.set_exception(EngineError("no"))
    else:
        flight.cancel()


@pytest.mark.parametrize("seed", range(20))
def test_a_producer_answers_its_appends_as_the_plain_model(seed: int) -> None:
    rng = random.Random(seed)
    sender, plain, under_way, offset = Heir(), PlainSender(), list[int](), 0
    for step in range(400):
        kind = rng.random()
        if kind < 0.4:
            number, size = len(sender.appends), rng.randrange(1, 1000)
            sender.send(memoryview(bytes(size)))
            plain.send(number, size)
            under_way.append(number)
        elif kind < 0.8 and under_way:
            number = under_way.pop(rng.randrange(min(3, len(under_way))))
            how: list[Place] | str = rng.choice(["failed", "dropped"])
            if rng.random() < 0.8:
                counts = [rng.randrange(1, 9) for _ in range(rng.randrange(1, 4))]
                how = [(offset + i * 10, offset + i * 10, count) for i, count in enumerate(counts)]
                offset += 100
            end(sender.appends[number], how)
            plain.end(number, how)
        else:
            sender.answer()
            plain.answer()
        if step == 300:
            sender.ending, plain.ending = EngineError("over"), True
        stored = sender.tally.messages, sender.tally.bytes
        assert (sender.told, sender.usage.in_flight, stored, sender.ended) == (
            plain.told, plain.in_flight, plain.stored, plain.ended
        )  # fmt: skip
    assert {one[0] for one in plain.told} == {"receipt", "failed", "dropped"}
    assert max(len(one[1]) for one in plain.told if one[0] == "receipt") > 3
