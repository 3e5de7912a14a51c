"""`SharedFile`: a file of lines with rotation, to which several processes write at the same time.

Each line is one write to the end of the file, which the system keeps whole, so no process waits for another. The one
that finds the file full takes a lock (flock) of it, renames it and begins another; the others see that the name leads
to another file, and open that. One that finds the lock taken writes on: a process that is stopped in the middle of a
rotation keeps the file from being rotated, and nothing else.
"""

from __future__ import annotations

import fcntl
import logging
import os
from logging.handlers import RotatingFileHandler


class SharedFile(RotatingFileHandler):
    """`size`: of a file, in bytes, from which on another is begun. `kept`: how many earlier ones stay.

    Raises OSError where it cannot be opened.
    """

    def __init__(self, path: str, size: int, kept: int) -> None:
        super().__init__(path, maxBytes=size, backupCount=kept)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; an error is that of the logging module: a report on standard error."""
        try:
            line = memoryview(f"{self.format(record)}\n".encode())
            if self._is_full(len(line)):
                self._rotate(len(line))
            while line:  # a disk that is nearly full takes a part
                line = line[os.write(self._current(), line) :]
        except OSError:
            self.handleError(record)

    def _current(self) -> int:
        """The descriptor of the file that the name leads to."""
        if self.stream is not None and not _is_at(self.stream.fileno(), self.baseFilename):
            stream, self.stream = self.stream, None  # it stays so if there is no opening it
            stream.close()
        if self.stream is None:
            self.stream = self._open()
        return self.stream.fileno()

    def _is_full(self, more: int) -> bool:
        size = os.fstat(self._current()).st_size
        return size > 0 and size + more > self.maxBytes

    def _rotate(self, more: int) -> None:
        """Begin another file, unless another process does.

        The lock is that of another descriptor of the same open file, so that it outlasts the rotation, which closes
        the stream.
        """
        held = os.dup(self._current())
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                if _is_at(held, self.baseFilename) and self._is_full(more):
                    self.doRollover()
            finally:
                fcntl.flock(held, fcntl.LOCK_UN)
        except BlockingIOError:
            pass
        finally:
            os.close(held)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
