"""`CommitBehind`: a commit that came right behind what was sent in its transaction, before any of that was answered."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from engine.control.transactions.operations import Recording
from engine.errors import EngineError, TransactionConflictError, UnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.broker.session.connection import Connection
    from engine.broker.transactions.operations import Gathered, Held
    from engine.control.transactions.coordinator import EndDraft
    from engine.control.transactions.headers import TransactionView
    from engine.metadata.store import Record

log = logging.getLogger(__name__)


class CommitBehind:
    """One of them. Loop thread only.

    When everything is in the log, its operation record and the header are written at once. So a commit takes one sync
    of the segments and one of the metadata store, and the record is known to have come in time. What is written is made
    while the log is.
    """

    def __init__(
        self,
        connection: Connection,
        number: int,
        held: Held | None,
        frames: int,
        accepted: Sequence[str] | None,
        mark: int | None,
    ) -> None:
        """`held`: None when somebody else holds it; `frames`: how many the client has sent."""
        self._connection = connection
        self._number = number
        self._held = held
        self._frames = frames
        self._accepted = accepted
        self._mark = mark
        self._coordinator = connection.broker.transactions.coordinator
        self._sends = connection.sends.of(number)
        self._writes: list[Gathered] = []
        self._recording: Recording | None = None
        self._draft: EndDraft | None = None

    async def ready(self) -> bool:
        """Wait until everything that was sent is in the log; False when something was not taken as it came."""
        held, sends = self._held, self._sends
        if held is None:
            return False
        writes = held.of(sends)
        if len(writes) == sends.open:
            self._prepare(writes)
        await self._draft_header()
        if not await sends.complete(self._frames, held):
            return False
        writes = held.take(sends)
        if writes != self._writes:
            self._prepare(writes)
        return True

    async def _draft_header(self) -> None:
        known = self._connection.broker.hosting.transactions.headers.known(self._number)
        if known is None:
            self._draft = await self._coordinator.draft_commit(self._number, self._accepted, self._mark)
        else:
            self._draft = self._coordinator.draft_commit_of(known, self._accepted, self._mark)

    def _prepare(self, writes: list[Gathered]) -> None:
        self._writes = writes
        self._recording = Recording([write.writer.operation() for write in writes]) if writes else None

    async def commit(self) -> TransactionView:
        """Do it, once it is ready. Raises as TransactionCoordinator.end()."""
        try:
            view, record = await self._coordinator.commit_with(
                self._number, self._accepted, self._recording, self._mark, self._draft
            )
            if self._recording is not None and record is None:
                raise _not_recorded(view, self._mark)
        except BaseException:
            if self._held is not None:
                self._held.release(self._writes)  # they need a record of their own
            raise
        if self._recording is not None and record is not None:
            self._connection.broker.hosting.operations.written += 1
            asyncio.get_running_loop().call_soon(self._tell, self._recording, record)  # the client is answered first
        return view

    def _tell(self, recording: Recording, record: Record) -> None:
        """Those who wrote have their records, in time. What befalls one of them is none of the others'."""
        for write, operation in zip(self._writes, recording.written(record), strict=True):
            try:
                write.writer.recorded(operation)
            except Exception:
                log.exception("what was written to %s and is committed is not told", operation.facts.segment)
        self._connection.receipts.gather()


def _not_recorded(view: TransactionView, mark: int | None) -> EngineError:
    """Why a transaction is committed, and no record of its last operations was written with that."""
    if mark is not None and view.header.mark == mark:  # it was, by a store that did not say so
        return UnknownOutcomeError(f"the transaction {view.id} is committed; whether with all that was sent is unknown")
    return TransactionConflictError(f"the transaction {view.id} was committed before all that was sent came")
