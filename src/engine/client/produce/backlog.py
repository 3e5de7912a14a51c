"""What one sender of a producer has to send, in order, and what it has sent and not seen answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from engine._native.produce.outgoing import Queued
from engine._native.produce.sealed import SealedEntry
from engine.checks import check
from engine.client.produce.in_flight import InFlight
from engine.errors import TimeoutError

ATTEMPTS_MAX = 10  # of one entry against a stale layout


class InFlightHolder(Protocol):
    """The producer, which has `in_flight` before anything is sent."""

    in_flight: InFlight


class Credit:
    """What a broker lets a producer send for now; None: any number."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages: int | None = 0
        self.bytes: int | None = 0

    def grant(self, messages: int | None, size: int | None) -> None:
        """So much more."""
        self.messages = None if messages is None else (self.messages or 0) + messages
        self.bytes = None if size is None else (self.bytes or 0) + size

    @property
    def unlimited(self) -> bool:
        """Whether there is no limit any more."""
        return self.messages is None and self.bytes is None

    @property
    def left(self) -> bool:
        """Whether one more entry may be sent."""
        return (self.messages is None or self.messages > 0) and (self.bytes is None or self.bytes > 0)

    def take(self, messages: int, size: int) -> bool:
        """An entry is sent; whether one more may be."""
        if self.messages is not None:
            self.messages -= messages
        if self.bytes is not None:
            self.bytes -= size
        return self.left


class Backlog(Queued):
    """Loop thread only. In order: `sent` (not answered), `ahead` (left by the senders of sealed segments), `queue`.

    Invariant: nothing is in `sent` while something is in `ahead`, since a held sender sends nothing. Checked by
    join().
    """

    __slots__ = ("_holder", "ahead")

    def __init__(self, holder: InFlightHolder) -> None:
        super().__init__()
        self.ahead: list[SealedEntry] = []
        self._holder = holder

    def __bool__(self) -> bool:
        """Whether something has to be sent."""
        return bool(self.queue or self.ahead)

    def requeue(self) -> None:
        """Put what was sent back to the head of the queue."""
        if self.sent:
            self.put_back(self.sent)
            self.sent.clear()

    def put_back(self, entries: Sequence[SealedEntry]) -> None:
        """To the head of the queue, to be sent again, except for what is known to be stored."""
        in_flight = self._holder.in_flight
        stored = [entry for entry in entries if entry.scope is not None and entry.scope.stored]
        if stored:
            in_flight.acknowledge(stored, [-1] * len(stored))
            entries = [entry for entry in entries if entry.scope is None or not entry.scope.stored]
        self.queue.extendleft(reversed(entries))
        in_flight.entries_resent += len(entries)
        for entry in entries:
            if entry.scope is not None:
                entry.scope.scattered()

    def join(self) -> None:
        """Nothing more comes ahead: what did is now the head of the queue."""
        check(not (self.ahead and self.sent), "nothing is in `sent` while something is in `ahead`")
        self.queue.extendleft(reversed(self.ahead))
        self.ahead.clear()

    def take_unsent(self) -> list[SealedEntry]:
        """Remove and return all that has to be sent, in order."""
        entries = [*self.ahead, *self.queue]
        self.ahead.clear()
        self.queue.clear()
        return entries

    def take(self) -> list[SealedEntry]:
        """Remove and return everything, in order."""
        entries = [*self.sent, *self.take_unsent()]
        self.sent.clear()
        return entries

    def count_attempt(self, segment: str) -> None:
        """The segment refused all of it as sealed or moved; fail what was refused too often."""
        worn = []
        for entry in (*self.ahead, *self.queue):
            entry.attempts += 1
            if entry.attempts >= ATTEMPTS_MAX:
                worn.append(entry)
        if worn:
            self.ahead = [e for e in self.ahead if e.attempts < ATTEMPTS_MAX]
            self.queue = deque(e for e in self.queue if e.attempts < ATTEMPTS_MAX)
            text = f"{segment}: not written in {ATTEMPTS_MAX} attempts, the topic's layout kept changing"
            self._holder.in_flight.fail(worn, TimeoutError(text))

    def drop_expired(self) -> None:
        """Drop what has run out of time."""
        in_flight = self._holder.in_flight
        self.ahead = [e for e in self.ahead if e in in_flight]
        self.queue = deque(e for e in self.queue if e in in_flight)

    def is_answered(self) -> bool:
        """Whether every entry sent was answered or has run out of time."""
        return not any(entry in self._holder.in_flight for entry in self.sent)
