"""`TransactionalAppend`: one frame of a transaction, from its append until its answer.

The log tells it as it would a future, and it tells its producer as the log would: no future is made for a frame.

append to the log ──────────> durable ──┐
operation record ───────────> found ────┴─> the write can be decided ──> answered
                    └ late: find records      └ duplicates: find the originals, and check that all came in time

What happens as a rule is native (`PendingAppend`); here is the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from engine._native.serve.undecided import PendingAppend
from engine.errors import EngineError

if TYPE_CHECKING:
    from engine._native.serve.groups import Appended
    from engine.broker.transactions.writes import PendingWrite
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


class TransactionalAppend(PendingAppend):
    """What is rare about one frame of a transaction. `confirmed`: the answer, which TransactionBuffer.append_for() was
    given. No task runs in the usual case: the frame is in the log, and its record was in time.
    """

    __slots__ = ()

    def abandon(self) -> None:
        """Drop it without an answer. Idempotent."""
        self.drop()
        for task in (self.recording, self.task):
            if task is not None:
                task.cancel()

    # -- as Writer -----------------------------------------------------------------------------------------------------

    def operation(self) -> TransactionOperation:
        """As Writer."""
        operation: TransactionOperation = self.write.operation(self.buffer.segment_name)
        return operation

    def unrecorded(self, error: BaseException) -> None:
        """An attempt to write its record has failed, outcome unknown."""
        if self.write is not None and isinstance(error, Exception) and not self.confirmed.done():
            self.recording = self._start(self._insist(self.write))

    # -- the other cases ---------------------------------------------------------------------------------------------

    def _start(self, rest: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._run(rest))

    async def _run(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        except Exception as e:
            if not self.confirmed.done():
                self.refuse(e)

    def recorded_late(self) -> None:
        self.recording = self._start(self._find_records(self.write))

    def log_failed(self) -> None:
        """Withdraw the write, and answer with the error."""
        if self.sends is not None:
            self.sends.fail()
        withdrawn = None
        if self.write is not None and isinstance(self.error, EngineError):
            if self.gathers:
                self.write.found()  # it has no record
            withdrawn = self.buffer.withdraw(self.write)
        self.task = self._start(self._refuse(withdrawn))

    def check_places(self) -> None:
        self.task = self._start(self._check())

    async def _insist(self, write: PendingWrite) -> None:
        await self.buffer.record(write)
        await self._find_records(write)

    async def _find_records(self, write: PendingWrite) -> None:
        """The record is late, or may be a second one: an earlier one counts, also one written with the header."""
        self.late = True  # until check_in_time() says otherwise
        await self.buffer.find_records(write)
        write.found()
        self.go_on()

    async def _check(self) -> None:
        """Answer if the originals of duplicates are in the same transaction, and all records were in time."""
        assert self.span is not None
        assert self.places is not None
        versions = [] if self.write is None else [self.write.version]
        for place in self.places:
            if place.duplicate:
                versions.append(await self.buffer.version_of_original(place, self.number, self.span.producer))
        await self.buffer.check_in_time(self.number, [version for version in versions if version is not None])
        if not self.confirmed.done():
            self.accept()

    async def _refuse(self, withdrawn: asyncio.Future[None] | None) -> None:
        if withdrawn is not None:
            await withdrawn
        assert self.error is not None
        raise self.error
