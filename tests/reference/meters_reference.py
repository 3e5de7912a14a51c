"""Counters and the pieces in memory as plain Python: what they say follows from everything that ever happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def sums(bounds: tuple[float, ...], values: list[float]) -> tuple[int, ...]:
    """For each bound, the values at or below it, and all values."""
    return (*(sum(value <= bound for value in values) for bound in bounds), len(values))


def marks(counted: list[tuple[float, int, int]], slot_s: float, most: int) -> list[tuple[int, int, int]]:
    """(slot, messages, bytes before it) of the last slots of time in which something was counted."""
    found: list[tuple[int, int, int]] = []
    messages = size = 0
    for at, more, larger in counted:
        slot = int(at / slot_s)
        if not found or found[-1][0] != slot:
            found.append((slot, messages, size))
        messages, size = messages + more, size + larger
    return found[-most:]


@dataclass
class PlainCache:
    """The pieces of all tails, each with the number of its tail and its memory, in the order in which they came."""

    limit: int
    pieces: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Each memory counts once."""
        return sum(len(memory) for memory in {id(memory): memory for _, memory in self.pieces}.values())

    def push(self, tail: int, memory: Any) -> None:
        """Keep a piece; the oldest go where there is too much."""
        self.pieces.append((tail, memory))
        self.shrink()

    def shrink(self) -> None:
        """Forget the oldest until the limit is kept."""
        while self.size > self.limit:
            del self.pieces[0]

    def clear(self, tail: int) -> None:
        """Forget those of a tail."""
        self.pieces = [piece for piece in self.pieces if piece[0] != tail]
