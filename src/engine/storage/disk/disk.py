"""The only access to the file system: what storage needs of a disk, and the operating system's implementation.

Every call blocks and may raise OSError. A simulated disk implements the same two protocols; it decides in `write` and
`sync` what fails, what is written in part, and which unsynced data survives a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from engine._native.jobs.filejob import drop_cached
from engine.aio.files import read_cached, sync_data
from engine.errors import DataDirectoryBusyError, InvalidArgumentError
from engine.storage.disk.config import storage_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

IOV_MAX = 1024


class File(Protocol):
    """One open file. Calls at different positions may run on different threads at once."""

    path: str

    def size(self) -> int:
        """The size in bytes."""

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` from `position`; the number of bytes read, smaller only at the end of the file."""

    def read_cached(self, buffer: Buffer, position: int) -> int:
        """Fill `buffer` without waiting for the medium; the number of bytes read, 0 where that is not supported."""

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all the buffers one after the other. After an error any prefix of them may be in the file."""

    def truncate(self, size: int) -> None:
        """Cut the file, or lengthen it with zeros."""

    def sync(self) -> None:
        """Return once everything written before is on the medium. After an error its state is unknown: never retry."""

    def drop_cache(self, start: int = 0, end: int = 0, *, writes: bool = False) -> None:
        """Drop clean cached pages where the system can, so that the next read comes from the medium.

        `end`: 0 for the end of the file. `writes`: write what is not clean out first, and wait for that.
        """

    def fileno(self) -> int:
        """A descriptor that native code may use."""

    def close(self) -> None:
        """Release the file. It syncs nothing. Idempotent."""


class Lock(Protocol):
    """A data directory held for this process."""

    def release(self) -> None:
        """Release it. Idempotent; the end of the process releases it too."""


class Disk(Protocol):
    """A file system. Paths are text, separated by "/"."""

    def create(self, path: str) -> File:
        """A new, empty file, open; an existing file of that name is truncated."""

    def open(self, path: str) -> File:
        """An existing file, open for reading and writing. Raises FileNotFoundError."""

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted; none when there is no such directory."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""

    def make_directories(self, path: str) -> None:
        """Create the directory and its parents, each durable, where they do not exist."""

    def rename(self, old: str, new: str) -> None:
        """Atomically; replaces a file. Durable after sync_directory."""

    def link(self, old: str, new: str) -> None:
        """Give a file another name, under which it stays when the first is removed. Raises FileExistsError."""

    def unlink(self, path: str) -> None:
        """Remove a file, if it exists. Durable after sync_directory."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory, if it exists."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""

    def lock(self, path: str) -> Lock:
        """Lock the file exclusively for this process. Raises DataDirectoryBusyError."""

    def shared_path(self, path: str) -> str | None:
        """The path by which another process of this machine opens a file; None: it cannot."""


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_into(self, buffer: Buffer, position: int) -> int:
        with memoryview(buffer).cast("B") as view:
            done = 0
            while done < len(view):
                with view[done:] as rest:
                    n = os.preadv(self._fd, [rest], position + done)
                if n == 0:
                    break
                done += n
            return done

    def read_cached(self, buffer: Buffer, position: int) -> int:
        return read_cached(self._fd, buffer, position)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all the buffers one after the other; partial writes are continued."""
        for start in range(0, len(buffers), IOV_MAX):
            part = buffers[start : start + IOV_MAX]
            size = sum(memoryview(b).nbytes for b in part)
            written = os.pwritev(self._fd, part, position)
            if written < size:
                self._write_rest(part, written, position + written)
            position += size

    def _write_rest(self, buffers: Sequence[Buffer], skip: int, position: int) -> None:
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while skip < len(view):
                n = os.pwrite(self._fd, view[skip:], position)
                skip += n
                position += n
            skip -= len(view)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        sync_data(self._fd)

    def drop_cache(self, start: int = 0, end: int = 0, *, writes: bool = False) -> None:
        drop_cached(self._fd, start, end, writes)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsLock:
    """flock(2) on a file."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(self._fd)
            raise DataDirectoryBusyError(f"{path} is locked: another process has this data directory open") from e

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsDisk:
    """The operating system's file system."""

    def __init__(self) -> None:
        self._durable: set[str] = set()  # directories whose names this process has synced

    def create(self, path: str) -> OsFile:
        return OsFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640))

    def open(self, path: str) -> OsFile:
        return OsFile(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def make_directories(self, path: str) -> None:
        path = os.path.abspath(path)
        parent = os.path.dirname(path)
        if parent == path or (path in self._durable and os.path.isdir(path)):  # another process may have removed it
            return
        self.make_directories(parent)
        try:
            os.mkdir(path, 0o750)
        except FileExistsError:
            if not os.path.isdir(path):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
            # Its creator may have died before the sync. This process may lack the right to sync directories far above.
            with contextlib.suppress(PermissionError):
                self.sync_directory(parent)
        else:
            self.sync_directory(parent)
        self._durable.add(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_directory(self, path: str) -> None:
        self._durable.discard(os.path.abspath(path))
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> OsLock:
        return OsLock(path)

    def shared_path(self, path: str) -> str:
        return os.path.abspath(path)


def make_data_directory(disk: Disk, path: str) -> None:
    """Make it, where it is not there. Raises InvalidArgumentError, DiskFullError, StorageError."""
    try:
        disk.make_directories(path)
    except (FileNotFoundError, NotADirectoryError, FileExistsError, PermissionError) as e:
        why = e.strerror or e
        raise InvalidArgumentError(f"the data directory must be a writable path, got {path}: {why}") from e
    except OSError as e:
        raise storage_error(e, path) from e
