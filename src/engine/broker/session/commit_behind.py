"""`CommitBehind`: a commit that the client sends right behind its messages, before any of them is acknowledged.

Without it a client waits for the receipts of its messages, and then commits: a sync of the segments, an operation
record in the metadata store, a second write of the store for the header. Here the steps overlap:

    END_TXN arrives     Operations.hold(): operation records of the transaction are not written yet
        │
    ready()             while the log is synced, the header and the record of all messages are made; wait until
        │               every frame is in the log. A frame was refused, dropped or recorded already: not ready
    commit()            ONE write of the metadata store has record and header: either both are there, or neither
        │
    answer the client, then the writers: their record was in time, so their messages are visible

One sync of the segments and one write of the store in all. If the commit fails, the held records are written on their
own (`Held.release`), and the client ends the transaction in the usual way.
"""

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
    """One commit. Loop thread only."""

    def __init__(
        self,
        connection: Connection,
        number: int,
        held: Held | None,
        frames: int,
        accepted: Sequence[str] | None,
        mark: int | None,
    ) -> None:
        """`held`: None when another request holds it. `frames`: as many as the client has sent."""
        self._connection = connection
        self._number = number
        self._held = held
        self._frames = frames
        self._accepted = accepted
        self._mark = mark
        self._coordinator = connection.host.transactions.coordinator
        self._sends = connection.sends.of(number)
        self._writes: list[Gathered] = []
        self._recording: Recording | None = None
        self._draft: EndDraft | None = None

    async def ready(self) -> bool:
        """Wait until all frames are in the log. False when one was refused, dropped, or recorded already."""
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
        known = self._connection.host.segments.transactions.headers.known(self._number)
        if known is None:
            self._draft = await self._coordinator.draft_commit(self._number, self._accepted, self._mark)
        else:
            self._draft = self._coordinator.draft_commit_of(known, self._accepted, self._mark)

    def _prepare(self, writes: list[Gathered]) -> None:
        self._writes = writes
        self._recording = Recording([write.writer.operation() for write in writes]) if writes else None

    async def commit(self) -> TransactionView:
        """Commit, once it is ready. Raises as TransactionCoordinator.end()."""
        try:
            view, record = await self._coordinator.commit_with(
                self._number, self._accepted, self._recording, self._mark, self._draft
            )
            if self._recording is not None and record is None:
                raise _not_recorded(view, self._mark)
        except BaseException:
            if self._held is not None:
                self._held.release(self._writes)  # these need a record of their own
            raise
        if self._recording is not None and record is not None:
            self._connection.host.segments.operations.written += 1
            asyncio.get_running_loop().call_soon(self._recorded, self._recording, record)  # after the answer
        return view

    def _recorded(self, recording: Recording, record: Record) -> None:
        """The writers have their record, in time. An error of one does not concern the others."""
        for write, operation in zip(self._writes, recording.written(record), strict=True):
            try:
                write.writer.recorded(operation)
            except Exception:
                log.exception("committed messages in %s could not be acknowledged", operation.facts.segment)
        self._connection.receipts.gather()


def _not_recorded(view: TransactionView, mark: int | None) -> EngineError:
    """The error where a transaction is committed, and not with the record of its last operations."""
    if mark is not None and view.header.mark == mark:  # by this commit: the store did not confirm it at first
        return UnknownOutcomeError(f"the transaction {view.id} is committed; it is unknown whether with all messages")
    return TransactionConflictError(f"the transaction {view.id} was committed before all its messages came")
