"""`TransactionCoordinator`: begins, ends and forgets transactions (PIP-473).

All it knows stands in the metadata store, so any broker coordinates any transaction, and a failover replays nothing. It
tells no participant: they watch the headers of the transactions that concern them. A deadline that has passed and a
header that nobody needs are found through indexes, by whichever broker a partition belongs to; where two believe that
it is theirs, compare-and-set lets one of them do it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from engine.clock import Clock, ForwardSteps
from engine.control.transactions.collecting import TransactionCollector
from engine.control.transactions.headers import HeaderDraft, HeaderRecords, TransactionView
from engine.control.transactions.open_transactions import OpenTransactions
from engine.control.transactions.operations import Recording, operations_in
from engine.errors import (
    EngineError,
    InvalidArgumentError,
    TransactionConflictError,
    TransactionNotFoundError,
    UnknownOutcomeError,
)
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
_DRAFT_MS_MAX = 1_000  # what was drafted longer ago is drafted anew: retention is counted from when it has ended


@dataclass(slots=True)
class TransactionCounters:
    """What this broker's coordinator has done since it started."""

    begun: int = 0
    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
    collected: int = 0
    cas_ok: int = 0
    cas_conflict: int = 0
    cas_reject: int = 0


class EndDraft(msgspec.Struct, frozen=True):
    """How a transaction is to end. `expected`: the version of its header that this was made of."""

    header: HeaderDraft
    expected: int


