"""A producer's appends and the receipts for them, as plainly as it can be said: the model of `flights.pyx`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

Place = tuple[int, int, int]  # first sequence, first offset, messages


@dataclass
class PlainAppend:
    """`end`: the places of its entries, "failed", "dropped", or None while it is under way."""

    number: int
    size: int
    end: list[Place] | str | None = None


@dataclass
class PlainSender:
    """`told`: receipts, as ("receipt", sequences, offsets), and ("failed" or "dropped", number), in their order.

    `in_flight`: bytes that are neither durable nor refused. `stored`: (messages, bytes). `ended`: it was to end when
    all was answered.
    """

    waiting: deque[PlainAppend] = field(default_factory=deque)
    told: list[Any] = field(default_factory=list)
    in_flight: int = 0
    stored: tuple[int, int] = (0, 0)
    ending: bool = False
    ended: bool = False

    def send(self, number: int, size: int) -> None:
        self.waiting.append(PlainAppend(number, size))
        self.in_flight += size

    def end(self, number: int, how: list[Place] | str) -> None:
        """An append ends, before or after those that were sent earlier. It ends once."""
        for append in self.waiting:
            if append.number == number and append.end is None:
                append.end = how

    def answer(self) -> None:
        """Answer from the head, in the order of sending: one receipt for what became durable together."""
        durable: list[Place] = []
        while self.waiting and self.waiting[0].end is not None:
            append = self.waiting.popleft()
            self.in_flight -= append.size
            if isinstance(append.end, list):
                durable += append.end
                messages = sum(count for _, _, count in append.end)
                self.stored = self.stored[0] + messages, self.stored[1] + append.size
            else:
                self._receipt(durable)
                durable = []
                self.told.append((append.end, append.number))
        self._receipt(durable)
        if self.ending and not self.waiting:
            self.ended = True

    def _receipt(self, durable: list[Place]) -> None:
        if durable and not self.ended:
            self.told.append(("receipt", [first for first, _, _ in durable], [offset for _, offset, _ in durable]))
