"""What one lane of a producer has to send, in order, and what it has sent and not seen answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from engine._native.produce.batcher import SealedEntry
from engine.client.produce.in_flight import Ledger
from engine.errors import TimeoutError
from engine.limits import MIB

SEND_FRAME_BYTES = 1 * MIB
ATTEMPTS_MAX = 10  # of one entry against a stale layout


class LedgerHolder(Protocol):
    """The producer. Its ledger is there before anything is sent."""

    ledger: Ledger


class Backlog:
    """Loop thread only. In order: `in_flight`, `ahead`, `queue`; nothing is in flight while something is ahead."""

    __slots__ = ("_holder", "ahead", "in_flight", "queue")

    def __init__(self, holder: LedgerHolder) -> None:
        self.queue: deque[SealedEntry] = deque()
        self.in_flight: deque[SealedEntry] = deque()
        self.ahead: list[SealedEntry] = []  # left by sealed segments
        self._holder = holder

    def __bool__(self) -> bool:
        """Whether something has to be sent."""
        return bool(self.queue or self.ahead)

    def next_frame(self) -> list[SealedEntry]:
        """The head of the queue, at most a frame full and of one transaction, without what has run out of time."""
        queue, ledger = self.queue, self._holder.ledger
        entries: list[SealedEntry] = []
        size = 0
        while queue and (not entries or size + len(queue[0].data) <= SEND_FRAME_BYTES):
            if entries and queue[0].scope is not entries[0].scope:
                break
            entry = queue.popleft()
            if entry in ledger:
                entries.append(entry)
                size += len(entry.data)
        return entries

    def requeue(self) -> None:
        """Put what is in flight back to the head of the queue."""
        if self.in_flight:
            self.put_back(self.in_flight)
            self.in_flight.clear()

    def put_back(self, entries: Sequence[SealedEntry]) -> None:
        """To the head of the queue: they went out, and go out again, but for what is known to be stored."""
        ledger = self._holder.ledger
        stored = [entry for entry in entries if entry.scope is not None and entry.scope.stored]
        if stored:
            ledger.acknowledge(stored, [-1] * len(stored))
            entries = [entry for entry in entries if entry.scope is None or not entry.scope.stored]
        self.queue.extendleft(reversed(entries))
        ledger.entries_resent += len(entries)
        for entry in entries:
            if entry.scope is not None:
                entry.scope.scattered()

    def join(self) -> None:
        """Nothing more comes ahead: what did is now the head of the queue."""
        self.queue.extendleft(reversed(self.ahead))
        self.ahead.clear()

    def take_unsent(self) -> list[SealedEntry]:
        """All that has to be sent, in order; it is not here any more."""
        entries = [*self.ahead, *self.queue]
        self.ahead.clear()
        self.queue.clear()
        return entries

    def take(self) -> list[SealedEntry]:
        """All of it, in order; nothing is here any more."""
        entries = [*self.in_flight, *self.take_unsent()]
        self.in_flight.clear()
        return entries

    def count_attempt(self, segment: str) -> None:
        """The segment refused it all as one that is sealed or elsewhere; fail what was refused too often."""
        worn = []
        for entry in (*self.ahead, *self.queue):
            entry.attempts += 1
            if entry.attempts >= ATTEMPTS_MAX:
                worn.append(entry)
        if worn:
            self.ahead = [e for e in self.ahead if e.attempts < ATTEMPTS_MAX]
            self.queue = deque(e for e in self.queue if e.attempts < ATTEMPTS_MAX)
            text = f"{segment}: not written in {ATTEMPTS_MAX} attempts, the topic's layout kept changing"
            self._holder.ledger.fail(worn, TimeoutError(text))

    def drop_expired(self) -> None:
        """Forget what has run out of time."""
        ledger = self._holder.ledger
        self.ahead = [e for e in self.ahead if e in ledger]
        self.queue = deque(e for e in self.queue if e in ledger)

    def is_answered(self) -> bool:
        """Whether no answer is awaited any more, by anybody."""
        return not any(entry in self._holder.ledger for entry in self.in_flight)
