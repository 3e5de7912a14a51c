"""Frames that arrive: counted, handed to the handler of their command, and what becomes of a handler that fails."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from engine._native.serve.arrivals import FRAMES_PER_NOTE, Arrivals, Signs
from engine._native.serve.meters import TurnFrames
from engine.errors import EngineError
from tests.reference.arrivals_reference import PlainArrivals

BUDGET = 3


class Frames(TurnFrames):
    """Notes for whom the budget was spent."""

    def __init__(self, said: list[Any]) -> None:
        super().__init__(BUDGET)
        self.said = said

    def passed(self, connection: Any) -> None:
        self.said.append("over the budget")


class Pulse(Signs):
    """Notes that something waited for a frame."""

    said: list[Any]

    def wake(self) -> None:
        self.listener = None
        self.said.append("woken")


class Ping(SimpleNamespace):
    """A header."""


class Ask(SimpleNamespace):
    """A header that has a request id, or none."""


class Connection(Arrivals):
    """Notes what the heirs of Arrivals are asked for."""

    def __init__(self) -> None:
        said: list[Any] = []
        self.said = said
        pressure = SimpleNamespace(writable=True, check_answers=lambda: said.append("answers"))
        pulse = Pulse()
        pulse.said = said
        outbound = SimpleNamespace(note=lambda _: said.append("noted"))
        super().__init__(pressure, pulse, {Ping: self._ping, Ask: self._ask}, Frames(said), outbound)

    @staticmethod
    def _ping(connection: Connection, header: Ping, payload: memoryview) -> None:
        connection.said.append(bytes(payload))

    @staticmethod
    def _ask(connection: Connection, header: Ask, payload: memoryview) -> None:
        raise header.failure

    def shake_hands(self, header: Any) -> None:
        self.said.append("hands")
        self.ready = True

    def unexpected(self, header: Any) -> None:
        self.said.append(("unexpected", type(header).__name__))

    def error(self, request_id: int, error: Any) -> None:
        self.said.append((request_id, str(error)))

    def failed(self, header: Any, error: Exception) -> None:
        self.said.append(("failed", type(header).__name__, type(error).__name__))

    def receive(self, *headers: Any) -> list[Any]:
        del self.said[:]
        for header in headers:
            self.frame_received(header, memoryview(b"payload"))
        return list(self.said)


async def test_frames_go_to_the_handshake_then_to_the_handlers_of_their_commands() -> None:
    connection = Connection()
    assert connection.receive(Ping(), Ping(), "x") == ["hands", b"payload", ("unexpected", "str")]
    assert connection.pulse.frames == 3


async def test_errors_are_answered_and_other_failures_end_the_connection() -> None:
    connection = Connection()
    connection.ready = True
    of_request, of_none = Ask(request_id=7, failure=EngineError("no")), Ask(failure=EngineError("no"))
    assert connection.receive(of_request, of_none) == [(7, "no"), (0, "no")]
    assert connection.receive(Ask(failure=KeyError("x"))) == [("failed", "Ask", "KeyError")]


async def test_each_frame_is_a_sign_of_life_and_counts_for_the_turn_and_for_what_is_unsent() -> None:
    connection = Connection()
    connection.ready = True
    connection.pulse.listener = object()
    assert connection.receive(*[Ping()] * (BUDGET + 1)) == ["woken", *[b"payload"] * 3, "over the budget", b"payload"]
    said = connection.receive(*[Ping()] * (2 * FRAMES_PER_NOTE - BUDGET - 1))
    assert said.count("noted") == 2
    connection.pressure.writable = False
    assert connection.receive(Ping())[-1] == "answers"


FRAMES = {
    "handled": lambda what: Told(what=what),
    "error": lambda what: Ask(request_id=what, failure=EngineError("no")),
    "failure": lambda what: Ask(failure=KeyError(what)),
    "unknown": lambda what: what,
}


class Told(SimpleNamespace):
    """A header that is handled."""


class Same(Connection):
    """Says what the model says."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers[Told] = lambda connection, header, payload: self.said.append(("handled", header.what))

    def unexpected(self, header: Any) -> None:
        self.said.append("unexpected")

    def error(self, request_id: int, error: Any) -> None:
        self.said.append(("error", request_id))

    def failed(self, header: Any, error: Exception) -> None:
        self.said.append(("failure", error.args[0]))


@pytest.mark.parametrize("seed", range(20))
async def test_frames_are_treated_as_by_the_plain_model(seed: int) -> None:
    rng = random.Random(seed)
    connection, plain = Same(), PlainArrivals(BUDGET, FRAMES_PER_NOTE)
    for _ in range(300):
        step = rng.random()
        if step < 0.05:
            await asyncio.sleep(0)
            plain.turn()
        elif step < 0.1:
            connection.pulse.listener = object()
            plain.listening = True
        elif step < 0.15:
            connection.pressure.writable = plain.writable = rng.random() < 0.7
        else:
            kind, what = rng.choice(list(FRAMES)), rng.randrange(1, 100)
            connection.frame_received(FRAMES[kind](what), memoryview(b""))
            plain.frame(kind, what)
        assert connection.said == plain.said
    assert {"hands", "woken", "noted", "answers", "unexpected", "over the budget"} <= {*filter(is_word, plain.said)}


def is_word(said: Any) -> bool:
    return isinstance(said, str)
