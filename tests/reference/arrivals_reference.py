"""What a broker does with the frames of a connection, as plainly as it can be said: the model of `arrivals.pyx`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class PlainArrivals:
    """`said`: what was done, in its order. `budget`: frames of a turn; `per_note`: frames between two counts of what is
    unsent.

    A frame is (kind, what): kinds are "handled", "error" (an EngineError, of the request with that id), "failure" (any
    other exception) and "unknown" (no handler).
    """

    budget: int
    per_note: int
    ready: bool = False
    listening: bool = False
    writable: bool = True
    frames: int = 0
    of_turn: int = 0
    said: list[Any] = field(default_factory=list)

    def frame(self, kind: str, what: int) -> None:
        self.frames += 1
        self.of_turn += 1
        if self.of_turn > self.budget:
            self.said.append("over the budget")
        if self.listening:
            self.listening = False
            self.said.append("woken")
        if not self.ready:
            self.ready = True
            self.said.append("hands")
            return
        if kind == "unknown":
            self.said.append("unexpected")
            return
        self.said.append((kind, what))
        if self.frames % self.per_note == 0:
            self.said.append("noted")
        if not self.writable:
            self.said.append("answers")

    def turn(self) -> None:
        """The next turn of the loop."""
        self.of_turn = 0
