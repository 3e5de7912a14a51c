"""A lock file that reserves a directory for one process. The system releases the lock when the process dies."""

from __future__ import annotations

import fcntl
from pathlib import Path

from engine.errors import DataDirectoryBusyError, DataDirectoryError

PRIVATE = 0o600  # mode of the files of a metadata store


class LockFile:
    """Locked from construction to release(). The file itself stays; only the lock counts."""

    def __init__(self, path: Path) -> None:
        """Take the lock without waiting. Raises DataDirectoryBusyError, DataDirectoryError."""
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            path.touch(mode=PRIVATE)
            self._file = path.open("ab")
        except OSError as e:
            raise DataDirectoryError(
                f"{path.parent} cannot be written: it must be writable by this process, got {e.strerror or e}"
            ) from e
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise DataDirectoryBusyError(
                f"{path.parent} is open in another engine; close that one, or choose another directory"
            ) from None

    def release(self) -> None:
        """Release the lock, also when a forked child has inherited the file. Idempotent."""
        if not self._file.closed:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
