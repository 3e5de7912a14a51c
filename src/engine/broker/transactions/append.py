"""`TransactionalAppend`: one frame of a transaction, from its append until its answer.

The log tells it as it would a future, and it tells its producer as the log would: no future is made for a frame.

append to the log ──────────> durable ──┐
operation record ───────────> found ────┴─> the write can be decided ──> answered
                    └ late: find records      └ duplicates: find the originals, and check that all came in time
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from engine.control.transactions.operations import RecordedOperation
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine._native.serve.groups import Appended
    from engine.broker.transactions.buffer import TransactionBuffer
    from engine.broker.transactions.sends import TransactionSends
    from engine.broker.transactions.writes import PendingWrite, Span
    from engine.model.transactions import TransactionOperation

Places = list["Appended"]


class Answer(Protocol):
    """Where to say the outcome of a frame: a future, or what stands for one."""

    def done(self) -> bool:
        """Whether it has an outcome."""

    def cancelled(self) -> bool:
        """Whether it was dropped."""

    def exception(self) -> BaseException | None:
        """Why it has failed, once it has an outcome."""

    def set_result(self, places: Places, /) -> None:
        """The frame is durable, and in the transaction."""

    def set_exception(self, error: BaseException, /) -> None:
        """It is not."""

    def cancel(self) -> bool:
        """Drop it."""


class TransactionalAppend:
    """Loop thread only. `confirmed`: the answer, which TransactionBuffer.append_for() was given. A `Waiter` of the log.

    No task runs in the usual case: the frame is in the log, and its record was in time.
    """

    __slots__ = ("_buffer", "_late", "_number", "_recording", "_sends", "_span", "_task", "_write", "confirmed",
                 "error", "places")  # fmt: skip

    def __init__(
        self,
        buffer: TransactionBuffer,
        number: int,
        sends: TransactionSends | None,
        confirmed: Answer,
    ) -> None:
        self.confirmed = confirmed
        self.places: Places | None = None  # once the log has it
        self.error: BaseException | None = None  # of the log
        self._buffer = buffer
        self._number = number
        self._span: Span | None = None
        self._write: PendingWrite | None = None
        self._sends = sends
        self._late = False  # the transaction had ended before its record was written
        self._recording: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, span: Span, write: PendingWrite | None) -> None:
        """The log has taken it. `write`: None when all its entries are duplicates."""
        self._span = span
        self._write = write
        if self.places is not None:  # at once
            self._buffer.landed(self)

    # -- as a waiter of the log --------------------------------------------------------------------------------------

    def done(self) -> bool:
        return self.confirmed.done()

    def set_result(self, places: Places, /) -> None:
        self.places = places
        if self._span is not None:
            self._buffer.landed(self)

    def set_exception(self, error: BaseException, /) -> None:
        self.error = error
        if self._span is not None:
            self._buffer.landed(self)

    def abandon(self) -> None:
        """Drop it without an answer. Idempotent."""
        self._cancel()
        for task in (self._recording, self._task):
            if task is not None:
                task.cancel()

    # -- the usual case ----------------------------------------------------------------------------------------------

    def logged(self) -> None:
        """The log has it, durably, or has failed."""
        if self.confirmed.done():
            return
        if self.error is not None:
            self._failed(self.error)
            return
        if self._sends is not None:
            self._sends.logged()
        if self._write is not None:
            self._write.durable = True
        self._go_on()

    def operation(self) -> TransactionOperation:
        """As Writer."""
        assert self._write is not None
        return self._write.operation(self._buffer.segment_name)

    @property
    def waits(self) -> bool:
        """As Writer."""
        return not self.confirmed.done()

    def recorded(self, record: RecordedOperation) -> None:
        """Its operation record is durable."""
        write = self._write
        if write is not None and not self.confirmed.done():
            write.add_record(record)
            if record.late:
                self._recording = self._start(self._find_records(write))
                return
            write.found()
            self._go_on()

    def unrecorded(self, error: BaseException) -> None:
        """An attempt to write its record has failed, outcome unknown."""
        if self._write is not None and isinstance(error, Exception) and not self.confirmed.done():
            self._recording = self._start(self._insist(self._write))

    def _go_on(self) -> None:
        """Answer if the frame is durable and recorded."""
        write = self._write
        if write is not None:
            if not write.ready:
                return
            self._buffer.became_ready(self._number)
        places = self.places
        assert places is not None
        if self._late or any(place.duplicate for place in places):
            self._task = self._start(self._check(places))
        else:
            self._confirm(places)

    def _confirm(self, places: Places) -> None:
        self.confirmed.set_result(places)
        self._over()

    def _cancel(self) -> None:
        if self.confirmed.cancel():
            self._over()

    def _over(self) -> None:
        self._buffer.confirmed(self)
        if self._sends is not None:
            self._sends.answered(self.confirmed)

    # -- the other cases ---------------------------------------------------------------------------------------------

    def _start(self, rest: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._run(rest))

    async def _run(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        except Exception as e:
            if not self.confirmed.done():
                self.confirmed.set_exception(e)
                self._over()

    def _failed(self, error: BaseException) -> None:
        """The append has failed: withdraw the write, and answer with the error."""
        if self._sends is not None:
            self._sends.fail()
        withdrawn = None
        if self._write is not None and isinstance(error, EngineError):
            withdrawn = self._buffer.withdraw(self._write)
        self._task = self._start(self._refuse(error, withdrawn))

    async def _insist(self, write: PendingWrite) -> None:
        await self._buffer.record(write)
        await self._find_records(write)

    async def _find_records(self, write: PendingWrite) -> None:
        """The record is late, or may be a second one: an earlier one counts, also one written with the header."""
        self._late = True  # until check_in_time() says otherwise
        await self._buffer.find_records(write)
        write.found()
        if self.places is not None:
            self._go_on()

    async def _check(self, places: Places) -> None:
        """Answer if the originals of duplicates are in the same transaction, and all records were in time."""
        assert self._span is not None
        versions = [] if self._write is None else [self._write.version]
        for place in places:
            if place.duplicate:
                versions.append(await self._buffer.version_of_original(place, self._number, self._span.producer))
        await self._buffer.check_in_time(self._number, [version for version in versions if version is not None])
        if not self.confirmed.done():
            self._confirm(places)

    async def _refuse(self, error: BaseException, withdrawn: asyncio.Future[None] | None) -> None:
        if withdrawn is not None:
            await withdrawn
        raise error
