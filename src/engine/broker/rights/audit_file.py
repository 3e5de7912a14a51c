"""`SharedFile`: a file of lines with rotation, to which several processes write at the same time.

Each line is written under a lock (flock) of the file itself. Whichever process finds the file full renames it and
begins another one; the others, once they have the lock of the file that they have open, see that its name leads to
another, and open that. So no line is torn, and none is lost but with the oldest file.
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
            held = self._locked()
        except OSError:
            self.handleError(record)
            return
        try:
            super().emit(record)
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)
            os.close(held)

    def _locked(self) -> int:
        """The file that the name leads to is open, and locked until the descriptor that is returned is unlocked.

        It is another descriptor of the same open file, so that the lock outlasts the rotation, which closes the stream.
        """
        while True:
            if self.stream is None:
                self.stream = self._open()
            held = os.dup(self.stream.fileno())
            try:
                fcntl.flock(held, fcntl.LOCK_EX)
                if _is_at(held, self.baseFilename):
                    return held
            except BaseException:
                os.close(held)
                raise
            os.close(held)
            stream, self.stream = self.stream, None  # it stays so if there is no opening it
            stream.close()


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
