"""Reading a file of the system without holding up the loop: what is cached at once, the rest on a thread."""

from __future__ import annotations

import asyncio
import os
import stat

from typing_extensions import Buffer

_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # Linux
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last: a pipe is not waited for


def read_cached(fd: int, buffer: Buffer, position: int) -> int:
    """Fill `buffer` with what the system has in its cache, from `position` on; how many bytes, 0 if it cannot tell."""
    if _NOWAIT is None:
        return 0
    try:
        return os.preadv(fd, [buffer], position, _NOWAIT)
    except OSError:  # nothing of it, or the file system cannot tell; an error of the medium is met by who reads it all
        return 0


class ReadFile:
    """It is closed when nobody uses it any more: a thread that reads from it may outlive who asked."""

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        """Open it. Blocks. Raises OSError, also for what is not a file."""
        self._fd = -1
        if not stat.S_ISREG(os.lstat(path).st_mode):  # to open a device may do something
            raise FileNotFoundError(f"{path} is not a file")
        self._fd = os.open(path, _FLAGS)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            raise FileNotFoundError(f"{path} is not a file any more")

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def head(self, size: int) -> bytes:
        """Its first bytes, fewer if it is shorter. Blocks."""
        return os.pread(self._fd, size, 0)

    async def read_into(self, view: memoryview, position: int) -> int:
        """Fill `view`; how many bytes were read, fewer at the end of the file, and never none elsewhere. OSError.

        The memory may be written to until nobody holds it, also when this was cancelled.
        """
        if (count := read_cached(self._fd, view, position)) == len(view):
            return count
        return await asyncio.to_thread(self.read_now, view, position)

    def read_now(self, view: memoryview, position: int) -> int:
        """The same. Blocks."""
        return os.preadv(self._fd, [view], position)
