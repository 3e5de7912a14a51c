"""Writing and syncing as one job, which takes no interpreter lock where it is the system's own file."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import Protocol

from typing_extensions import Buffer

from engine._native.filejob import ZEROS_MAX, FileJob, FileThreads
from engine.aio.workers import Done, ThreadWorkers, Work, call
from engine.storage.disk import File, OsFile
from engine.storage.logfile import SyncFailed, sync

_ZEROS = memoryview(bytes(ZEROS_MAX))
_WAKES_READ = 64


class WriteJob(Protocol):
    """Work that writes and syncs. Raises OSError when the write failed, SyncFailed when the sync did."""

    @property
    def padded(self) -> bool:
        """Once it has ended: whether the zeros were written."""

    def __call__(self) -> None:
        """Do it."""


class _NativeJob(FileJob):
    """Of the system's own file. FileWorkers run it without calling it."""

    __slots__ = ()

    def __call__(self) -> None:
        self.run()
        self.check()

    def check(self) -> None:
        """Raise what came of it."""
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))
        if self.sync_error:
            raise SyncFailed(OSError(self.sync_error, os.strerror(self.sync_error)))


class _Job:
    """Of any other file."""

    __slots__ = ("_buffers", "_file", "_position", "_syncs", "_zeros", "padded")

    def __init__(self, file: File, buffers: Sequence[Buffer], position: int, zeros: int, syncs: bool) -> None:
        self._file = file
        self._buffers = buffers
        self._position = position
        self._zeros = zeros
        self._syncs = syncs
        self.padded = False

    def __call__(self) -> None:
        if self._buffers:
            self._file.write(self._buffers, self._position)
        if self._zeros:
            self._pad(self._position + sum(memoryview(b).nbytes for b in self._buffers))
        if self._syncs:
            sync(self._file)

    def _pad(self, position: int) -> None:
        with contextlib.suppress(OSError):  # it is only to be faster
            self._file.write([_ZEROS[: self._zeros]], position)
            self.padded = True


def write_job(file: File, buffers: Sequence[Buffer], position: int, zeros: int, syncs: bool) -> WriteJob:
    """Work that writes the buffers, none of them empty, then at most ZEROS_MAX zeros, and then syncs.

    An error of the zeros is none. The buffers must not change, and the file must stay open, until it has ended.
    """
    if type(file) is OsFile:
        return _NativeJob(file.fileno(), buffers, position, zeros, syncs)
    return _Job(file, buffers, position, zeros, syncs)


class FileWorkers(ThreadWorkers):
    """ThreadWorkers with a second set of threads for write_job()s, which never wait for a busy loop.

    Those belong to the first loop that posts one; another loop's jobs run on Python's threads like the rest.
    """

    def __init__(self, threads: int = 16) -> None:
        super().__init__(threads)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._native: FileThreads | None = None
        self._wakes = (-1, -1)  # a pipe: a byte comes out when jobs have ended
        self._waiting: dict[FileJob, Done] = {}

    def post(self, work: Work, done: Done) -> None:
        """Hand a job to a thread of the right kind."""
        if isinstance(work, _NativeJob) and self._serves(asyncio.get_running_loop()):
            assert self._native is not None
            try:
                self._native.submit(work)
            except OSError as e:
                asyncio.get_running_loop().call_soon(done, None, e)
            else:
                self._waiting[work] = done
        else:
            super().post(work, done)

    def _serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._loop is None:
            self._loop = loop
            self._wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._native = FileThreads(self._wakes[1], self._threads_max)
            loop.add_reader(self._wakes[0], self._ended)
        return self._loop is loop and self._native is not None

    def _ended(self) -> None:
        assert self._native is not None
        os.read(self._wakes[0], _WAKES_READ)
        self._tell(self._native.take())

    def _tell(self, jobs: Sequence[FileJob]) -> None:
        for job in jobs:
            assert isinstance(job, _NativeJob)
            self._waiting.pop(job)(*call(job.check))

    def close(self) -> None:
        """Finish what was posted and stop the threads."""
        native, self._native = self._native, None
        if native is not None and self._loop is not None:
            jobs = native.close()
            if not self._loop.is_closed():  # else nobody waits any more
                self._loop.remove_reader(self._wakes[0])
                self._tell(jobs)
            for fd in self._wakes:
                os.close(fd)
        super().close()
