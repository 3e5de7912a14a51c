"""`Claims`: acknowledgements of one transaction in a subscription of a segment, and their operation records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine._native.format.offsets import range_set, runs
from engine.model.transactions import operation_counts

if TYPE_CHECKING:
    from engine.control.transactions.headers import TransactionView

RUNS_PER_RECORD = 10_000  # of offsets, in one operation record


class PendingAck:
    """One operation record. It has no key while it is being written."""

    __slots__ = ("attempt", "key", "offsets", "version")

    def __init__(self, offsets: BitMap64, attempt: int, key: str | None = None, version: int = 0) -> None:
        self.offsets = offsets
        self.attempt = attempt
        self.key = key
        self.version = version


class Claims:
    """Acknowledgements of one transaction, from its first request until its end is applied."""

    __slots__ = ("acks", "applied", "ended", "offsets", "requests", "view", "writing", "written")

    def __init__(self) -> None:
        self.acks: list[PendingAck] = []
        self.offsets = BitMap64()  # of all of them
        self.requests = 0  # in flight
        self.writing = 0  # of them, those whose records are being written
        self.written = asyncio.Event()  # set while there are none
        self.written.set()
        self.ended = False
        self.view: TransactionView | None = None  # once it has ended; None then: its header is gone
        self.applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, acks: Iterable[PendingAck]) -> None:
        for ack in acks:
            self.acks.append(ack)
            self.offsets |= ack.offsets

    def remove(self, acks: Sequence[PendingAck]) -> None:
        """Remove acknowledgements that have failed."""
        self.acks = [ack for ack in self.acks if ack not in acks]
        self.offsets = union(self.acks)

    def begin_writing(self) -> None:
        """A record is being written; nothing is applied until end_writing()."""
        self.writing += 1
        self.written.clear()

    def end_writing(self) -> None:
        """The record is written, or the write has failed."""
        self.writing -= 1
        if not self.writing:
            self.written.set()

    def leave(self) -> None:
        """They are applied, or dropped."""
        if not self.applied.done():
            self.applied.set_result(None)


def union(acks: Iterable[PendingAck]) -> BitMap64:
    """All their offsets."""
    return BitMap64().union(*(ack.offsets for ack in acks))


def counts(ack: PendingAck, view: TransactionView | None) -> bool:
    """Whether it takes effect, given how its transaction has ended."""
    return view is not None and operation_counts(view.header, view.version, ack.attempt, ack.version)


def parted(offsets: BitMap64, attempt: int) -> list[PendingAck]:
    """The offsets in parts of at most RUNS_PER_RECORD runs."""
    found = runs(offsets)
    if len(found) <= RUNS_PER_RECORD:
        return [PendingAck(offsets, attempt)]
    parts = []
    for at in range(0, len(found), RUNS_PER_RECORD):
        last = found[min(at + RUNS_PER_RECORD, len(found)) - 1][1]
        parts.append(PendingAck(offsets & range_set(found[at][0], last), attempt))
    return parts
