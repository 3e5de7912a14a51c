"""Headers of transactions in the metadata store: how they are written, and how they are found by time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import cache

import msgspec

from engine.clock import ForwardSteps
from engine.control.transactions.operations import Recording
from engine.errors import TransactionNotFoundError
from engine.metadata import keys
from engine.metadata.store import (
    Append,
    ConflictError,
    Expected,
    MetadataStore,
    OutcomeUnknownError,
    Put,
    Record,
    Stat,
)
from engine.model.transactions import TransactionHeader, TransactionState, id_text, parse_id, partition_of

INDEX_DEADLINE = "txn-by-deadline"  # open ones: "{partition:x}/{deadline in ms}"
INDEX_FINAL = "txn-by-final-state"  # ended ones: "{partition:x}/{end of their retention in ms}"
_TIME_DIGITS = 15
_PLACE = f"%x/%0{_TIME_DIGITS}d"
_TIME_MAX = 10**_TIME_DIGITS - 2
_BATCH = 256  # headers per page


class TransactionView(msgspec.Struct, frozen=True):
    """A transaction: its id, its header, and the header's version in the store."""

    number: int
    header: TransactionHeader
    version: int

    @property
    def id(self) -> str:
        """The id in text."""
        return id_text(self.number)


class HeaderWrite(msgspec.Struct, frozen=True):
    """A header ready to be written, on the condition that `put` names. Making one takes longer than handing it over."""

    number: int
    header: TransactionHeader
    put: Put

    def beside(self, number: int) -> HeaderWrite:
        """The same header for another transaction of the same partition."""
        ident = id_text(number)
        put = msgspec.structs.replace(self.put, key=keys.transaction(ident), partition_key=ident)
        return HeaderWrite(number, self.header, put)

    def written(self, version: int) -> TransactionView:
        """The transaction once the store has written it with that version."""
        return TransactionView(self.number, self.header, version)


