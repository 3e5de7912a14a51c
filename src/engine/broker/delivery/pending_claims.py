"""What one transaction has acknowledged of a subscription in a segment, and its operation records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine._native.format.offsets import range_set, runs
from engine.model.transactions import operation_counts

if TYPE_CHECKING:
    from engine.control.transactions.headers import TransactionView

RUNS_PER_RECORD = 10_000  # of messages; what is acknowledged at once in more of them takes several records


class PendingAck:
    """One operation record, or one that is on its way: then it has no key yet."""

    __slots__ = ("attempt", "key", "offsets", "version")

    def __init__(self, offsets: BitMap64, attempt: int, key: str | None = None, version: int = 0) -> None:
        self.offsets = offsets
        self.attempt = attempt
        self.key = key
        self.version = version


class Claims:
    """What one transaction has acknowledged here, from its first request on until it has ended and that is applied."""

    __slots__ = ("acks", "applied", "ended", "offsets", "requests", "view", "writing", "written")

    def __init__(self) -> None:
        self.acks: list[PendingAck] = []
        self.offsets = BitMap64()  # of all of them
        self.requests = 0  # that are under way
        self.writing = 0  # of them, those that wait for their records
        self.written = asyncio.Event()  # set while there are none of these
        self.written.set()
        self.ended = False
        self.view: TransactionView | None = None  # once it has ended; None even so: its header is gone
        self.applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, acks: Iterable[PendingAck]) -> None:
        """More of them."""
        for ack in acks:
            self.acks.append(ack)
            self.offsets |= ack.offsets

    def remove(self, acks: Sequence[PendingAck]) -> None:
        """These came to nothing."""
        self.acks = [ack for ack in self.acks if ack not in acks]
        self.offsets = union(self.acks)

    def begin_writing(self) -> None:
        """A record is on its way; nothing is applied until end_writing()."""
        self.writing += 1
        self.written.clear()

    def end_writing(self) -> None:
        """It is there, or it failed."""
        self.writing -= 1
        if not self.writing:
            self.written.set()

    def leave(self) -> None:
        """They are applied, or forgotten."""
        if not self.applied.done():
            self.applied.set_result(None)


def union(acks: Iterable[PendingAck]) -> BitMap64:
    """All their messages."""
    return BitMap64().union(*(ack.offsets for ack in acks))


def counts(ack: PendingAck, view: TransactionView | None) -> bool:
    """Whether it takes effect, as the transaction has ended."""
    return view is not None and operation_counts(view.header, view.version, ack.attempt, ack.version)


def parted(offsets: BitMap64, attempt: int) -> list[PendingAck]:
    """What one record each can say of them."""
    found = runs(offsets)
    if len(found) <= RUNS_PER_RECORD:
        return [PendingAck(offsets, attempt)]
    parts = []
    for at in range(0, len(found), RUNS_PER_RECORD):
        last = found[min(at + RUNS_PER_RECORD, len(found)) - 1][1]
        parts.append(PendingAck(offsets & range_set(found[at][0], last), attempt))
    return parts
