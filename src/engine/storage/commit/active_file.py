"""The active file of a segment under group commit: rolling to the next, cutting a failed write off, leaving a file.

A failed write is cut off again. A failed sync is never retried: the file is abandoned at its last durable byte, what
was durable is read again from the medium, and a new file continues (DESIGN section 6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from engine.aio.workers import Work, run
from engine.errors import CorruptionError, EngineError, NotOwnerError, StorageError, UnknownOutcomeError
from engine.storage.commit.group import Group
from engine.storage.commit.pipeline import Failure, Pipeline, fail_all
from engine.storage.disk.config import FSYNC, storage_error
from engine.storage.disk.disk import File
from engine.storage.file.format import State
from engine.storage.file.logfile import LogFile, SyncFailed, zeros_ahead
from engine.storage.file.recovery import verify_tail
from engine.storage.file.writer import WriteJob, write_job

_log = logging.getLogger("engine.storage")


class ActiveFile(Pipeline):
    """What happens to the active file besides being written. Loop thread only."""

    __slots__ = ()

    def _pump(self) -> None:
        """Start what can be started."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Wait until nothing is on its way."""
        raise NotImplementedError

    def _lapsed(self) -> bool:
        """Whether the lease is over; then all that waits has failed. Asked after a sync and before it is told of."""
        if self._lease is None or self._lease.held:
            return False
        self.lapse(self._lapse_error())
        return True

    def _lapse_error(self) -> NotOwnerError:
        path = "the segment" if self.file is None else self.file.path
        return NotOwnerError(f"{path}: this broker may own it no more; what was on its way may be in the log or not")

    def _post(self, file: LogFile, make: Callable[[File], Work], done: Callable[[BaseException | None], None]) -> None:
        """Post the work that `make` makes for the open file."""
        try:
            handle = self._handles.pin(file)
        except OSError as e:
            asyncio.get_running_loop().call_soon(done, e)
            return

        def finished(_: object, error: BaseException | None) -> None:
            self._handles.unpin(file)
            done(error)

        self._workers.post(make(handle), finished)

    def _post_write(
        self, file: LogFile, group: Group | None, pads: bool, syncs: bool, done: Callable[[BaseException | None], None]
    ) -> None:
        """Write a group, if there is one, and sync, if asked to. An OSError: the write failed; SyncFailed: the sync."""
        end = group.end_position if group is not None else 0
        zeros = zeros_ahead(end) if pads else 0
        buffers, position = (group.buffers, group.position) if group is not None else ((), 0)
        job: WriteJob

        def make(handle: File) -> Work:
            nonlocal job
            job = write_job(handle, buffers, position, zeros, syncs)
            return job if group is None or file.closing is None else lambda: self._reopen_first(file, handle, job)

        def ended(error: BaseException | None) -> None:
            if error is None:
                file.allocated = max(file.allocated, end + zeros * job.padded)
            done(error)

        self._post(file, make, ended)

    def _reopen_first(self, file: LogFile, handle: File, job: WriteJob) -> None:
        file.reopen(handle, self._generation)
        job()

    def _clean_up(self, failure: Failure) -> None:
        """No job runs. Take everything from the failed offset on out of the log, then out of the file."""
        self._failure = None
        self._blocked = True
        self._disk_failed(failure.error)
        if self._lapsed():  # whoever owns the segment by now may go by what the failed write or sync has left
            fail_all(failure.lost, self._lapse_error())
            return
        if failure.group is None or self.file is None:
            self._abandon(failure)
            return
        self.counters.write_failures += 1
        file, group = self.file, failure.group
        if self._lease is not None:
            self._leave_spoilt(file, group, failure)
            return
        lost = self._cut_off(group.first_offset, failure.lost)
        self._target, self._position = file, group.position
        error = _as_storage_error(failure.error, file.path)

        def done(trouble: BaseException | None) -> None:
            if trouble is not None:
                self._abandon(Failure(trouble, None, lost))
                return
            fail_all(lost, error)
            self._blocked = False
            self._pump()

        if file.closing is not None:  # the file could not be opened for appending again; it holds nothing of the group
            asyncio.get_running_loop().call_soon(done, None)
        else:
            self._post(file, lambda handle: partial(file.rollback, handle, group.position), done)

    def _disk_failed(self, error: BaseException | None) -> None:
        """Until something is durable again, in whatever segment."""
        if isinstance(error, OSError | SyncFailed):
            self._measures.trouble = (self._clock.monotonic(), str(error))

    def _leave_spoilt(self, file: LogFile, group: Group, failure: Failure) -> None:
        """Under a lease nothing is cut off: what the write left stays where it is, and a new file continues.

        By the time of the cut another owner may have found whole entries there, and go by them.
        """
        lost = self._cut_off(group.first_offset, failure.lost)
        self._spoilt, self._target = file, None
        fail_all(lost, _as_storage_error(failure.error, file.path))
        self._blocked = False
        self._pump()

    def _abandon(self, failure: Failure) -> None:
        """A sync failed: nothing more is done with this file. What was not synced is cut off, a new file continues."""
        self._blocked = True
        self.counters.sync_failures += 1
        old, end, seen = self.file, self.synced_offset, self.durable_offset
        lost = self._cut_off(end, failure.lost)
        if self._mode != FSYNC and seen > end:  # the offsets of what was seen and is not synced are given up
            self.next_offset = self.synced_offset = seen
        self.durable_offset = self._written_offset = self.synced_offset
        if old is not None:
            old.end_offset, old.end_position = end, self._synced_position
        self.file = None
        if self.next_offset > end:
            self._owner.gap_made(end, self.next_offset)
        path = old.path if old is not None else "the log"
        _log.error("%s: sync failed (%s); the file is abandoned at offset %d", path, failure.error, end)
        fail_all(
            lost, UnknownOutcomeError(f"{path}: the sync failed ({failure.error}); read back to see what is there")
        )
        self._target = self._owner.plan_file(self.next_offset)
        self._position = self._target.opening.data_position
        self._rotate(self._target, old)

    def _rotate(self, new: LogFile, abandoned: LogFile | None) -> None:
        """Make a new file and go on there."""
        self._blocked = True
        old, lease = self.file, self._lease

        def work() -> File:
            if abandoned is not None:
                verify_tail(self._handles.disk, abandoned)
            if lease is not None:
                lease.check()  # at the last moment: it may have waited for its turn for long
            return new.create(self._handles.disk)

        def done(handle: File | None, error: BaseException | None) -> None:
            self._blocked = False
            if error is not None or handle is None:
                self._rotation_failed(new, error)
                return
            self._handles.adopt(new, handle)
            self.file, new.created = new, True
            self._written_position = self._synced_position = new.opening.data_position
            self.counters.rolls += 1
            self._owner.file_created(new)
            if old is not None:
                self._close_rolled(old, new.snapshot or b"")
            new.snapshot = None
            self._pump()

        self._workers.post(work, done)

    def _rotation_failed(self, new: LogFile, error: BaseException | None) -> None:
        """The new file may be there or not; so the old one is over, and the next append makes the new one again."""
        lost = self._cut_off(new.first_offset, [])
        self.file = self._target = None
        self._disk_failed(error)
        if isinstance(error, CorruptionError):
            self._owner.file_failed(error)
            fail_all(lost, error)
        elif isinstance(error, NotOwnerError):
            fail_all(lost, error)
        elif isinstance(error, SyncFailed):
            fail_all(lost, storage_error(error.error, new.path))
        elif isinstance(error, OSError):
            fail_all(lost, storage_error(error, new.path))
        else:
            fail_all(lost, StorageError(f"{new.path}: {error}"))
        self._check_idle()

    def _close_rolled(self, file: LogFile, snapshot: bytes) -> None:
        """Give a full file its footer, behind everybody's back; without it, opening the segment reads the file."""
        if file is self._spoilt or (self._lease is not None and not self._lease.held):
            return

        def work(handle: File) -> None:
            closing = file.close(handle, State.ROLLED, file.end_offset, file.end_position, snapshot)
            file.closing, file.index = closing, None

        def done(error: BaseException | None) -> None:
            if error is not None:
                _log.warning("%s: no footer could be written (%s)", file.path, error)

        self._post(file, lambda handle: partial(work, handle), done)

    async def finish(self, state: State) -> None:
        """Wait for all appends, then close the active file so that it ends as `state`. No appends meanwhile.

        Raises StorageError; the next attempt, or the next append, makes a new file.
        """
        await self.drain()
        if self.file is None or self.file is self._spoilt:
            await self.replace()
        file = self.file
        assert file is not None
        if self._lease is not None:
            self._lease.check()
        try:
            handle = self._handles.pin(file)
        except OSError as e:
            raise storage_error(e, file.path) from e
        snapshot = self._owner.snapshot(self.next_offset)
        try:
            file.closing = await run(
                self._workers, lambda: file.close(handle, state, file.end_offset, file.end_position, snapshot)
            )
        except (SyncFailed, OSError) as e:
            self.file = self._target = None  # its closing block may be there: only a new file can undo that
            raise storage_error(e.error if isinstance(e, SyncFailed) else e, file.path) from e
        finally:
            self._handles.unpin(file)

    async def confirm(self) -> None:
        """Make the closing block that was found at open durable once more. Raises StorageError."""
        file = self.file
        assert file is not None
        try:
            handle = self._handles.pin(file)
            try:
                await run(self._workers, lambda: file.write_closing_again(handle))
            finally:
                self._handles.unpin(file)
        except (SyncFailed, OSError) as e:
            raise storage_error(e.error if isinstance(e, SyncFailed) else e, file.path) from e

    async def replace(self) -> None:
        """Go on in a new file, made now. Raises StorageError."""
        new = self._owner.plan_file(self.next_offset)
        self._target, self._position = new, new.opening.data_position
        self._rotate(new, None)
        await self.drain()
        if self.file is not new:
            raise StorageError(f"{new.path} could not be made")


def _as_storage_error(error: BaseException, path: str) -> EngineError:
    return storage_error(error, path) if isinstance(error, OSError) else StorageError(f"{path}: {error}")