class TransactionCoordinator:
    """Loop thread only. `settle` makes the participant of an operation apply what was decided, and forget it.

    It is asked for operations that are still there when a transaction's retention has ended: their participant is not
    served at the moment, or has failed before. It raises NotFoundError when there is no such participant any more.
    Headers stay until no operation is left, since they are what participants go by.
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

    async def begin(self, timeout_s: float, name: str | None = None) -> TransactionView:
        """A new transaction that is aborted after `timeout_s` seconds.

        With a `name`: the transaction of that name, when there is one that is open or committed; an open one gets the
        new deadline if that is later. One that was aborted is replaced. Raises InvalidArgumentError.
        """
        _check_timeout(timeout_s)
        if name is None:
            return await self._write_begin(self._draft(timeout_s, None))
        return await self._begin_named(timeout_s, check_name(name, "transaction name"))

    async def begin_some(self, timeout_s: float, count: int) -> list[TransactionView]:
        """New transactions at once, 1 to BEGUN_MAX, or fewer where the metadata store did not take all.

        Their ids differ in the last digit alone, so that the store keeps them side by side. Raises
        InvalidArgumentError, and what befell the first of them when there is none.
        """
        _check_timeout(timeout_s)
        if not 1 <= count <= BEGUN_MAX:
            raise InvalidArgumentError(f"{count} transactions are to be begun at once; 1 to {BEGUN_MAX} are right")
        first = self._draft(timeout_s, None)
        found = await self._headers.put_new([first.beside(first.number ^ i) for i in range(count)])
        begun = [view for view in found if view is not None]
        self.counters.begun += len(begun)
        if len(begun) == count:
            return begun
        others = [self._write_begin(self._redraft(first)) for _ in range(count - len(begun))]
        more = await asyncio.gather(*others, return_exceptions=True)
        begun += [view for view in more if isinstance(view, TransactionView)]
        if not begun and isinstance(more[0], BaseException):
            raise more[0]
        return begun

    async def _write_begin(self, draft: HeaderDraft) -> TransactionView:
        for _ in range(_ATTEMPTS_MAX):
            try:
                begun = await self._headers.put(draft, ABSENT)
            except ConflictError:
                draft = self._redraft(draft)
                continue
            self.counters.begun += 1
            return begun
        raise EngineError("no free transaction id was found")

    def _redraft(self, draft: HeaderDraft) -> HeaderDraft:
        """With another id, since that one is taken."""
        return self._headers.draft(self._rng.getrandbits(ID_BITS), draft.header)

    async def _begin_named(self, timeout_s: float, name: str) -> TransactionView:
        for _ in range(_ATTEMPTS_MAX):
            alias = await self._metadata.get(keys.transaction_name(name))
            if alias is not None and (known := await self.find(parse_id(alias.value.decode()))) is not None:
                if known.header.state is TransactionState.COMMITTED:
                    return known
                if known.header.state is TransactionState.OPEN:
                    if (extended := await self._extend(known, timeout_s)) is not None:
                        return extended
                    continue  # it has just ended
            made = await self._write_begin(self._draft(timeout_s, name))
            if await self._point(name, made, ABSENT if alias is None else alias.stat.version):
                return made
            await self.end(made.number, TransactionState.ABORTED)  # somebody else was faster: theirs is it
        raise EngineError(f"the transaction {name!r} is begun by many at once; try again")

    def _draft(self, timeout_s: float, name: str | None) -> HeaderDraft:
        now = self._clock.time_ms()
        header = TransactionHeader(TransactionState.OPEN, now + round(timeout_s * 1000), now, name=name)
        return self._headers.draft(self._rng.getrandbits(ID_BITS), header)

    async def _extend(self, known: TransactionView, timeout_s: float) -> TransactionView | None:
        """With a deadline at least so far away; None when it has ended meanwhile, or another broker changed it."""
        span_ms, left_s = round(timeout_s * 1000), self.open.left_s(known)
        if left_s is None:  # the clock was set back since: whatever is left of it, it is not to get less
            span_ms = max(span_ms, known.header.span_ms)
        elif left_s >= timeout_s:
            return known
        header = known.header.renewed(self._clock.time_ms(), span_ms)
        try:
            return await self._headers.put(self._headers.draft(known.number, header), known.version)
        except ConflictError:
            return None

    async def _point(self, name: str, made: TransactionView, expected: Expected | int) -> bool:
        """Make the name mean this transaction. False when it means another by now."""
        key, value = keys.transaction_name(name), made.id.encode()
        try:
            await self._metadata.put(key, value, expected)
        except ConflictError:
            return False
        except OutcomeUnknownError:
            found = await self._metadata.get(key)
            return found is not None and found.value == value
        return True

    # -- ending ----------------------------------------------------------------------------------------------

    async def end(self, number: int, state: TransactionState, accepted: Sequence[str] | None = None) -> TransactionView:
        """Commit or abort it: one compare-and-set, which is when it is decided. The same once more changes nothing.

        `accepted`: the attempts whose operations count; None: all. Raises TransactionNotFoundError;
        TransactionConflictError when it has ended the other way; UnknownOutcomeError: asking again resolves it.
        """
        return (await self._end(number, state, accepted_numbers(accepted)))[0]

    async def draft_commit(
        self, number: int, accepted: Sequence[str] | None, mark: int | None = None
    ) -> EndDraft | None:
        """What commit_with() is to write, made before it may be written. None: it has ended, or is unknown."""
        known = await self.find(number)
        return None if known is None else self.draft_commit_of(known, accepted, mark)

    def draft_commit_of(
        self, known: TransactionView, accepted: Sequence[str] | None, mark: int | None = None
    ) -> EndDraft | None:
        """The same, of what is known to the caller; where the store has something newer, that is looked at later."""
        numbers = accepted_numbers(accepted)
        if known.header.state.final:
            return None
        return self._draft_end(known, TransactionState.COMMITTED, numbers, mark)

    async def commit_with(
        self,
        number: int,
        accepted: Sequence[str] | None,
        recording: Recording | None,
        mark: int | None = None,
        draft: EndDraft | None = None,
    ) -> tuple[TransactionView, Record | None]:
        """Commit it, and write down its last operations: both or nothing; the record, which came in time.

        None when it was committed before; or there are no operations. Raises as end(). `draft`: by draft_commit().
        """
        if draft is not None and abs(self._clock.time_ms() - (draft.header.header.finalized_ms or 0)) > _DRAFT_MS_MAX:
            draft = None
        state = TransactionState.COMMITTED
        return await self._end(number, state, accepted_numbers(accepted), recording, mark, draft)

    async def _end(
        self,
        number: int,
        state: TransactionState,
        accepted: tuple[int, ...] | None,
        recording: Recording | None = None,
        mark: int | None = None,
        draft: EndDraft | None = None,
    ) -> tuple[TransactionView, Record | None]:
        for _ in range(_ATTEMPTS_MAX):
            if draft is None:
                known = await self.get(number)
                draft = self._draft_end(known, state, accepted, mark)
                if draft is None:
                    return known, None
            try:
                ended, record = await self._write_end(draft, recording)
            except ConflictError:
                self.counters.cas_conflict += 1
                draft = None
                continue
            self.counters.cas_ok += 1
            self._count_end(state)
            return ended, record
        raise UnknownOutcomeError(f"the transaction {id_text(number)} is ended by many at once; ask for its state")

    def _draft_end(
        self, known: TransactionView, state: TransactionState, accepted: tuple[int, ...] | None, mark: int | None
    ) -> EndDraft | None:
        """None: it has ended so. Raises TransactionConflictError: it has ended the other way."""
        try:
            header = known.header.ended(state, self._clock.time_ms(), accepted, mark)
        except TransactionConflictError:
            self.counters.cas_reject += 1
            raise
        return None if header is known.header else EndDraft(self._headers.draft(known.number, header), known.version)

    async def _write_end(self, draft: EndDraft, recording: Recording | None) -> tuple[TransactionView, Record | None]:
        if recording is not None:
            return await self._headers.put_with(draft.header, draft.expected, recording)
        return await self._headers.put(draft.header, draft.expected), None

    def _count_end(self, state: TransactionState) -> None:
        if state is TransactionState.COMMITTED:
            self.counters.committed += 1
        else:
            self.counters.aborted += 1

    # -- looking ---------------------------------------------------------------------------------------------

    async def get(self, number: int) -> TransactionView:
        """How it stands. Raises TransactionNotFoundError: it never was, or was forgotten after its retention."""
        known = await self.find(number)
        if known is None:
            raise TransactionNotFoundError(
                f"there is no transaction {id_text(number)}; it never was, or it ended longer ago than it is kept"
            )
        return known

    async def find(self, number: int) -> TransactionView | None:
        """The same; None when there is none."""
        return await self._headers.find(number)

    async def list_open(self, limit: int | None = None) -> list[TransactionView]:
        """Those that have not ended, of each partition by their deadlines."""
        return await self._headers.list_open(limit)

    def every_open(self) -> AsyncIterator[TransactionView]:
        """All that have not ended, page by page; one may come twice."""
        return self._headers.every_open()

    async def operations(self, number: int) -> list[TransactionOperation]:
        """Its operations whose participants have not applied the outcome yet; all of an open one."""
        prefix = f"{keys.transaction_ops(id_text(number))}/"
        found = await self._metadata.list(prefix, keys.prefix_end(prefix))
        return [operation.facts for record in found for operation in operations_in(record)]

    # -- sweeping --------------------------------------------------------------------------------------------

    async def abort_expired(self, partition: int) -> int:
        """Abort the open ones of a partition whose time is over; how many that were."""
        self._steps.look()
        return sum([await self._expire(known) for known in await self.open.overdue(partition)])

    async def _expire(self, known: TransactionView) -> bool:
        header = known.header.ended(TransactionState.ABORTED, self._clock.time_ms(), expired=True)
        try:
            await self._headers.put(self._headers.draft(known.number, header), known.version)
        except ConflictError:
            return False  # it has ended, or got more time
        self.counters.timed_out += 1
        log.info("transaction %s was not ended in time, and is aborted", known.id)
        return True

    async def collect(self, partition: int) -> int:
        """Forget those of a partition whose retention is over and that no participant needs any more; how many."""
        collected = await self._collector.collect(partition)
        self.counters.collected += collected
        return collected


def _check_timeout(timeout_s: float) -> None:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)):
        raise InvalidArgumentError(f"timeout is {timeout_s!r:.80}; a number of seconds is right")
    if not TRANSACTION_TIMEOUT_S_MIN <= timeout_s <= TRANSACTION_TIMEOUT_S_MAX:
        raise InvalidArgumentError(
            f"timeout is {timeout_s} s; {TRANSACTION_TIMEOUT_S_MIN} to {TRANSACTION_TIMEOUT_S_MAX} are right"
        )
