"""`Landings`: producers that have something to answer, told once in a turn of the loop, whatever has ended in it."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Answering(Protocol):
    """A producer."""

    def answer(self) -> None:
        """Appends of it have ended: answer them, in order."""


class Landings:
    """One per broker. Loop thread only."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due: dict[Answering, None] = {}  # in order, so that a simulation repeats

    def add(self, producer: Answering) -> None:
        """Have it answer in the next turn, together with all that land until then."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._answer)
        self._due[producer] = None

    def _answer(self) -> None:
        due, self._due = self._due, {}
        producers = iter(due)
        try:
            for producer in producers:
                producer.answer()
        finally:
            for producer in producers:  # one has failed: the others are answered all the same
                self.add(producer)
