"""A file whose lock means: this directory is mine. The system lets go of it when the process dies."""

from __future__ import annotations

import fcntl
from pathlib import Path

from engine.errors import DataDirectoryBusyError, DataDirectoryError

PRIVATE = 0o600  # mode of the files of a metadata store


class LockFile:
    """Held from construction to release(). The file stays behind; only its lock means something."""

    def __init__(self, path: Path) -> None:
        """Take the lock at once. Raises DataDirectoryBusyError, DataDirectoryError."""
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            path.touch(mode=PRIVATE)
            self._file = path.open("ab")
        except OSError as e:
            raise DataDirectoryError(
                f"{path.parent} cannot be written ({e.strerror or e}); one that this process owns is right"
            ) from e
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise DataDirectoryBusyError(
                f"{path.parent} is open in another engine; close that one, or choose another directory"
            ) from None

    def release(self) -> None:
        """Let go, also where a forked child has inherited the file. Idempotent."""
        if not self._file.closed:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
