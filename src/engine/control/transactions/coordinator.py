"""`TransactionCoordinator`: begins, ends and collects transactions (PIP-473).

    begin     a header in state OPEN, under a random id, indexed by its deadline
    publish   participants, the owners of segments, append messages that carry the id, hidden from readers, and write an
              operation record for each append or acknowledgement
    decide    ONE compare-and-set of the header, OPEN to COMMITTED or ABORTED: this write is the outcome (ending.py)
    settle    participants, which watch headers, make the messages visible or drop them, and delete their records
    collect   after its retention, and when no operation record is left, the header is deleted (collecting.py)

An operation counts if its record was written before the header was decided: the store orders all writes, so every
participant comes to the same answer at any time (model/transactions.py). All state is in the metadata store, so any
broker coordinates any transaction, and a failover replays nothing. Overdue and collectable headers are found through
indexes, by the broker that a partition belongs to; if two brokers believe so, compare-and-set lets one of them act.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from engine.clock import Clock, ForwardSteps
from engine.control.transactions.collecting import TransactionCollector
from engine.control.transactions.ending import EndedTransaction, Ending, LastWrites, TransactionCounters
from engine.control.transactions.headers import HeaderRecords, HeaderWrite, TransactionView
from engine.control.transactions.open_transactions import OpenTransactions
from engine.control.transactions.operations import operations_in
from engine.errors import EngineError, InvalidArgumentError
from engine.limits import (
    TRANSACTION_NAMED_RETENTION_S,
    TRANSACTION_RETENTION_S,
    TRANSACTION_TIMEOUT_S_MAX,
    TRANSACTION_TIMEOUT_S_MIN,
)
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, Expected, MetadataStore, OutcomeUnknownError, Record
from engine.model.names import check_name
from engine.model.transactions import (
    BEGUN_MAX,
    ID_BITS,
    TransactionHeader,
    TransactionOperation,
    TransactionState,
    accepted_numbers,
    id_text,
    parse_id,
)

log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 16


class TransactionCoordinator:
    """Loop thread only. `settle` makes the participant of an operation apply the outcome and delete its record.

    It is called for operations that remain when a transaction's retention has ended: their participant is not served at
    the moment, or failed before. It raises NotFoundError when the participant no longer exists.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        rng: random.Random,
        settle: Callable[[TransactionOperation], Awaitable[None]],
        *,
        retention_s: float = TRANSACTION_RETENTION_S,
        named_retention_s: float = TRANSACTION_NAMED_RETENTION_S,
    ) -> None:
        self.counters = TransactionCounters()
        self._metadata = metadata
        self._clock = clock
        self._rng = rng
        self._headers = HeaderRecords(metadata, round(retention_s * 1000), round(named_retention_s * 1000))
        self._steps = ForwardSteps(clock)
        self.open = OpenTransactions(self._headers, clock, self._steps)
        self._collector = TransactionCollector(metadata, self._headers, self._steps, settle)

    # -- beginning -------------------------------------------------------------------------------------------

    async def begin(self, timeout_s: float, name: str | None = None, owner: str | None = None) -> TransactionView:
        """A new transaction, which is aborted after `timeout_s` seconds.

        With a `name`: the open or committed transaction of that name, if there is one; an open one gets the new
        deadline if that is later. An aborted one is replaced. `owner`: the role that begins it; a name is its own, so
        that no role learns which names others use. Raises InvalidArgumentError.
        """
        _check_timeout(timeout_s)
        if name is None:
            return await self._write_begin(self._new(timeout_s, None, owner))
        return await self._begin_named(timeout_s, check_name(name, "transaction name"), owner)

    async def begin_some(self, timeout_s: float, count: int, owner: str | None = None) -> list[TransactionView]:
        """Begin 1 to BEGUN_MAX transactions with one write; fewer when the metadata store refused some.

        Their ids differ in the last digit only, so that the store keeps them side by side. Raises InvalidArgumentError,
        and the first error when none was begun.
        """
        _check_timeout(timeout_s)
        if not 1 <= count <= BEGUN_MAX:
            raise InvalidArgumentError(f"count must be 1 to {BEGUN_MAX}, got {count}")
        first = self._new(timeout_s, None, owner)
        views = await self._headers.put_new([first.beside(first.number ^ i) for i in range(count)])
        begun = [view for view in views if view is not None]
        self.counters.begun += len(begun)
        if len(begun) == count:
            return begun
        others = [self._write_begin(self._with_other_id(first)) for _ in range(count - len(begun))]
        more = await asyncio.gather(*others, return_exceptions=True)
        begun += [view for view in more if isinstance(view, TransactionView)]
        if not begun and isinstance(more[0], BaseException):
            raise more[0]
        return begun

    async def _write_begin(self, write: HeaderWrite) -> TransactionView:
        for _ in range(_ATTEMPTS_MAX):
            try:
                begun = await self._headers.put(write)
            except ConflictError:
                write = self._with_other_id(write)
                continue
            self.counters.begun += 1
            return begun
        raise EngineError("no free transaction id was found")

    def _with_other_id(self, write: HeaderWrite) -> HeaderWrite:
        return self._headers.write(self._rng.getrandbits(ID_BITS), write.header, ABSENT)

    async def _begin_named(self, timeout_s: float, name: str, owner: str | None) -> TransactionView:
        key = keys.transaction_name(name, owner)
        for _ in range(_ATTEMPTS_MAX):
            alias, known = await self._named(key)
            if known is None and owner is not None:
                known = await self._named_before(name, owner)
            if known is not None:
                if known.header.state is TransactionState.COMMITTED:
                    return known
                if known.header.state is TransactionState.OPEN:
                    if (extended := await self._extend(known, timeout_s)) is not None:
                        return extended
                    continue  # it has just ended
            made = await self._write_begin(self._new(timeout_s, name, owner))
            if await self._point(key, made, ABSENT if alias is None else alias.stat.version):
                return made
            # Another request was faster: its transaction has the name.
            await self.end(made.number, TransactionState.ABORTED)
        raise EngineError(f"the transaction {name!r} is being begun by other requests; try again")

    async def _named(self, key: str) -> tuple[Record | None, TransactionView | None]:
        """The record of a name, and the transaction that it is bound to."""
        alias = await self._metadata.newest.get(key)
        return alias, None if alias is None else await self.find(parse_id(alias.value.decode()))

    async def _named_before(self, name: str, owner: str) -> TransactionView | None:
        """The role's transaction of a name which a release wrote in which all roles shared the names (to 0.1.0a6)."""
        _, known = await self._named(keys.transaction_name(name, None))
        return known if known is not None and known.header.owner == owner else None

    def _new(self, timeout_s: float, name: str | None, owner: str | None) -> HeaderWrite:
        now = self._clock.time_ms()
        header = TransactionHeader(TransactionState.OPEN, now + round(timeout_s * 1000), now, name=name, owner=owner)
        return self._headers.write(self._rng.getrandbits(ID_BITS), header, ABSENT)

    async def _extend(self, known: TransactionView, timeout_s: float) -> TransactionView | None:
        """Extend the deadline to at least that far; None when it has ended, or another broker changed it."""
        span_ms, left_s = round(timeout_s * 1000), self.open.left_s(known)
        if left_s is None:  # the clock was set back since: never shorten the remaining time
            span_ms = max(span_ms, known.header.span_ms)
        elif left_s >= timeout_s:
            return known
        header = known.header.renewed(self._clock.time_ms(), span_ms)
        try:
            return await self._headers.put(self._headers.write(known.number, header, known.version))
        except ConflictError:
            return None

    async def _point(self, key: str, made: TransactionView, expected: Expected | int) -> bool:
        """Bind the name with this key to the transaction. False when it is bound to another by now."""
        value = made.id.encode()
        try:
            await self._metadata.put(key, value, expected)
        except ConflictError:
            return False
        except OutcomeUnknownError:
            found = await self._metadata.newest.get(key)
            return found is not None and found.value == value
        return True

    # -- ending ----------------------------------------------------------------------------------------------

    async def end(self, number: int, state: TransactionState, accepted: Sequence[str] | None = None) -> TransactionView:
        """Commit or abort it: one compare-and-set, which decides it. A repeated request changes nothing.

        `accepted`: the attempts whose operations count; None: all. Raises TransactionNotFoundError;
        TransactionConflictError when it has ended the other way; UnknownOutcomeError: asking again resolves it.
        """
        return await self._ending(number, state, accepted).end()

    def commit_behind(
        self, number: int, accepted: Sequence[str] | None, mark: int | None, last: LastWrites
    ) -> Coroutine[Any, Any, EndedTransaction | None]:
        """Commit it as soon as its last messages are stored, with one write for their record and the header.

        `mark`: by which a committer recognises its own commit. None: the messages are not stored as they were sent,
        and the transaction stays open. Raises as end() does; TransactionConflictError also when it was committed
        before, without these messages.
        """
        return self._ending(number, TransactionState.COMMITTED, accepted, mark).end_behind(last)

    def _ending(
        self, number: int, state: TransactionState, accepted: Sequence[str] | None, mark: int | None = None
    ) -> Ending:
        numbers = accepted_numbers(accepted)
        return Ending(self._headers, self._clock, self.counters, number, state, numbers, mark)

    # -- queries ---------------------------------------------------------------------------------------------

    async def get(self, number: int) -> TransactionView:
        """The transaction. Raises TransactionNotFoundError: it never was, or was collected after its retention."""
        return await self._headers.get(number)

    async def find(self, number: int) -> TransactionView | None:
        """The transaction; None when there is none."""
        return await self._headers.find(number)

    async def list_open(self, limit: int | None = None) -> list[TransactionView]:
        """Open transactions, of each partition by deadline."""
        return await self._headers.list_open(limit)

    def every_open(self) -> AsyncIterator[TransactionView]:
        """All open transactions, page by page; one may come twice."""
        return self._headers.every_open()

    async def operations(self, number: int) -> list[TransactionOperation]:
        """The operations whose participants have not applied the outcome yet; all, while it is open."""
        prefix = f"{keys.transaction_ops(id_text(number))}/"
        found = await self._metadata.newest.list(prefix, keys.prefix_end(prefix))
        return [operation.facts for record in found for operation in operations_in(record)]

    # -- sweeping --------------------------------------------------------------------------------------------

    async def abort_expired(self, partitions: Sequence[int]) -> int:
        """Abort the transactions of these partitions, in ascending order, whose timeout has passed; their number."""
        self._steps.sample()
        used = await self._headers.with_open(partitions)
        for partition in set(partitions).difference(used):
            self.open.emptied(partition)
        return sum([await self._expire(known) for partition in used for known in await self.open.overdue(partition)])

    async def _expire(self, known: TransactionView) -> bool:
        header = known.header.ended(TransactionState.ABORTED, self._clock.time_ms(), expired=True)
        try:
            await self._headers.put(self._headers.write(known.number, header, known.version))
        except ConflictError:
            return False  # it has ended, or got a later deadline
        self.counters.timed_out += 1
        log.info("transaction %s has timed out and is aborted", known.id)
        return True

    async def collect(self, partitions: Sequence[int]) -> int:
        """Delete transactions of these partitions, in ascending order, that are not needed any more; their number.

        That is, whose retention has passed and whose participants have applied what was decided.
        """
        collected = 0
        for partition in await self._headers.with_due(partitions, self._steps):
            done = await self._collector.collect(partition)
            self.counters.collected += done
            collected += done
        return collected


def _check_timeout(timeout_s: float) -> None:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise InvalidArgumentError(f"timeout must be a number of seconds, got {timeout_s!r:.80}")
    if not TRANSACTION_TIMEOUT_S_MIN <= timeout_s <= TRANSACTION_TIMEOUT_S_MAX:
        raise InvalidArgumentError(
            f"timeout must be {TRANSACTION_TIMEOUT_S_MIN} to {TRANSACTION_TIMEOUT_S_MAX} s, got {timeout_s}"
        )
