"""Local files: reads that do not block the loop (cached pages at once, the rest on a thread), and the sync of data."""

from __future__ import annotations

import asyncio
import os
import stat
import sys

from typing_extensions import Buffer

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # Linux
# O_NONBLOCK: opening a pipe does not wait for its writer.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def sync_data(fd: int) -> None:
    """Return when the file's data, and its size, are on the medium. Raises OSError: then any of it may be lost.

    On macOS fsync() returns when the drive has the data in its cache; F_FULLFSYNC waits for the medium. File systems
    that do not know it, such as those of other machines, have their fsync().
    """
    if sys.platform == "darwin":
        import errno
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as e:
            if e.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(fd)
    else:
        os.fdatasync(fd)


def read_cached(fd: int, buffer: Buffer, position: int) -> int:
    """Fill `buffer` from the page cache, from `position` on; the bytes read, 0 if that cannot be told."""
    if _NOWAIT is None:
        return 0
    try:
        return os.preadv(fd, [buffer], position, _NOWAIT)
    except OSError:  # not cached, or not supported here; an error of the medium is raised by the read on a thread
        return 0


class ReadFile:
    """A file open for reading. It is closed with its last reference: a thread may read on after its caller has gone."""

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        """Open it. Blocks. Raises OSError, also for anything but a regular file."""
        self._fd = -1
        if not stat.S_ISREG(os.lstat(path).st_mode):  # opening a device may have side effects
            raise FileNotFoundError(f"{path} is not a file")
        self._fd = os.open(path, _FLAGS)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise FileNotFoundError(f"{path} is not a file any more")

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def head(self, size: int) -> bytes:
        """The first `size` bytes, fewer if the file is shorter. Blocks."""
        return os.pread(self._fd, size, 0)

    async def read_into(self, view: memoryview, position: int) -> int:
        """Fill `view`; the bytes read, fewer only at the end of the file. Raises OSError.

        The thread may write to the memory as long as it is referenced, also after this call was cancelled.
        """
        if (count := read_cached(self._fd, view, position)) == len(view):
            return count
        return await asyncio.to_thread(self.read_now, view, position)

    def read_now(self, view: memoryview, position: int) -> int:
        """Fill `view` as read_into() does. Blocks."""
        return os.preadv(self._fd, [view], position)
