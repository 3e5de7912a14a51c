"""The writes of transactions to one segment that are undecided, and what a crash left of them in log and records."""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from engine._native.serve.transacted import Transacted, transacted
from engine.control.transactions.headers import TransactionView
from engine.control.transactions.operations import Part, RecordedOperation
from engine.model.names import SegmentName
from engine.model.transactions import OperationKind, TransactionOperation, operation_counts
from engine.storage.commit.groups import Appended
from engine.storage.cursor.visibility import Write
from engine.storage.file.logfile import Block
from engine.storage.segment import Segment

# Where the broker looks into an entry's header (_native/format/layout.pxd): size; producer, first and last sequence.
_SIZE = struct.Struct("<I")
_SEQUENCES = struct.Struct("<QQQ")
_AT_SIZE, _AT_PRODUCER = 4, 40


class Span(NamedTuple):
    """Of one producer, the sequence ids `low` to `high`, inclusive. All of a frame's lie in one; no two transactions'
    frames share one, since a producer ends what it has begun before it goes on in another transaction.
    """

    producer: int
    low: int
    high: int

    def covers(self, other: Span) -> bool:
        """Whether the other one lies inside."""
        return self.producer == other.producer and self.low <= other.low and other.high <= self.high


def span_of(payload: memoryview) -> Span:
    """Of whole entries of one producer, whose headers are good."""
    producer, low, high = _SEQUENCES.unpack_from(payload, _AT_PRODUCER)
    at = _SIZE.unpack_from(payload, _AT_SIZE)[0]
    while at < len(payload):
        _, first, last = _SEQUENCES.unpack_from(payload, at + _AT_PRODUCER)
        low, high = min(low, first), max(high, last)
        at += _SIZE.unpack_from(payload, at + _AT_SIZE)[0]
    return Span(producer, low, high)


class PendingWrite:
    """Messages of one transaction from their append to the decision.

    `durable`: they are in the log for good. `version`: of the operation record, None while there is none; once it is
    `recorded`, that is final. Only what is both can be decided.
    """

    __slots__ = ("_found", "attempt", "durable", "number", "parts", "recorded", "span", "term", "version", "write")

    def __init__(self, number: int, attempt: int, write: Write, term: int, span: Span) -> None:
        self.number = number
        self.attempt = attempt
        self.write = write
        self.term = term
        self.span = span
        self.durable = False
        self.parts: list[Part] = []  # of operation records; more than one where a store was unsure
        self.version: int | None = None
        self.recorded = False
        self._found: asyncio.Future[None] | None = None  # of those who wait for that

    @property
    def ready(self) -> bool:
        """Whether it can be decided."""
        return self.durable and self.recorded

    def add_record(self, record: RecordedOperation) -> None:
        """It stands for this write; the earliest one counts."""
        part = record.part
        if part not in self.parts:
            self.parts.append(part)
        self.version = record.version if self.version is None else min(self.version, record.version)

    def found(self) -> None:
        """All there is of operation records was added."""
        self.recorded = True
        if self._found is not None and not self._found.done():
            self._found.set_result(None)

    async def until_recorded(self) -> None:
        """Done when it is."""
        if not self.recorded:
            if self._found is None:
                self._found = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._found])

    def counts(self, view: TransactionView | None) -> bool:
        """Whether readers see it, once the transaction has ended so. None: nobody knows the transaction any more."""
        if view is None or self.version is None:
            return False
        return operation_counts(view.header, view.version, self.attempt, self.version)

    def operation(self, segment: SegmentName) -> TransactionOperation:
        """What its operation record says."""
        write, (producer, low, high) = self.write, self.span
        ranges, sequences = ((write.first, write.last),), (low, high)
        return TransactionOperation(
            OperationKind.WRITE, segment, ranges, None, None, self.attempt, self.term, producer, sequences
        )

    def holds(self, place: Appended, span: Span) -> bool:
        """Whether it is the original of a duplicate; `span`: of that one."""
        if place.first_offset >= 0:
            return self.write.first <= place.first_offset <= self.write.last
        return self.span.covers(span)

    def is_recorded_by(self, operation: RecordedOperation) -> bool:
        """Whether that record stands for it."""
        facts = operation.facts
        same = (operation.number, facts.attempt, facts.term) == (self.number, self.attempt, self.term)
        return same and any(first <= self.write.first and self.write.last <= last for first, last in facts.ranges)


def span_recorded(facts: TransactionOperation) -> Span | None:
    """Whose messages an operation stands for, if it says so."""
    return None if facts.sequences is None else Span(facts.producer, *facts.sequences)


async def transacted_from(segment: Segment, offset: int) -> list[Transacted]:
    """The transactional entries of a segment from an offset on, in order. Looks at headers only."""
    found: list[Transacted] = []
    while (read := segment.read(offset)) is not None:
        block = read if isinstance(read, Block) else await read
        for part in block.parts:
            found += [entry for entry in transacted(part) if entry.last >= offset]
        offset = block.next_offset
        await asyncio.sleep(0)  # others' turn: this may be long
    return found


class RecordsByEntry:
    """Which operation records stand for which entries: of the same transaction, attempt and owner's term, and of a
    range that holds the entry.
    """

    def __init__(self, entries: Iterable[Transacted]) -> None:
        """`entries`: in the order of their offsets."""
        self._entries: dict[tuple[int, int, int], list[Transacted]] = {}
        for entry in entries:
            self._entries.setdefault((entry.number, entry.attempt, entry.term), []).append(entry)
        self._records: dict[int, list[RecordedOperation]] = {}  # by the entry's first offset

    def add(self, record: RecordedOperation) -> bool:
        """Whether it stands for any of the entries."""
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
        """Those that stand for it."""
        return self._records.get(entry.first, [])
