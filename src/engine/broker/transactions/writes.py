"""Undecided writes of transactions to one segment, and how they are found again in log and records after a crash."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from engine._native.format import heads
from engine._native.serve.blocks import Block
from engine._native.serve.transacted import Transacted, transacted
from engine._native.serve.undecided import PendingWrite as Pending
from engine._native.serve.undecided import Span, record_of
from engine.control.transactions.operations import (
    INDEX_WRITES,
    NOTHING,
    Part,
    RecordedOperation,
    Recording,
    recording_of,
)
from engine.model.names import SegmentName
from engine.model.transactions import OperationKind, TransactionOperation

if TYPE_CHECKING:
    from engine._native.serve.groups import Appended
    from engine.storage.segment import Segment


def span_of(payload: memoryview) -> Span:
    """The span of whole entries of one producer, at least one, whose headers were checked."""
    return Span(*heads.span_of(payload))


class PendingWrite(Pending):
    """Messages of one transaction from their append to the decision."""

    __slots__ = ()

    async def until_recorded(self) -> None:
        """Wait until it is recorded."""
        if not self.recorded:
            if self.until is None:
                self.until = asyncio.get_running_loop().create_future()
            await asyncio.wait([self.until])

    def operation(self, segment: SegmentName) -> TransactionOperation:
        """Its operation record."""
        write, span = self.write, self.span
        ranges, sequences = ((write.first, write.last),), (span.low, span.high)
        return TransactionOperation(
            OperationKind.WRITE, segment, ranges, None, None, self.attempt, self.term, span.producer, sequences
        )

    def holds(self, place: Appended, span: Span) -> bool:
        """Whether it is the original of a duplicate at `place`, which has the sequence ids of `span`."""
        if place.first_offset >= 0:
            return self.write.first <= place.first_offset <= self.write.last
        return self.span.covers(span)

    def is_recorded_by(self, operation: RecordedOperation) -> bool:
        """Whether the record is one of this write."""
        facts = operation.facts
        same = (operation.number, facts.attempt, facts.term) == (self.number, self.attempt, self.term)
        return same and any(first <= self.write.first and self.write.last <= last for first, last in facts.ranges)


def recording_of_writes(appends: list[Any]) -> Recording:
    """The record of the writes of these TransactionalAppends, of one transaction."""
    if not appends:
        return NOTHING
    value = record_of(appends)
    if value is None:
        return recording_of([append.operation() for append in appends])
    segments = [append.buffer.segment for append in appends]
    return Recording(value, {INDEX_WRITES: tuple(segments) if len(segments) > 1 else segments[0]})


def parts_of(appends: list[Any], key: str) -> list[Part]:
    """Of the record with that key, one for each of these TransactionalAppends."""
    count = len(appends)
    return [Part(key, count, append.buffer.segment, append.write.write.first) for append in appends]


def span_recorded(facts: TransactionOperation) -> Span | None:
    """The sequence ids of an operation, if it has them."""
    return None if facts.sequences is None else Span(facts.producer, *facts.sequences)


async def transacted_from(segment: Segment, offset: int) -> list[Transacted]:
    """The transactional entries of a segment from an offset on, in order. Reads headers only."""
    found: list[Transacted] = []
    while (read := segment.read(offset)) is not None:
        block = read if isinstance(read, Block) else await read
        for part in block.parts:
            found += [entry for entry in transacted(part) if entry.last >= offset]
        offset = block.next_offset
        await asyncio.sleep(0)  # let other work run: there may be many blocks
    return found


class RecordsByEntry:
    """The operation records of each entry: those of its transaction, attempt and term, and of a range that has it."""

    def __init__(self, entries: Iterable[Transacted]) -> None:
        """`entries`: in the order of their offsets."""
        self._entries: dict[tuple[int, int, int], list[Transacted]] = {}
        for entry in entries:
            self._entries.setdefault((entry.number, entry.attempt, entry.term), []).append(entry)
        self._records: dict[int, list[RecordedOperation]] = {}  # by the entry's first offset

    def add(self, record: RecordedOperation) -> bool:
        """Add a record; whether it is of any of the entries."""
        operation = record.facts
        entries = self._entries.get((record.number, operation.attempt, operation.term), [])
        stands = False
        for first, last in operation.ranges:
            at = bisect_left(entries, first, key=lambda entry: entry.first)
            while at < len(entries) and entries[at].last <= last:
                self._records.setdefault(entries[at].first, []).append(record)
                stands, at = True, at + 1
        return stands

    def of(self, entry: Transacted) -> list[RecordedOperation]:
        """The records of one entry."""
        return self._records.get(entry.first, [])
