"""`Operations`: the operation records of transactions, as the owners of segments write, find and forget them.

A record is found by what it is about, through an index: the writes to a segment, the acknowledgements of a subscription
in a segment. Nobody who looks for his own sees those of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from engine.aio.histogram import Histogram
from engine.errors import UnknownOutcomeError
from engine.metadata import keys, unsure
from engine.metadata.store import MetadataStore, OutcomeUnknownError, Record
from engine.model.names import SegmentName
from engine.model.transactions import OperationKind, TransactionOperation, id_text, parse_id

INDEX_WRITES = "txn-writes-by-segment"  # "{segment}"
INDEX_ACKS = "txn-acks-by-segment-subscription"  # "{segment}/{encoded subscription}"
PAGE = 256  # records that are found at a time
_ATTEMPTS_MAX = 8


class Operation(NamedTuple):
    """An operation record: of which transaction, the store's key and version, and what it says."""

    number: int
    key: str
    version: int
    facts: TransactionOperation


def place_of(operation: TransactionOperation) -> tuple[str, str]:
    """In which index a record is, and under which key."""
    if operation.kind is OperationKind.WRITE:
        return INDEX_WRITES, str(operation.segment)
    return INDEX_ACKS, f"{operation.segment}/{keys.encode(operation.subscription or '')}"


class Operations:
    """Loop thread only. One per broker."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.written = 0
        self.queries_s = Histogram()
        self._metadata = metadata

    async def append(self, number: int, operation: TransactionOperation) -> Operation:
        """Write a record of a transaction; durable when it returns. Raises UnknownOutcomeError.

        Of two records that say the same in one transaction the second may be taken for the first.
        """
        prefix, value = keys.transaction_ops(id_text(number)), operation.to_json()
        for _ in range(_ATTEMPTS_MAX):
            try:
                record = await self._metadata.put_sequence(
                    prefix, value, partition_key=id_text(number), indexes=dict([place_of(operation)])
                )
            except OutcomeUnknownError:
                found = await self._written(prefix, value)
                if found is None:
                    continue
                record = found
            self.written += 1
            return Operation(number, record.key, record.stat.version, operation)
        raise UnknownOutcomeError(f"the metadata store does not say whether an operation of {prefix} was written")

    async def _written(self, prefix: str, value: bytes) -> Record | None:
        """The record with that value, which the store left open."""
        start, end = f"{prefix}/", keys.prefix_end(f"{prefix}/")
        while found := await self._metadata.list(start, end, PAGE):
            for record in found:
                if record.value == value:
                    return record
            start = found[-1].key + "\0"
        return None

    async def writes(self, segment: SegmentName) -> list[Operation]:
        """Of all transactions to a segment, those that were written first first."""
        return [operation_of(record) for record in await self._query(INDEX_WRITES, str(segment), f"{segment}\0")]

    async def of(self, number: int) -> list[Operation]:
        """Of one transaction, wherever, those that were written first first."""
        start = f"{keys.transaction_ops(id_text(number))}/"
        return [operation_of(record) for record in await self._metadata.list(start, keys.prefix_end(start))]

    async def of_segment(self, segment: SegmentName) -> list[Operation]:
        """Of all transactions, whatever is about a segment."""
        return [operation_of(record) for record in await self._records_of(segment)]

    async def _records_of(self, segment: SegmentName) -> list[Record]:
        theirs = f"{segment}/"
        return [
            *await self._query(INDEX_WRITES, str(segment), f"{segment}\0"),
            *await self._query(INDEX_ACKS, theirs, keys.prefix_end(theirs)),
        ]

    async def acks(self, segment: SegmentName, subscription: str) -> list[Operation]:
        """Of all transactions, of a subscription in a segment, likewise."""
        key = f"{segment}/{keys.encode(subscription)}"
        return [operation_of(record) for record in await self._query(INDEX_ACKS, key, f"{key}\0")]

    async def _query(self, index: str, start: str, end: str) -> list[Record]:
        began = asyncio.get_running_loop().time()
        found = [record for _, record in await self._metadata.list_index(index, start, end)]
        self.queries_s.observe(asyncio.get_running_loop().time() - began)
        return sorted(found, key=lambda record: record.stat.version)

    async def delete(self, key: str) -> bool:
        """Forget a record; whether it was there. Raises UnknownOutcomeError."""
        return await unsure.delete(self._metadata, key)

    async def forget_settled(self, records: Iterable[str]) -> None:
        """Delete records of transactions that have ended, whose participants have applied that durably.

        In one write for each transaction that has no others: a record that comes later cannot count any more.
        """
        settled: dict[str, set[str]] = {}
        for key in records:
            settled.setdefault(key[: key.rindex("/") + 1], set()).add(key)
        prefixes = list(settled)
        for start in range(0, len(prefixes), PAGE):
            await asyncio.gather(*(self._forget_of(p, settled[p]) for p in prefixes[start : start + PAGE]))

    async def _forget_of(self, prefix: str, settled: set[str]) -> None:
        end = keys.prefix_end(prefix)
        found = await self._metadata.list_keys(prefix, end, len(settled) + 1)
        if settled.issuperset(found):
            await self._metadata.delete_range(prefix, end)
        else:
            await self.forget(settled)

    async def forget(self, records: Iterable[str]) -> None:
        """Delete records, also of transactions that are open: what else is in those stays."""
        keys_left = list(records)
        for start in range(0, len(keys_left), PAGE):
            await asyncio.gather(*map(self.delete, keys_left[start : start + PAGE]))

    async def forget_subscription(self, segment: SegmentName, subscription: str) -> None:
        """It has nothing to acknowledge in a segment any more: its cursor is gone."""
        for operation in await self.acks(segment, subscription):
            await self.delete(operation.key)

    async def forget_segment(self, segment: SegmentName) -> None:
        """A segment is gone, and may not be taken for a later one of its name."""
        for record in await self._records_of(segment):
            await self.delete(record.key)


def operation_of(record: Record) -> Operation:
    """What a record says. Raises CorruptionError."""
    number = parse_id(record.key.rsplit("/", 2)[1])
    return Operation(number, record.key, record.stat.version, TransactionOperation.from_json(record.value))
