"""`TransactionBuffer`: the messages of transactions in one segment, hidden from readers until decided (PIP-473).

    publish    append() puts the entries into the log and, at the same time, an operation record into the metadata
               store. The producer's receipt is sent when both are durable. Until then, and while the transaction is
               open, the last stable offset (`limit`) is below the entries, and readers stop there.
    decide     When the end of the transaction is heard of, each of its writes that is durable and recorded becomes
               visible (committed, and the record was in time) or is added to the aborted ranges. `limit` moves to the
               first write that is still undecided.
    settle     The aborted ranges are saved with the segment, durably; only then are the operation records deleted.
    recover    A new owner finds the transactional entries in the log, and the records by their index. An entry without
               a record: if its transaction is open, the owner writes the record now; else it is hidden for ever. No
               receipt was sent for it, so nothing is lost.

docs/transactions.md has the whole protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from pyroaring import BitMap64

from engine._native.format.offsets import range_set
from engine._native.serve.blocks import Block
from engine._native.serve.transacted import Transacted, size_below
from engine._native.serve.undecided import JointAppend, Run, Span, Undecided
from engine.broker.transactions.append import Answer, TransactionalAppend
from engine.broker.transactions.settling import Settling, insist
from engine.broker.transactions.writes import (
    PendingWrite,
    RecordsByEntry,
    span_of,
    span_recorded,
    transacted_from,
)
from engine.errors import AlreadyClosedError, StorageError, TransactionConflictError, TransactionNotFoundError
from engine.model.transactions import TransactionState, id_text

if TYPE_CHECKING:
    from engine._native.serve.groups import Appended
    from engine.broker.transactions.headers import TransactionHeaders
    from engine.broker.transactions.operations import Operations
    from engine.broker.transactions.sends import TransactionSends
    from engine.broker.transactions.settling import SettlingRounds
    from engine.control.transactions.operations import Part, RecordedOperation
    from engine.storage.cursor.visibility import Visibility
    from engine.storage.segment import Segment

UNSAVED_MESSAGES_MAX = 1_000_000  # above the saved state, before it is saved again: recovery reads their headers


class TransactionBuffer(Undecided):
    """Loop thread only. Implements `Gate`. `changed` is called, in a later turn of the loop, when readers may go on.

    An entry whose transaction is open gets its operation record as soon as it is in the log: append() begins to write
    it, and recovery looks for entries that a crash has left without one.
    """

    visibility: Visibility
    operations: Operations
    settling: Settling

    def __init__(
        self,
        segment: Segment,
        term: int,
        visibility: Visibility,
        headers: TransactionHeaders,
        operations: Operations,
        rounds: SettlingRounds,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(str(segment.name), msgspec.json.encode(str(segment.name)))
        self.visibility, self.operations = visibility, operations
        self.settling = Settling(segment, visibility, rounds)
        self.segment_name = segment.name
        self._segment = segment
        self._term = term
        self._headers = headers
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._idle: list[asyncio.Future[None]] = []  # wait until all appends are answered
        self._withdrawing: set[asyncio.Future[None]] = set()
        self._closed = False
        self.heard = self.hear  # made once: it is compared with itself
        visibility.changed = self._notify_soon

    # -- for readers -------------------------------------------------------------------------------------------------

    @property
    def limit(self) -> int | None:
        """The last stable offset: readers get nothing from here on. None: no write is undecided."""
        return self.visibility.limit

    def cut(self, block: Block) -> Block:
        """The entries of a block that lie below the limit; the block begins below it."""
        limit = self.visibility.limit
        if limit is None or block.next_offset <= limit:
            return block
        data = block.data
        visible = data[: size_below(data, limit)]
        return Block([visible], block.salt, block.first_offset, limit, limit - block.first_offset)

    def hidden(self, start: int, stop: int) -> BitMap64 | None:
        """The aborted offsets in [start, stop), None for none."""
        hidden = self.visibility.hidden
        if not hidden or start >= stop or not hidden.range_cardinality(start, stop):
            return None
        return hidden & range_set(start, stop - 1)

    # -- for producers -----------------------------------------------------------------------------------------------

    def admits(self, number: int, role: str = "") -> bool:
        """Whether append() may be called now: the transaction is known to be open, and no write is being withdrawn.

        `role`: which adds to it, and must have begun it; "" for any.
        """
        if self._withdrawing or self._closed or not self._headers.follow_open(number, self.heard):
            return False
        self.followed.add(number)
        return self._headers.belongs_to(number, role)

    def admits_all(self, numbers: list[int], role: str) -> bool:
        """admits() of each, as far as the first that is not admitted."""
        if self._withdrawing or self._closed:
            return False
        count, admitted = self._headers.follow_all_open(numbers, self.heard, role)
        self.followed.update(numbers if admitted else numbers[:count])
        return admitted

    async def admit(self, number: int, role: str = "") -> None:
        """Wait until append() may be called.

        Raises TransactionNotFoundError (also: of another role), TransactionConflictError, and what the metadata store
        raises.
        """
        if self._closed:
            raise AlreadyClosedError(f"{self._segment.name} is closed")
        await self.visibility.mark()
        await self._headers.authorise(number, self.heard)
        while self._withdrawing:
            await asyncio.wait(list(self._withdrawing))
            await self._headers.authorise(number, self.heard)  # at once, unless it has ended meanwhile
        self.followed.add(number)
        if not self._headers.belongs_to(number, role):
            raise TransactionNotFoundError(f"there is no transaction {id_text(number)} of this role")

    def append(
        self, payload: memoryview, number: int, attempt: int, sends: TransactionSends | None = None, producer: str = ""
    ) -> asyncio.Future[list[Appended]]:
        """append_for() a future."""
        answer: asyncio.Future[list[Appended]] = self._loop.create_future()
        self.append_for(answer, payload, number, attempt, sends, producer)
        return answer

    def append_for(
        self,
        answer: Answer,
        payload: memoryview,
        number: int,
        attempt: int,
        sends: TransactionSends | None = None,
        producer: str = "",
    ) -> None:
        """Append whole entries of an admitted transaction. `sends`: counts the frame. `producer`: its name.

        `answer` is done when the entries and their operation record are durable; they are visible if the transaction is
        committed and accepts the attempt. It fails as Segment.append() does, and with TransactionConflictError when the
        transaction has ended before the record.
        """
        segment, first = self._segment, self._segment.next_offset
        append = TransactionalAppend(self, number, sends, answer)
        segment.append_for(append, payload, producer, self._term, (number, attempt))
        if append.error is not None:
            answer.set_exception(append.error)
            if sends is not None:
                sends.answered(answer)
            return
        pending, span = None, span_of(payload)
        if segment.next_offset > first:
            write = self.visibility.wrote(first, segment.next_offset - 1)
            pending = PendingWrite(number, attempt, write, self._term, span)
            self.writes.setdefault(number, []).append(pending)
        append.begin(span, pending)
        if pending is not None:
            self.operations.gather(number, append)

    def append_jointly(
        self,
        payload: memoryview,
        runs: Sequence[Run],
        answers: Sequence[Answer],
        sends: Sequence[TransactionSends],
        producer: str,
    ) -> bool:
        """append_for() of the runs of one frame, each of an admitted transaction, with one append to the log.

        Behind such a frame commits are to be expected, which arrive before it is durable. So its records are not begun
        before that: those that no commit has taken by then.

        False: the log has refused it, and nothing was done.
        """
        joint = JointAppend()
        places = self._segment.append_for(joint, payload, producer, self._term, several=True)
        if places is None:
            return False
        self.begin_jointly(joint, runs, answers, sends, places, self._term, TransactionalAppend, PendingWrite)
        return True

    def all_confirmed(self) -> None:
        idle, self._idle = self._idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)

    def became_ready(self, number: int) -> None:
        self._apply(number)

    async def check_in_time(self, number: int, versions: list[int]) -> None:
        """Raise TransactionConflictError unless the transaction is open, or ended after all these records."""
        view = await self._headers.read(number)
        if view is None or (view.header.state.final and any(version > view.version for version in versions)):
            ended = "is unknown" if view is None else f"is {view.header.standing}"
            raise TransactionConflictError(f"the transaction {id_text(number)} {ended}: the message came too late")

    async def record(self, pending: PendingWrite) -> None:
        """Write its operation record; retried until the metadata store takes it."""
        operation = pending.operation(self.segment_name)
        pending.add_record(await insist(pending.write, lambda: self.operations.append(pending.number, operation)))

    async def find_records(self, pending: PendingWrite) -> None:
        """Find all records of a write, now that there is one; retried until the metadata store answers."""
        await insist(pending.write, lambda: self._find_records(pending.number, [pending]))

    async def version_of_original(self, place: Appended, number: int, producer: int) -> int | None:
        """The version of the record of a duplicate's original; None: it was decided before, and is visible.

        Raises TransactionConflictError: the original is hidden, or in another transaction.
        """
        span = Span(producer, place.first_sequence, place.last_sequence)
        pending: PendingWrite
        for pending in self.writes.get(number, ()):
            if pending.holds(place, span):
                await pending.until_recorded()
                return pending.version
        if place.first_offset >= 0:
            if self.visibility.is_decided(place.first_offset) and place.first_offset not in self.visibility.hidden:
                return None
        else:  # so long ago, or in a parent of this segment, that only the transaction's own records can tell
            for operation in await self.operations.of(number):
                known = span_recorded(operation.facts)
                if known is not None and known.covers(span):
                    return operation.version
        raise TransactionConflictError(
            f"sequence ids {span.low} to {span.high} were sent before, and are not in the transaction {id_text(number)}"
        )

    def withdraw(self, pending: PendingWrite) -> asyncio.Future[None]:
        """The write is not in the log after all. Done when its record is deleted; until then no other transactional
        entry is appended, which would get its offsets.
        """
        self.visibility.withdraw(pending.write)
        self._forget(pending)
        gone = self._loop.create_task(self._forget_records(pending))
        self._withdrawing.add(gone)
        gone.add_done_callback(self._withdrawing.discard)
        return gone

    async def _forget_records(self, pending: PendingWrite) -> None:
        await pending.until_recorded()
        await insist(pending.write, lambda: self.operations.forget(pending.parts))

    async def recorded(self) -> None:
        """Wait until all appends are answered. For a segment that takes no more of them."""
        while self.confirming:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            await future

    # -- the end of a transaction ------------------------------------------------------------------------------------

    def _apply(self, number: int) -> None:
        """Decide the writes, of a transaction that has ended, that can be decided."""
        if self.decided(number):
            self._leave(number)

    def _forget(self, pending: PendingWrite) -> None:
        left = self.writes.get(pending.number, [])
        left.remove(pending)
        if not left:
            self.writes.pop(pending.number, None)
            if pending.number in self.ended:
                self._leave(pending.number)

    def _leave(self, number: int) -> None:
        del self.ended[number]
        self.followed.discard(number)
        self._headers.release(number, self.heard)

    def _notify_soon(self) -> None:
        if not self.notifying:
            self.notifying = True
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        self.notifying = False
        if not self._closed:
            self._changed()

    # -- settling ----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Apply all transactions that have ended, durably; their records are deleted when this returns.

        Raises StorageError when a write is not durable yet, and what the metadata store raises.
        """
        records: dict[int, list[Part]] = {}
        for record in await self.operations.writes(self._segment.name):
            records.setdefault(record.number, []).append(record.part)
        for number, found in records.items():
            view = await self._headers.read(number)  # followers are told
            if view is not None and not view.header.state.final:
                continue
            if number in self.writes:
                raise StorageError(
                    f"{self._segment.name}: a write of {id_text(number)} is not durable yet; retry later"
                )
            self.settling.records += found
        await self.settling.settle()

    # -- life --------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether writes are undecided, or decided and not settled."""
        return bool(self.writes or self.confirming or self.settling.records or self._withdrawing)

    @property
    def operation_records(self) -> int:
        """The number of operation records of writes here, as far as is known."""
        undecided = sum(len(pending.parts) for writes in self.writes.values() for pending in writes)
        return undecided + len(self.settling.records)

    @property
    def holding(self) -> tuple[int, int] | None:
        """(transaction, offset) of the write at the last stable offset."""
        limit = self.visibility.limit
        if limit is None:
            return None
        held = (number for number, writes in self.writes.items() for one in writes if one.write.first == limit)
        number = next(held, None)
        return None if number is None else (number, limit)

    @property
    def open_transactions(self) -> dict[int, int]:
        """The number of undecided messages of each transaction."""
        return {
            number: sum(pending.write.last + 1 - pending.write.first for pending in writes)
            for number, writes in self.writes.items()
        }

    def sample(self) -> None:
        """Called at intervals: limits how much of the log recovery reads after the last transaction."""
        self.visibility.forget_below(self._segment.first_offset)
        settled = self.visibility.unsettled_from
        far = settled is not None and self._segment.durable_offset - settled > UNSAVED_MESSAGES_MAX
        if far and self.visibility.limit is None:
            self.settling.soon()

    async def close(self) -> None:
        """Finish appends, and save what is decided, as far as possible. Idempotent."""
        if self._closed:
            return
        await self.recorded()
        await self.settling.close()
        self.abandon()
        await self.visibility.close()

    def abandon(self) -> None:
        """Stop without writing: another broker owns the segment, or it was deleted. Idempotent."""
        self._closed = True
        self.settling.closed = True
        for append in list(self.confirming):
            append.abandon()
        for gone in list(self._withdrawing):
            gone.cancel()
        for number in self.followed | self.ended.keys():
            self._headers.release(number, self.heard)
        self.followed.clear()

    # -- recovery ----------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Find undecided writes in the log, before anything is read. Raises what stores raise."""
        start = self.visibility.unsettled_from
        if start is None:
            return
        entries = [e for e in await transacted_from(self._segment, start) if not self.visibility.is_decided(e.first)]
        records = RecordsByEntry(entries)
        strays = [r.part for r in await self.operations.writes(self._segment.name) if not records.add(r)]
        for entry in entries:
            self._found(entry, records.of(entry))
        for number in list(self.writes):
            await self._resume(number)
        await self.operations.forget(strays)  # of writes that are decided, or never reached the log

    def _found(self, entry: Transacted, records: Iterable[RecordedOperation]) -> None:
        span = Span(entry.producer, entry.first_sequence, entry.last_sequence)
        write = self.visibility.wrote(entry.first, entry.last)
        pending = PendingWrite(entry.number, entry.attempt, write, entry.term, span)
        pending.durable = True
        for record in records:
            pending.add_record(record)
        if pending.parts:
            pending.found()
        self.writes.setdefault(entry.number, []).append(pending)

    async def _resume(self, number: int) -> None:
        """Follow a transaction that is open; apply one that has ended."""
        self._headers.follow(number, self.heard)
        self.followed.add(number)
        view = await self._headers.read(number)
        unrecorded = [pending for pending in self.writes.get(number, ()) if not pending.recorded]
        if view is not None and view.header.state is TransactionState.OPEN:
            await asyncio.gather(*map(self._claim, unrecorded))
        else:
            await self._find_records(number, unrecorded)
            self.ended.setdefault(number, view)
        for pending in unrecorded:
            pending.found()
        if number in self.ended:
            self._apply(number)

    async def _claim(self, pending: PendingWrite) -> None:
        """Write the record that the previous owner did not. A retry of the client is a duplicate of this write."""
        await self.record(pending)
        view = await self._headers.read(pending.number)
        if view is None or (view.header.state.final and pending.version is not None and pending.version > view.version):
            await self._find_records(pending.number, [pending])

    async def _find_records(self, number: int, unrecorded: list[PendingWrite]) -> None:
        """Read the records again: the previous owner may have written some after recovery listed them. Now that the
        transaction has ended, every record that is in time is there, and later owners find the same.
        """
        for operation in await self.operations.of(number) if unrecorded else ():
            for pending in unrecorded:
                if pending.is_recorded_by(operation):
                    pending.add_record(operation)
