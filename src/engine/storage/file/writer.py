"""Write and sync as one job, without the interpreter lock for a file of the operating system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from engine._native.jobs.filejob import ZEROS_MAX, FileJob
from engine.storage.disk.disk import File, OsFile
from engine.storage.file.logfile import SyncFailed, sync

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ZEROS = memoryview(bytes(ZEROS_MAX))


class WriteJob(Protocol):
    """Work that writes and syncs. Raises OSError when the write failed, SyncFailed when the sync did."""

    @property
    def padded(self) -> bool:
        """Whether the zeros were written; known once it has ended."""

    def __call__(self) -> None:
        """Run the job."""


class _NativeJob(FileJob):
    """Writes a file of the operating system. NativeWorkers run it natively, without calling it."""

    __slots__ = ()

    def check(self) -> None:
        """Raise what WriteJob raises."""
        if self.write_error:
            raise OSError(self.write_error, os.strerror(self.write_error))
        if self.sync_error:
            raise SyncFailed(OSError(self.sync_error, os.strerror(self.sync_error)))


class _Job:
    """Writes any other file."""

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
        with contextlib.suppress(OSError):  # zeros only save time
            self._file.write([_ZEROS[: self._zeros]], position)
            self.padded = True


def write_job(file: File, buffers: Sequence[Buffer], position: int, zeros: int, syncs: bool) -> WriteJob:
    """Work that writes the buffers, none of them empty, then at most ZEROS_MAX zeros, and then syncs.

    A failure to write the zeros is ignored. Until the job has ended, the buffers must not change and the file must stay
    open.
    """
    if type(file) is OsFile:
        return _NativeJob(file.fileno(), buffers, position, zeros, syncs)
    return _Job(file, buffers, position, zeros, syncs)
