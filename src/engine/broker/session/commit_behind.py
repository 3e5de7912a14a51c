"""`CommitBehind`: a commit that the client sends right behind its messages, before any of them is acknowledged.

A client that first waits for its receipts pays for a sync of the segments, a write of the metadata store for the
operation record, and another write for the header, one after the other. Here they overlap:

    END_TXN        Operations.hold(), in the turn of the loop in which the last frames came: their record is not written
       │
    prepare()      while the log is synced, the coordinator makes the record and the header
       │
    stored()       every frame is in the log, and the writes are taken from the held ones. If a frame was refused or
       │           dropped, or its record is written already, the transaction stays open
       │
    one write of the metadata store for record and header: both are there, or neither
       │
    the client is answered; then the writers: their record was in time, so the messages are visible

In all one sync of the segments and one write of the store. If the commit fails, the writes are released and get a
record of their own, and the client ends the transaction in the usual way.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from engine.broker.transactions.writes import parts_of, recording_of_writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.broker.session.connection import Connection
    from engine.broker.transactions.operations import Held
    from engine.control.transactions.coordinator import TransactionCoordinator
    from engine.control.transactions.headers import TransactionView
    from engine.control.transactions.operations import Recording
    from engine.metadata.store import Record

log = logging.getLogger(__name__)


class CommitBehind:
    """The last messages of one commit, as the coordinator asks for them (LastWrites). Loop thread only."""

    def __init__(self, connection: Connection, number: int, held: Held, frames: int) -> None:
        """`frames`: as many as the client has sent."""
        self._connection = connection
        self._segments = connection.host.segments
        self._number = number
        self._held = held
        self._frames = frames
        self._sends = connection.sends.of(number)
        self._writes: list[Any] = []  # TransactionalAppends
        self._recording: Recording | None = None  # of these writes
        self._taken = False  # the writes are not held any more

    async def commit(
        self, coordinator: TransactionCoordinator, accepted: Sequence[str] | None, mark: int | None
    ) -> TransactionView | None:
        """Commit it; None: it stays open. Raises as TransactionCoordinator.commit_behind()."""
        try:
            ended = await coordinator.commit_behind(self._number, accepted, mark, self)
        except BaseException:
            if self._taken:
                self._held.release(self._writes)  # these need a record of their own
            raise
        if ended is None:
            return None
        if ended.record is not None:
            self._segments.operations.written += 1
            asyncio.get_running_loop().call_soon(self._recorded, ended.record)  # after the answer
        return ended.view

    @property
    def known(self) -> TransactionView | None:
        return self._segments.transactions.headers.known(self._number)

    def prepare(self) -> None:
        writes = self._held.of(self._sends)
        if len(writes) == self._sends.open:
            self._recording_of(writes)

    async def stored(self) -> Recording | None:
        if not await self._sends.complete(self._frames, self._held):
            return None
        self._taken = True
        return self._recording_of(self._held.take(self._sends))

    def _recording_of(self, writes: list[Any]) -> Recording:
        if self._recording is None or writes != self._writes:
            self._writes = writes  # before what may fail: they are released if it does
            self._recording = recording_of_writes(writes)
        return self._recording

    def _recorded(self, record: Record) -> None:
        """The writers have their record, in time. An error of one does not concern the others."""
        writes, version = self._writes, record.stat.version
        for write, part in zip(writes, parts_of(writes, record.key), strict=True):
            try:
                write.recorded_in_time(part, version)
            except Exception:
                log.exception("committed messages in %s could not be acknowledged", part.segment)
        self._connection.receipts.gather()
