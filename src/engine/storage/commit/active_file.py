"""`ActiveFile`: the file that the appends of a segment go to. It is created, written, cut, closed; a new one follows.

Every step is one job on a worker. Its outcome comes back on the loop as an exception or None; what follows from it is
decided by the Committer, which owns this object and sees to it that jobs do not disturb each other.

    create() ──► write() … write() ──► close()                  the footer and the closing block are durable
                    │
                    ├─ the write failed ──► cut()               truncate to what was there before, and go on
                    │                  └──► spoil()             under a lease: leave it, go on in a new file
                    └─ the sync failed ──► abandon(), create()  never sync again, read back, go on in a new file

A failed sync is never retried: the kernel may have marked the pages clean, so a second sync would succeed without
writing them. The file ends at its last synced byte; before the next file is created, the end of what was durable is
read again from the medium.

With a `Backing` nothing is synced but what a file begins and ends with, and each step has two parts: the local one
first, then the backing. So a step that fails here has left nothing there; and one whose outcome there is not known
(LogEndedError) is the last: nothing more is confirmed behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from engine._native.serve.commits import FileEnd
from engine._native.serve.groups import Group
from engine.aio.workers import Work, run
from engine.storage.commit.failures import job_error
from engine.storage.commit.ports import Backing, Ended
from engine.storage.disk.config import FSYNC, storage_error
from engine.storage.disk.disk import File
from engine.storage.file.context import Context
from engine.storage.file.format import Closing, State
from engine.storage.file.logfile import LogFile, SyncFailed, zeros_ahead
from engine.storage.file.owners import Lease
from engine.storage.file.recovery import verify_tail
from engine.storage.file.writer import WriteJob, write_job

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger("engine.storage")


class ActiveFile(FileEnd):
    """The file that is appended to, if there is one, and how far it is known to be on the medium."""

    __slots__ = (
        "_backing", "_generation", "_handles", "_lease", "_spoilt", "_syncs", "_workers", "pages",
    )  # fmt: skip

    def __init__(
        self,
        context: Context,
        file: LogFile | None,
        lease: Lease | None,
        end: int,
        position: int,
        backing: Backing | None = None,
        mode: str = FSYNC,
    ) -> None:
        """`file`: None if the first append needs a new file. `end`, `position`: of what recovery found, and synced."""
        super().__init__(context.handles, context.workers.post, write_job, zeros_ahead)
        self._backing = backing
        self._handles = context.handles
        self._workers = context.workers
        self._generation = context.generation
        self._lease = lease
        self.pages = context.pages
        self._syncs = mode == FSYNC
        self.file: LogFile | None = file
        if file is not None:
            self.pages.begin(file, position, writes=not self._syncs)
        self._spoilt: LogFile | None = None  # holds the remains of a failed write behind its end
        self.synced_offset = end
        self.synced_position = position

    @property
    def is_fit(self) -> bool:
        """Whether the file may be written and closed."""
        return self.file is not None and self.file is not self._spoilt

    def _pin(self, file: LogFile, done: Ended) -> File | None:
        """The open file. None: it cannot be opened; `done` gets the error in the next turn of the loop."""
        try:
            return self._handles.pin(file)
        except OSError as e:
            asyncio.get_running_loop().call_soon(done, e)
            return None

    def _post(self, file: LogFile, make: Callable[[File], Work], done: Ended) -> None:
        """Post the work that `make` returns for the open file, which stays open until it has ended."""
        handle = self._pin(file, done)
        if handle is None:
            return

        def ended(_: object, error: BaseException | None) -> None:
            self._handles.unpin(file)
            done(error)

        self._workers.post(make(handle), ended)

    # Writing: write() is native

    def reopening(self, file: LogFile, handle: File, job: WriteJob) -> Work:
        return partial(self._reopen_and_write, file, handle, job)

    def hand_over(self, group: Group, done: Ended) -> None:
        assert self._backing is not None
        self._backing.append(group.first_offset, group.next_offset, group.buffers, done)

    def _reopen_and_write(self, file: LogFile, handle: File, job: WriteJob) -> None:
        file.reopen(handle, self._generation)
        job()

    def write_block(self, block: Buffer, position: int, done: Ended) -> None:
        """Hand a block of the header to the system. Not synced."""
        assert self.file is not None
        blocks: Sequence[Buffer] = [block]
        self._post(self.file, lambda handle: write_job(handle, blocks, position, 0, False), done)

    # After a failure

    def cut(self, position: int, done: Ended) -> None:
        """Truncate what a failed write left from `position` on, durably."""
        file = self.file
        assert file is not None
        if file.closing is not None:  # the write failed in taking back the orderly close: it left nothing
            asyncio.get_running_loop().call_soon(done, None)
        else:
            self._post(file, lambda handle: partial(file.rollback, handle, position), done)

    def spoil(self) -> None:
        """Leave what a failed write left where it is: under a lease nothing is truncated.

        By then another broker may own the segment, have found whole entries there, and go by them.
        """
        self._spoilt = self.file

    def abandon(self, offset: int) -> LogFile | None:
        """A sync failed: the file ends at its last synced byte, and is not touched again. Returns it.

        `offset`: the log goes on there, above offsets that are given up if it is above the file's end.
        """
        old, self.file = self.file, None
        if old is not None:
            old.end_offset, old.end_position = self.synced_offset, self.synced_position
        self.synced_offset = offset
        return old

    def leave(self) -> None:
        """The file may be closed on the disk, or not there at all: only a new file can follow."""
        self.file = None

    # From one file to the next

    def create(self, new: LogFile, abandoned: LogFile | None, done: Ended) -> None:
        """Create the next file, durably, and append to it from then on.

        `abandoned`: after a failed sync, the file before. What was durable at its end is first read from the medium;
        a CorruptionError says that it is not there any more.
        """
        handles, lease = self._handles, self._lease

        def work() -> File:
            if abandoned is not None:
                verify_tail(handles.disk, abandoned)
            if lease is not None:
                lease.check()  # at the last moment: the job may have waited in the queue
            return new.create(handles.disk)

        def begun(error: BaseException | None) -> None:
            if error is None:
                if self.file is not None:
                    self.pages.finish(self.file)
                self.file = new
                self.synced_position = new.opening.data_position
                self.pages.begin(new, 0, writes=not self._syncs)
            done(error)

        def ended(handle: File | None, error: BaseException | None) -> None:
            if handle is not None and error is None:
                handles.adopt(new, handle)
                new.created = True
                if self._backing is not None:
                    self._backing.append(new.first_offset, new.first_offset, [new.head()], begun)
                    return
            begun(error)

        self._workers.post(work, ended)

    def close_rolled(self, file: LogFile, snapshot: bytes) -> None:
        """Give a full file its footer, in the background. Without it, the next open has to read the whole file."""
        if file is self._spoilt or (self._lease is not None and not self._lease.held):
            return

        def work(handle: File) -> None:
            closing = file.close(handle, State.ROLLED, file.end_offset, file.end_position, snapshot)
            file.closing, file.index = closing, None

        def done(error: BaseException | None) -> None:
            if error is not None:
                _log.warning("%s: the footer could not be written (%s)", file.path, error)

        self._post(file, lambda handle: partial(work, handle), done)

    async def close(self, state: State, snapshot: bytes) -> None:
        """Close the file so that it ends as `state`, durably. No other job runs.

        Raises StorageError. If a part of that may be on the disk, the file is left. LogEndedError: of a backing, which
        keeps the footer of a seal.
        """
        file, footer = self.file, bytearray()
        assert file is not None
        try:
            handle = self._handles.pin(file)
        except OSError as e:
            raise storage_error(e, file.path) from e

        def work() -> Closing:
            closing = file.close(handle, state, file.end_offset, file.end_position, snapshot)
            if self._backing is not None and state is State.SEALED:
                footer.extend(bytes(closing.footer_size))
                handle.read_into(footer, closing.end_position)
            return closing

        try:
            closing = await run(self._workers, work)
        except (SyncFailed, OSError) as e:
            self.leave()
            raise job_error(e, file.path) from e
        finally:
            self._handles.unpin(file)
        if footer:
            await self._append(file.end_offset, footer)
        file.closing = closing

    async def _append(self, offset: int, data: Buffer) -> None:
        """Append what has no entries to the backing. Raises LogEndedError."""
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Any) -> None:
            if not appended.done():
                appended.set_result(None) if error is None else appended.set_exception(error)

        assert self._backing is not None
        self._backing.append(offset, offset, [data], done)
        await appended

    async def confirm(self) -> None:
        """Make the closing block that recovery found durable once more. Raises StorageError."""
        file = self.file
        assert file is not None
        try:
            handle = self._handles.pin(file)
            try:
                await run(self._workers, lambda: file.write_closing_again(handle))
            finally:
                self._handles.unpin(file)
        except (SyncFailed, OSError) as e:
            raise job_error(e, file.path) from e
