"""`Ending`: how one transaction ends, from the request to the outcome.

The outcome is one compare-and-set of the header on the version that was read: whichever of several requests writes
first decides, and the others find a final header and either agree with it or are refused. A commit that comes right
behind its messages is written together with the record of the last of them, and overlaps with their way to the disk:

    session       messages -> log -------- sync -------> stored()
    coordinator   prepare(): header and record made ---> decide(): ONE write has the record and the header
                                                           |
                                                           v
                                                 the client is answered, participants see the header

So such a commit takes one sync of the segments and one write of the metadata store. The header says when the
transaction ended, from which its retention counts; one that was prepared too long ago is made anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from engine.clock import Clock
from engine.control.transactions.headers import HeaderRecords, HeaderWrite, TransactionView
from engine.control.transactions.operations import Recording
from engine.errors import EngineError, TransactionConflictError, UnknownOutcomeError
from engine.metadata.store import ConflictError, Record
from engine.model.transactions import TransactionState, id_text

_ATTEMPTS_MAX = 16
_PREPARED_MS_MAX = 1_000


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


class LastWrites(Protocol):
    """The messages that a client sent right in front of its commit. The session knows them; the coordinator asks."""

    @property
    def known(self) -> TransactionView | None:
        """The transaction as this broker knows it without reading, maybe an old version; None: it must be read."""

    def prepare(self) -> None:
        """Make what stored() will return, as far as that can be told now."""

    async def stored(self) -> Recording | None:
        """Wait until all messages are in the log; the operations to be recorded with the commit.

        None: a message was refused, lost or recorded already. Then the transaction stays open.
        """


class EndedTransaction(msgspec.Struct, frozen=True):
    """A transaction that was ended, and the record of the operations that were written with that, if there are any."""

    view: TransactionView
    record: Record | None = None


class Ending:
    """One request to end one transaction. Loop thread only; used once. Invalid moves raise TransactionConflictError."""

    def __init__(
        self,
        headers: HeaderRecords,
        clock: Clock,
        counters: TransactionCounters,
        number: int,
        state: TransactionState,
        accepted: tuple[int, ...] | None = None,
        mark: int | None = None,
    ) -> None:
        self._headers = headers
        self._clock = clock
        self._counters = counters
        self._number = number
        self._state = state
        self._accepted = accepted
        self._mark = mark
        self._prepared: HeaderWrite | None = None

    async def end(self) -> TransactionView:
        """Decide it now; a transaction that has ended so already stays as it is."""
        return (await self._decide(None))[0]

    async def end_behind(self, last: LastWrites) -> EndedTransaction | None:
        """Decide it together with the operations of its last messages. None: they are not stored as sent.

        Raises TransactionConflictError or UnknownOutcomeError where it was committed, and not with these operations.
        """
        last.prepare()
        known = last.known
        if known is None:
            known = await self._headers.find(self._number)
        if known is not None and not known.header.state.final:
            # Made before it may be written. A newer version in the store shows when it is.
            self._prepared = self._write_for(known)
        recording = await last.stored()
        if recording is None:
            return None
        if self._prepared is not None and self._is_old(self._prepared):
            self._prepared = None
        view, record = await self._decide(recording or None)
        if recording and record is None:
            raise self._not_recorded(view)
        return EndedTransaction(view, record)

    def _is_old(self, prepared: HeaderWrite) -> bool:
        return abs(self._clock.time_ms() - (prepared.header.finalized_ms or 0)) > _PREPARED_MS_MAX

    async def _decide(self, recording: Recording | None) -> tuple[TransactionView, Record | None]:
        """Write the header, and the record of these operations; the record is None when the header was final before."""
        for _ in range(_ATTEMPTS_MAX):
            if self._prepared is None:
                known = await self._headers.get(self._number)
                self._prepared = self._write_for(known)
                if self._prepared is None:
                    return known, None
            try:
                if recording is None:
                    view, record = await self._headers.put(self._prepared), None
                else:
                    view, record = await self._headers.put_with(self._prepared, recording)
            except ConflictError:
                self._counters.cas_conflict += 1
                self._prepared = None
                continue
            self._count()
            return view, record
        raise UnknownOutcomeError(
            f"the transaction {id_text(self._number)} is ended by many at once; ask for its state"
        )

    def _write_for(self, known: TransactionView) -> HeaderWrite | None:
        """None: it has ended in this state. Raises TransactionConflictError: it has ended in the other."""
        try:
            header = known.header.ended(self._state, self._clock.time_ms(), self._accepted, self._mark)
        except TransactionConflictError:
            self._counters.cas_reject += 1
            raise
        return None if header is known.header else self._headers.write(known.number, header, known.version)

    def _count(self) -> None:
        self._counters.cas_ok += 1
        if self._state is TransactionState.COMMITTED:
            self._counters.committed += 1
        else:
            self._counters.aborted += 1

    def _not_recorded(self, view: TransactionView) -> EngineError:
        if self._mark is not None and view.header.mark == self._mark:  # by this request: the store did not confirm it
            return UnknownOutcomeError(
                f"the transaction {view.id} is committed; it is unknown whether with all messages"
            )
        return TransactionConflictError(f"the transaction {view.id} was committed before all its messages came")
