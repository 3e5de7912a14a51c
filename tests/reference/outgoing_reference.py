"""What a producer sends into one segment, and when, as plainly as it can be said: the model of `outgoing.pyx`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

FRAME_BYTES = 1024 * 1024


class PlainEntry(NamedTuple):
    """`scope`: the transaction, 0 for none."""

    sequence: int
    size: int
    pending: int
    scope: int


@dataclass
class PlainOutgoing:
    """`frames`: the sequences of each frame. `lost`: entries that have run out of time. `credit`: messages, or None."""

    window: int
    joint: bool
    writable: bool = True
    credit: int | None = None
    queue: list[PlainEntry] = field(default_factory=list)
    sent: list[PlainEntry] = field(default_factory=list)
    frames: list[list[int]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    burst: int = 0  # bytes sent since nothing was unanswered,
    answered: int = 0  # and what was answered of that

    def transmit(self) -> None:
        if self.queue and not self.sent:
            self.burst = self.answered = 0
        while self.queue and self.writable and (self.credit is None or self.credit > 0):
            if self.sent and self.burst - self.answered > self.window:
                break
            frame = self._frame()
            if frame:
                self.frames.append([entry.sequence for entry in frame])
                self.sent += frame
                self.burst += sum(entry.pending for entry in frame)

    def _frame(self) -> list[PlainEntry]:
        frame: list[PlainEntry] = []
        while self.queue:
            entry = self.queue[0]
            if frame and sum(one.size for one in frame) + entry.size > FRAME_BYTES:
                break
            if frame and entry.scope != frame[0].scope and not (self.joint and entry.scope and frame[0].scope):
                break
            del self.queue[0]
            if entry.sequence not in self.lost:
                frame.append(entry)
                if self.credit is not None:
                    self.credit -= 1
                    if self.credit <= 0:
                        break
        return frame

    def receive(self, sequences: list[int]) -> tuple[list[int], int | None]:
        """(what is stored, the sequence of a receipt that came out of step)."""
        stored: list[int] = []
        wrong = None
        for sequence in sequences:
            if not self.sent or self.sent[0].sequence != sequence:
                wrong = sequence
                break
            entry = self.sent.pop(0)
            self.answered += entry.pending
            stored.append(sequence)
        self.transmit()
        return stored, wrong
