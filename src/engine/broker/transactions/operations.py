"""`Operations`: the operation records of transactions, written, found and deleted by the owners of segments.

A record is found through an index, by the segment that it writes to, or the subscription in a segment that it
acknowledges in. Queries are scoped to one segment or subscription.

Writes of one transaction in the same turn of the loop share one record, of at most PARTS_MAX parts. They are gathered
in `Held`, and written at the end of the turn, unless a commit holds them: then they are written together with the
header (session/commit_behind.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from engine._native.serve.held import Gathering, HeldWrites
from engine.aio.bag import Bag
from engine.aio.histogram import Histogram
from engine.control.transactions.operations import (
    INDEX_ACKS,
    INDEX_WRITES,
    Part,
    RecordedOperation,
    forget,
    operations_in,
    recorded,
    recording_of,
)
from engine.errors import UnknownOutcomeError
from engine.limits import METADATA_WRITE_ALL_MAX
from engine.metadata import keys, unsure
from engine.metadata.store import Delete, MetadataStore, OutcomeUnknownError, Record
from engine.model.names import SegmentName
from engine.model.transactions import OperationKind, TransactionHeader, TransactionOperation, id_text

PAGE = 256  # records in one query
PARTS_MAX = 64  # writes in one record
_ATTEMPTS_MAX = 8


class Writer(Protocol):
    """A write that needs a record."""

    @property
    def sends(self) -> object:
        """Counts the frames of its connection, for a commit."""

    def operation(self) -> TransactionOperation:
        """Its part of the record; made when it is needed, while the log is being written."""

    @property
    def waits(self) -> bool:
        """Whether the record is still wanted."""

    def recorded(self, record: RecordedOperation) -> None:
        """The record is durable."""

    def unrecorded(self, error: BaseException) -> None:
        """An attempt has failed, outcome unknown."""


class Held(HeldWrites):
    """The writes of one transaction without a record. Loop thread only.

    At the end of the turn they are recorded, unless a commit holds them: it takes those that it records together with
    the header, and releases the rest.
    """

    __slots__ = ("_operations",)

    writes: list[Writer]

    def __init__(self, operations: Operations, number: int) -> None:
        super().__init__(number)
        self._operations = operations

    def release(self, writes: Sequence[Writer] = ()) -> None:
        """Record these writes, and all that are held, on their own."""
        for write in writes:
            self.add(write)
        self._operations.release(self)


class _Waiter:
    """A caller that awaits its record."""

    sends: object = None

    def __init__(self, operation: TransactionOperation) -> None:
        self._operation = operation
        self.future: asyncio.Future[RecordedOperation] = asyncio.get_running_loop().create_future()

    def operation(self) -> TransactionOperation:
        return self._operation

    @property
    def waits(self) -> bool:
        return not self.future.done()

    def recorded(self, record: RecordedOperation) -> None:
        if self.waits:
            self.future.set_result(record)

    def unrecorded(self, error: BaseException) -> None:
        if self.waits:
            self.future.set_exception(error) if isinstance(error, Exception) else self.future.cancel()


class Operations(Gathering):
    """Loop thread only. One per broker."""

    def __init__(self, metadata: MetadataStore) -> None:
        super().__init__(PARTS_MAX)
        self.written = 0
        self.queries_s = Histogram()
        self._metadata = metadata
        self._writing: Bag[asyncio.Task[None]] = Bag()

    async def append(self, number: int, operation: TransactionOperation) -> RecordedOperation:
        """Write a record; durable when it returns. Raises UnknownOutcomeError.

        Of two equal records of a transaction the second may be taken for the first.
        """
        if operation.kind is OperationKind.WRITE:
            waiter = _Waiter(operation)
            self.gather(number, waiter)
            return await waiter.future
        return (await self._append(number, [operation], lambda: True))[0]

    def begun(self, number: int) -> Held:
        """See Gathering."""
        held = Held(self, number)
        self._begin(held)
        return held

    def hold(self, number: int) -> Held | None:
        """Record no writes of a transaction, of this turn and later, until they are released.

        None: another commit holds them.
        """
        found = self.gathered.get(number)
        if found is None:
            found = self.gathered[number] = Held(self, number)
        if found.held:
            return None
        found.held = True
        return found

    def release(self, held: Held) -> None:
        """Undo hold()."""
        held.held = False
        if self.gathered.get(held.number) is held:
            del self.gathered[held.number]
        if held.writes:
            self._begin(held)

    def _begin(self, gathered: Held) -> None:
        asyncio.get_running_loop().call_soon(self._write, gathered)

    def _write(self, gathered: Held) -> None:
        if gathered.held or not gathered.writes:
            return
        number, writes = gathered.number, gathered.writes
        if self.gathered.get(number) is gathered:
            del self.gathered[number]
        gathered.writes = []
        task = asyncio.get_running_loop().create_task(self._write_all(number, writes))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_all(self, number: int, writes: Sequence[Writer]) -> None:
        for start in range(0, len(writes), PARTS_MAX):
            await self._write_some(number, writes[start : start + PARTS_MAX])

    async def _write_some(self, number: int, writes: Sequence[Writer]) -> None:
        """Write one record, and call the writers. If no writer waits for it any more, there is one attempt."""
        try:
            operations = [write.operation() for write in writes]
            found = await self._append(number, operations, lambda: any(write.waits for write in writes))
        except BaseException as e:
            for write in writes:
                write.unrecorded(e)
            if not isinstance(e, Exception):
                raise
        else:
            for write, one in zip(writes, found, strict=True):
                write.recorded(one)

    async def _append(
        self, number: int, operations: list[TransactionOperation], wanted: Callable[[], bool]
    ) -> list[RecordedOperation]:
        ident, recording = id_text(number), recording_of(operations)
        prefix = keys.transaction_ops(ident)
        for _ in range(_ATTEMPTS_MAX):
            try:
                record = await self._metadata.put_sequence(
                    prefix, recording.value, partition_key=ident, indexes=recording.indexes
                )
            except OutcomeUnknownError:
                found = await self._written(prefix, recording.value)
                if found is None and wanted():
                    continue
                if found is None:
                    break
                record = found
            self.written += 1
            return recorded(operations, record, late=await self._is_decided(ident))
        raise UnknownOutcomeError(f"the metadata store does not say whether an operation of {prefix} was written")

    async def _is_decided(self, ident: str) -> bool:
        """Whether a transaction has ended, or is unknown."""
        header = await self._metadata.newest.get(keys.transaction(ident))
        return header is None or TransactionHeader.from_json(header.value).state.final

    async def _written(self, prefix: str, value: bytes) -> Record | None:
        """Find the record with that value, after a write with unknown outcome."""
        start, end = f"{prefix}/", keys.prefix_end(f"{prefix}/")
        while found := await self._metadata.newest.list(start, end, PAGE):
            for record in found:
                if record.value == value:
                    return record
            start = found[-1].key + "\0"
        return None

    async def writes(self, segment: SegmentName) -> list[RecordedOperation]:
        """The writes of all transactions to a segment, oldest first."""
        return await self._about(segment, INDEX_WRITES, str(segment), f"{segment}\0")

    async def of(self, number: int) -> list[RecordedOperation]:
        """All operations of one transaction, oldest first."""
        start = f"{keys.transaction_ops(id_text(number))}/"
        found = await self._metadata.newest.list(start, keys.prefix_end(start))
        return [operation for record in found for operation in operations_in(record)]

    async def of_segment(self, segment: SegmentName) -> list[RecordedOperation]:
        """The operations of all transactions in a segment."""
        theirs = f"{segment}/"
        acks = await self._about(segment, INDEX_ACKS, theirs, keys.prefix_end(theirs))
        return [*await self.writes(segment), *acks]

    async def acks(self, segment: SegmentName, subscription: str) -> list[RecordedOperation]:
        """The acknowledgements of all transactions in a subscription of a segment, oldest first."""
        key = f"{segment}/{keys.encode(subscription)}"
        return await self._about(segment, INDEX_ACKS, key, f"{key}\0")

    async def _about(self, segment: SegmentName, index: str, start: str, end: str) -> list[RecordedOperation]:
        """The operations in a segment, from records in a range of an index."""
        found = [operation for record in await self._query(index, start, end) for operation in operations_in(record)]
        return sorted((one for one in found if one.facts.segment == segment), key=lambda one: one.version)

    async def _query(self, index: str, start: str, end: str) -> list[Record]:
        began = asyncio.get_running_loop().time()
        found = [record for _, record in await self._metadata.newest.list_index(index, start, end)]
        self.queries_s.observe(asyncio.get_running_loop().time() - began)
        return found

    async def delete(self, key: str) -> bool:
        """Delete a record; whether it existed. Raises UnknownOutcomeError."""
        return await unsure.delete(self._metadata, key)

    async def forget_settled(self, parts: Iterable[Part]) -> None:
        """Delete operations of transactions that have ended, once they are applied durably.

        Records of which nothing is left are deleted many at a time.
        """
        by_key = _by_key(parts)
        whole = [Delete(key) for key, those in by_key.items() if _is_whole(those)]
        for start in range(0, len(whole), METADATA_WRITE_ALL_MAX):
            await self._metadata.write_all(whole[start : start + METADATA_WRITE_ALL_MAX])
        if len(whole) < len(by_key):
            await self._forget({key: those for key, those in by_key.items() if not _is_whole(those)})

    async def forget(self, parts: Iterable[Part]) -> None:
        """Delete operations, also of open transactions. Other operations in the same records stay."""
        await self._forget(_by_key(parts))

    async def _forget(self, by_key: dict[str, set[Part]]) -> None:
        found = list(by_key.items())
        for start in range(0, len(found), PAGE):
            await asyncio.gather(*(self._forget_of(key, those) for key, those in found[start : start + PAGE]))

    async def _forget_of(self, key: str, parts: set[Part]) -> None:
        if _is_whole(parts):
            await self.delete(key)
        else:
            await forget(self._metadata, key, lambda operation: any(part.is_of(operation) for part in parts))

    async def forget_subscription(self, segment: SegmentName, subscription: str) -> None:
        """Delete the acknowledgements of a subscription in a segment: its cursor is deleted."""
        for operation in await self.acks(segment, subscription):
            await self.delete(operation.key)

    async def forget_segment(self, segment: SegmentName) -> None:
        """Delete all operations in a segment: it is deleted, and a later one may have its name."""
        await self.forget([operation.part for operation in await self.of_segment(segment)])


def _by_key(parts: Iterable[Part]) -> dict[str, set[Part]]:
    found: dict[str, set[Part]] = {}
    for part in parts:
        found.setdefault(part.key, set()).add(part)
    return found


def _is_whole(parts: set[Part]) -> bool:
    """Whether these are all parts of their record."""
    return len(parts) >= next(iter(parts)).parts
