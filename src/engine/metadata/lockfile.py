"""A file whose lock means: this directory is mine. The system lets go of it when the process dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from engine.errors import DataDirectoryBusyError, StorageError


class LockFile:
    """Held from construction to release(). The file stays behind; only its lock means something."""

    def __init__(self, path: Path) -> None:
        """Take the lock at once. Raises DataDirectoryBusyError naming the holder; StorageError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise StorageError(f"{path}: {e}") from e
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            holder = os.pread(self._descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._descriptor)
            raise DataDirectoryBusyError(
                f"{path.parent} is open in another engine (process {holder}); close it or choose another directory"
            ) from e
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
