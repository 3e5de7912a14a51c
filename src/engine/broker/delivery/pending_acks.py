"""`PendingAcks`: acknowledgements of open transactions, of one subscription in one segment (PIP-473).

A message that is acknowledged in an open transaction is *held*: it is delivered to no consumer, and can be acknowledged
neither in another transaction nor outside of one, until the transaction ends. The order of steps:

    record()   1. hold the messages in memory, so that no other request gets them
               2. write an operation record for each RUNS_PER_RECORD runs
               3. read the header: if the transaction has ended before the record, delete it, and the messages are due
               4. answer the client
    _apply()   when the end of the transaction is heard of, and no record of it is being written:
               committed: 1. the cursor acknowledges the messages   2. that is durable   3. the records are deleted
               aborted:   1. the messages are due again             2. the records are deleted

Only the records are durable. A new owner of the segment finds them by their index (restore()), and so does the
coordinator's sweep (settle()). Because records are deleted after the cursor is durable, a crash between the two leaves
records of messages that are acknowledged already, which changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Iterable
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine import checks
from engine._native.format.offsets import runs
from engine.aio.shielded import shielded
from engine.broker.delivery.pending_claims import Claims, PendingAck, counts, parted, union
from engine.errors import (
    AlreadyClosedError,
    EngineError,
    FencedError,
    NotOwnerError,
    TimeoutError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from engine.metadata.store import ConflictError, OutcomeUnknownError
from engine.model.transactions import OperationKind, TransactionOperation, id_text, operation_counts

if TYPE_CHECKING:
    from engine.broker.delivery.opened import Participation
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.control.transactions.headers import TransactionView
    from engine.control.transactions.operations import RecordedOperation

log = logging.getLogger(__name__)

SETTLE_S_MAX = 5.0  # that settle() waits for one subscription
AGAIN_S = 1.0  # until a write that the metadata store has refused is tried again
_TROUBLE = (EngineError, ConflictError, OutcomeUnknownError)
_LOST = (AlreadyClosedError, FencedError, NotOwnerError)  # the next owner finds the records


class PendingAcks:
    """Loop thread only.

    Invariant: `offsets` is the union of all claims, and no message is in two of them; `_overlaps` says where one is,
    as a crash may have left the records of an aborted transaction whose messages were then acknowledged in another one.
    Checked by _check(), with ENGINE_DEBUG=1.
    """

    __slots__ = ("_applying", "_claims", "_closed", "_overlaps", "buckets", "changes", "offsets", "parts",
                 "subscription")  # fmt: skip

    def __init__(self, subscription: HostedSubscription, parts: Participation) -> None:
        self.subscription = subscription
        self.parts = parts
        self.offsets = BitMap64()
        self.buckets: list[BitMap64] | None = None  # `offsets` by bucket of the segment; None: not known
        self.changes = 0
        self._claims: dict[int, Claims] = {}
        self._applying: set[asyncio.Task[None]] = set()
        self._overlaps = False
        self._closed = False

    def __bool__(self) -> bool:
        """Whether any message is held for a transaction."""
        return bool(self.offsets)

    @property
    def in_use(self) -> bool:
        """Whether a transaction that acknowledges here has not been applied yet."""
        return bool(self._claims or self._applying)

    @property
    def records(self) -> int:
        """The number of operation records known here."""
        return sum(ack.key is not None for claims in self._claims.values() for ack in claims.acks)

    def holder_of(self, offset: int) -> int | None:
        """The transaction that holds a message."""
        return next((number for number, claims in self._claims.items() if offset in claims.offsets), None)

    @property
    def transactions(self) -> dict[int, int]:
        """The number of messages that each transaction holds, by the transaction's number."""
        return {number: len(claims.offsets) for number, claims in self._claims.items()}

    # -- acknowledging -----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def request(self, number: int, role: str = "") -> AsyncIterator[Claims]:
        """The claims of an open transaction, during one request. The transaction is followed while it has claims.

        `role`: which adds to it; "" for any.
        Raises TransactionNotFoundError (also: of another role), TransactionConflictError when it has ended.
        """
        self._check_open()
        claims = self._claims.setdefault(number, Claims())
        claims.requests += 1
        try:
            await self.parts.headers.authorise(number, self._ended)
            if not self.parts.headers.belongs_to(number, role):
                raise TransactionNotFoundError(f"there is no transaction {id_text(number)} of this role")
            self._check_current(number, claims)
            yield claims
        finally:
            claims.requests -= 1
            if not (claims.requests or claims.acks or claims.ended) and self._claims.get(number) is claims:
                del self._claims[number]
                self.parts.headers.release(number, self._ended)
                claims.leave()

    def _check_open(self) -> None:
        if self._closed:
            raise NotOwnerError(f"{self.subscription} is not served here any more; attach again")
        self.subscription.hosted.check_open()

    def _check_current(self, number: int, claims: Claims) -> None:
        """Raise unless the transaction is open, as far as is known, and the cursor was not moved meanwhile."""
        self._check_open()
        if claims.ended:
            raise TransactionConflictError(f"the transaction {id_text(number)} has ended")
        if self._claims.get(number) is not claims:
            raise NotOwnerError(f"{self.subscription} was moved; attach again")

    async def contended(self, offsets: BitMap64, own: Claims | None) -> BitMap64:
        """The offsets that other open transactions hold. Those that have ended by now are applied when it returns."""
        held = BitMap64()
        for other, claims in list(self._claims.items()):
            hit = BitMap64() if claims is own else claims.offsets & offsets
            if hit and await self._has_ended(other, claims):
                await shielded(claims.applied)
            else:
                held |= hit
        return held

    async def refresh(self) -> None:
        """Transactions that have ended by now are applied when it returns. Raises what the metadata store raises."""
        for number, claims in list(self._claims.items()):
            if await self._has_ended(number, claims):
                await shielded(claims.applied)

    async def _has_ended(self, number: int, claims: Claims) -> bool:
        view = await self.parts.headers.read(number)
        if view is None or view.header.state.final:
            self._ended(number, view)
        return claims.ended

    async def record(
        self,
        number: int,
        claims: Claims,
        attempt: int,
        offsets: BitMap64,
        buckets: Iterable[tuple[int, BitMap64]] | None = None,
    ) -> None:
        """Acknowledge offsets, which no transaction holds, in a transaction; durable when it returns. In request().

        `buckets`: the same by bucket, if known. Raises TransactionConflictError when the transaction has ended before
        that; the messages are due again then, as after any other error.
        """
        self._check_current(number, claims)
        added = parted(offsets, attempt)
        claims.add(added)
        self._hold(offsets, buckets)
        claims.begin_writing()
        try:
            for ack in added:
                await self._write(number, ack)
            await self._confirm(number, claims, added)
        except BaseException as e:
            self._withdraw(number, claims, added)
            if isinstance(e, Exception) and not isinstance(e, _LOST):
                await self._delete(added)
            raise
        finally:
            claims.end_writing()

    async def _write(self, number: int, ack: PendingAck) -> None:
        hosted = self.subscription.hosted
        operation = TransactionOperation(
            kind=OperationKind.ACK,
            segment=hosted.name,
            ranges=tuple((first, last) for first, last in runs(ack.offsets)),
            subscription=self.subscription.name,
            attempt=ack.attempt,
            term=hosted.term,
        )
        found = await self.parts.operations.append(number, operation)
        ack.key, ack.version = found.key, found.version

    async def _confirm(self, number: int, claims: Claims, added: list[PendingAck]) -> None:
        """Raise unless this broker still owns the cursor, and the records count if the transaction is committed."""
        self.subscription.cursor.check_usable()
        if self._claims.get(number) is not claims:
            await self._delete(added)
            raise NotOwnerError(f"{self.subscription} was moved; attach again")
        view = await self.parts.headers.read(number)
        if view is not None and not view.header.state.final:
            return
        if view is None or any(not operation_counts(view.header, view.version, a.attempt, a.version) for a in added):
            raise TransactionConflictError(f"the transaction {id_text(number)} ended before this was added to it")

    def _withdraw(self, number: int, claims: Claims, added: list[PendingAck]) -> None:
        if self._claims.get(number) is claims:
            claims.remove(added)
            self._release(added, added)

    # -- holding -----------------------------------------------------------------------------------------------------

    def _hold(self, offsets: BitMap64, buckets: Iterable[tuple[int, BitMap64]] | None = None) -> None:
        if buckets is None:
            self.buckets = None
        elif not self.offsets:
            self.buckets = [BitMap64() for _ in self.subscription.hosted.spec.bucket_ends]
        if self.buckets is not None:
            for bucket, theirs in buckets or ():
                self.buckets[bucket] |= theirs
        self._overlaps = self._overlaps or self.offsets.intersect(offsets)
        self.offsets |= offsets
        self.changes += 1
        if checks.COSTLY:
            self._check()

    def _check(self) -> None:
        held = [claims.offsets for claims in self._claims.values()]
        checks.check(self.offsets == BitMap64().union(*held), "what is pending is what open transactions claim")
        checks.check(
            self._overlaps or sum(map(len, held)) == len(self.offsets), "a message is claimed by one transaction"
        )

    def held_by_others(self, numbers: Collection[int]) -> BitMap64:
        """The messages that other transactions than these hold."""
        return BitMap64().union(*(claims.offsets for n, claims in self._claims.items() if n not in numbers))

    def _release(self, acks: Iterable[PendingAck], due: Iterable[PendingAck]) -> None:
        """These are no longer held; those of `due` are delivered again."""
        self._remove(acks)
        self._take_back(due)
        self.subscription.resume()

    def _remove(self, acks: Iterable[PendingAck]) -> None:
        gone = union(acks)
        if not gone:
            return
        self.changes += 1
        self.offsets -= gone
        if self._overlaps:
            for claims in self._claims.values():
                self.offsets |= claims.offsets
        for bucket in self.buckets or ():
            bucket &= self.offsets
        if not self.offsets:
            self._overlaps, self.buckets = False, None
        if checks.COSTLY:
            self._check()

    def _take_back(self, acks: Iterable[PendingAck]) -> None:
        """Deliver the messages again that no transaction holds now."""
        due = union(acks) - self.offsets
        if due:
            self.subscription.take_back(due)

    # -- the end of a transaction ------------------------------------------------------------------------------------

    def _ended(self, number: int, view: TransactionView | None) -> None:
        """The transaction has ended; None: its header is gone."""
        claims = self._claims.get(number)
        if claims is None or claims.ended or self._closed:
            return
        claims.ended, claims.view = True, view
        self.parts.headers.release(number, self._ended)
        task = self.parts.tasks.spawn(self._apply(number, claims), f"acknowledgements of {id_text(number)}")
        if task is not None:
            self._applying.add(task)
            task.add_done_callback(self._applying.discard)

    async def _apply(self, number: int, claims: Claims) -> None:
        """Apply its claims to the cursor, and delete the records once that is durable."""
        await claims.written.wait()
        if self._claims.get(number) is not claims:
            return  # the cursor was moved
        back = [ack for ack in claims.acks if not counts(ack, claims.view)]
        saved = self.subscription.take(union(ack for ack in claims.acks if counts(ack, claims.view)))
        del self._claims[number]
        self._release(claims.acks, back)
        claims.leave()
        if await self._is_saved(saved):
            await self._delete(claims.acks)

    async def _is_saved(self, saved: asyncio.Future[None]) -> bool:
        """Wait until the cursor is durable; False when another broker owns it, and will find the records."""
        while True:
            try:
                await saved
            except _LOST:
                return False
            except _TROUBLE as e:
                log.warning("%s: acknowledgements of a transaction are not saved yet: %s", self.subscription, e)
                await asyncio.sleep(AGAIN_S)
                saved = self.subscription.take(BitMap64())
                continue
            return True

    async def _delete(self, acks: Iterable[PendingAck]) -> None:
        """Delete records. Those that cannot be deleted now are left to the coordinator's sweep."""
        for ack in acks:
            if ack.key is not None:
                try:
                    await self.parts.operations.delete(ack.key)
                except _TROUBLE as e:
                    log.info("the operation record %s could not be deleted yet: %s", ack.key, e)
                    return

    # -- closing -----------------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """The cursor is moved or deleted: drop all claims. The caller deletes the records."""
        for number, claims in self._claims.items():
            self.parts.headers.release(number, self._ended)
            claims.leave()
        self._claims.clear()
        self.offsets, self.buckets, self._overlaps = BitMap64(), None, False
        self.changes += 1
        if not self._closed:
            self.subscription.resume()

    async def close(self) -> None:
        """Stop; the next owner of the segment applies the rest. Idempotent."""
        self._closed = True
        self.drop()
        for task in list(self._applying):
            task.cancel()
        if self._applying:
            await asyncio.wait(list(self._applying))

    # -- recovery ----------------------------------------------------------------------------------------------------

    def restore(self, found: Iterable[RecordedOperation]) -> None:
        """Hold the messages of records found as the subscription is opened, until their transactions are looked up."""
        self._adopt(found)
        if self._claims:
            self.parts.tasks.spawn(self._check_all(), f"transactions of {self.subscription}")

    def _adopt(self, found: Iterable[RecordedOperation]) -> list[RecordedOperation]:
        """Hold the messages of records, and return these; without transactions whose records are being written."""
        adopted = []
        known = {ack.key for claims in self._claims.values() for ack in claims.acks}
        cursor = self.subscription.cursor
        for operation in found:
            claims = self._claims.setdefault(operation.number, Claims())
            if claims.writing:
                continue
            adopted.append(operation)
            if operation.key in known:
                continue
            offsets = BitMap64()
            for first, last in operation.facts.ranges:
                for start, stop in cursor.unacked(first, last + 1):
                    offsets.add_range(start, stop)
            claims.add([PendingAck(offsets, operation.facts.attempt, operation.key, operation.version)])
            self._hold(offsets)
        return adopted

    async def _check_all(self) -> None:
        while not self._closed:
            try:
                await self._check_each()
                return
            except _LOST:
                return
            except _TROUBLE as e:
                log.warning("%s: its transactions cannot be looked up, retrying: %s", self.subscription, e)
                await asyncio.sleep(AGAIN_S)

    async def _check_each(self) -> None:
        for number, claims in list(self._claims.items()):
            if not claims.ended and self._claims.get(number) is claims:
                self.parts.headers.follow(number, self._ended)
                await self._has_ended(number, claims)

    async def settle(self) -> None:
        """Apply all transactions that have ended, also those known by records alone; their records are deleted then.

        Raises NotOwnerError; TimeoutError: the cursor could not be saved in time; what the metadata store raises.
        """
        self._check_open()
        found = await self.parts.operations.acks(self.subscription.hosted.name, self.subscription.name)
        self._check_open()
        adopted = self._adopt(found)
        await self._check_each()
        if applying := list(self._applying):
            await asyncio.wait(applying, timeout=SETTLE_S_MAX)
            if not all(task.done() for task in applying):
                raise TimeoutError(f"{self.subscription}: acknowledgements of transactions are not saved yet")
        self._check_open()
        await self.subscription.cursor.settled()
        for operation in adopted:
            if operation.number not in self._claims:
                await self.parts.operations.delete(operation.key)