class HeaderRecords:
    """Loop thread only. Times are wall-clock milliseconds, durations in milliseconds."""

    def __init__(self, metadata: MetadataStore, retention_ms: int, named_retention_ms: int) -> None:
        self._metadata = metadata
        self._retention_ms = retention_ms
        self._named_retention_ms = named_retention_ms

    async def find(self, number: int) -> TransactionView | None:
        """The transaction; None when there is none."""
        record = await self._metadata.newest.get(keys.transaction(id_text(number)))
        return None if record is None else _view_of(number, record)

    async def get(self, number: int) -> TransactionView:
        """The transaction. Raises TransactionNotFoundError: it never was, or was collected after its retention."""
        known = await self.find(number)
        if known is None:
            raise TransactionNotFoundError(
                f"there is no transaction {id_text(number)}; it never was, or it ended longer ago than it is kept"
            )
        return known

    async def list_open(self, limit: int | None = None) -> list[TransactionView]:
        """Open transactions, of each partition by deadline."""
        found = await self._metadata.newest.list_index(INDEX_DEADLINE, "", keys.LAST, limit)
        return [view_of(record) for _, record in found]

    async def every_open(self) -> AsyncIterator[TransactionView]:
        """All open transactions, page by page; one may come twice."""
        async for page in self._pages(INDEX_DEADLINE, "", keys.LAST):
            for record in page:
                yield view_of(record)

    async def with_open(self, partitions: Sequence[int]) -> list[int]:
        """Those of these partitions, in ascending order, that have open transactions."""
        return [partition async for partition, _ in self._occupied(INDEX_DEADLINE, partitions)]

    async def with_due(self, partitions: Sequence[int], steps: ForwardSteps) -> list[int]:
        """Those of these partitions, in ascending order, that may have transactions whose retention has passed."""
        now_ms = steps.sample()
        return [partition async for partition, ms in self._occupied(INDEX_FINAL, partitions) if ms <= now_ms]

    async def _occupied(self, index: str, partitions: Sequence[int]) -> AsyncIterator[tuple[int, int]]:
        """Those of these partitions, in ascending order, that have an entry in the index, each with its least time.

        A read is of the first entry from a partition on, whose ever that is: partitions before it need none. So where
        nothing is under way one read tells so of all of them.
        """
        first = (-1, 0)
        for partition in partitions:
            if partition > first[0]:
                found = await self._metadata.newest.list_index(index, _at(partition, 0), keys.LAST, 1)
                if not found:
                    return
                first = _place_of(found[0][0])
            if partition == first[0]:
                yield first

    def open_pages(self, partition: int) -> AsyncIterator[list[Record]]:
        """The open headers of a partition, page by page; one may come twice."""
        return self._pages(INDEX_DEADLINE, *_whole(partition))

    async def over_retention(self, partition: int, steps: ForwardSteps) -> AsyncIterator[TransactionView]:
        """A partition's transactions whose retention has passed; one may come twice.

        Time that the wall clock skipped since the end does not count.
        """
        now_ms = steps.sample()
        async for page in self._pages(INDEX_FINAL, *_until(partition, now_ms)):
            for view in map(view_of, page):
                ended_ms = view.header.finalized_ms or 0
                if ended_ms + self._retention_of(view.header) + steps.left_out_ms(ended_ms) <= now_ms:
                    yield view

    async def _pages(self, index: str, start: str, end: str) -> AsyncIterator[list[Record]]:
        limit = _BATCH
        while True:
            found = await self._metadata.newest.list_index(index, start, end, limit)
            yield [record for _, record in found]
            if len(found) < limit:
                return
            last = found[-1][0]
            if last == start:
                limit *= 2  # a whole page has the same time
            start = last

    def write(self, number: int, header: TransactionHeader, expected: Expected | int) -> HeaderWrite:
        """Prepare a header for put(), put_new() or put_with()."""
        ident, indexes = id_text(number), self._indexes(number, header)
        put = Put(keys.transaction(ident), header.to_json(), expected, partition_key=ident, indexes=indexes)
        return HeaderWrite(number, header, put)

    async def put(self, write: HeaderWrite) -> TransactionView:
        """Write a header. An outcome that the store leaves open is resolved by reading back. Raises ConflictError."""
        put = write.put
        try:
            stat = await self._metadata.put(
                put.key, put.value, put.expected, partition_key=put.partition_key, indexes=put.indexes
            )
        except OutcomeUnknownError:
            if (written := await self._read_back(write)) is None:
                raise ConflictError(put.key) from None  # not written, or changed since: the caller reads it again
            return written
        return write.written(stat.version)

    async def put_new(self, writes: Sequence[HeaderWrite]) -> list[TransactionView | None]:
        """Write headers of new transactions at once; None for one whose id is taken, or that was not written."""
        try:
            outcomes = await self._metadata.write_all([write.put for write in writes])
        except OutcomeUnknownError:
            return await asyncio.gather(*map(self._read_back, writes))
        return [
            write.written(outcome.version) if isinstance(outcome, Stat) else None
            for write, outcome in zip(writes, outcomes, strict=True)
        ]

    async def _read_back(self, write: HeaderWrite) -> TransactionView | None:
        """None: the header was not written, or was changed since."""
        found = await self._metadata.newest.get(write.put.key)
        return write.written(found.stat.version) if found is not None and found.value == write.put.value else None

    async def put_with(self, write: HeaderWrite, recording: Recording) -> tuple[TransactionView, Record]:
        """Write a header and a record of these operations, both or nothing. Raises ConflictError."""
        put, ident = write.put, id_text(write.number)
        prefix = keys.transaction_ops(ident)
        try:
            stat, record = await self._metadata.put_with_sequence(
                put, Append(prefix, recording.value, ident, recording.indexes)
            )
        except OutcomeUnknownError:
            found = await self._metadata.newest.get(put.key)
            if found is not None and found.value == put.value:
                for record in await self._metadata.newest.list(f"{prefix}/", keys.prefix_end(f"{prefix}/")):
                    if record.value == recording.value and record.stat.version <= found.stat.version:
                        return write.written(found.stat.version), record
            raise ConflictError(put.key) from None  # not written, or changed since: the caller reads it again
        return write.written(stat.version), record

    def _indexes(self, number: int, header: TransactionHeader) -> dict[str, str]:
        partition = partition_of(number)
        if not header.state.final:
            return {INDEX_DEADLINE: _at(partition, header.timeout_ms)}
        return {INDEX_FINAL: _at(partition, (header.finalized_ms or 0) + self._retention_of(header))}

    def _retention_of(self, header: TransactionHeader) -> int:
        kept = header.name is not None and header.state is TransactionState.COMMITTED
        return self._named_retention_ms if kept else self._retention_ms


def view_of(record: Record) -> TransactionView:
    return _view_of(parse_id(record.key.rpartition("/")[2]), record)


def _view_of(number: int, record: Record) -> TransactionView:
    return TransactionView(number, TransactionHeader.from_json(record.value), record.stat.version)


def _at(partition: int, time_ms: int) -> str:
    return _PLACE % (partition, time_ms)


def _place_of(key: str) -> tuple[int, int]:
    """Undo _at()."""
    partition, _, time_ms = key.partition("/")
    return int(partition, 16), int(time_ms)


@cache
def _whole(partition: int) -> tuple[str, str]:
    """The index range of a partition."""
    return _until(partition, _TIME_MAX)


def _until(partition: int, time_ms: int) -> tuple[str, str]:
    """The index range of a partition up to a time, inclusive."""
    return _at(partition, 0), _at(partition, time_ms + 1)
