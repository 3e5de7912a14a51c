"""A lock file that reserves a directory for one process. The system releases the lock when the process dies.

The file says which process holds the lock, and whether others may join it (`shared`): for texts, and for those that
have to decide whether to wait. It is written behind the lock, so for a moment it may say nothing, or what a process
that was killed has left; only the lock counts.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.aio.forked import close_when_forked
from engine.errors import DataDirectoryBusyError, DataDirectoryError

PRIVATE = 0o600  # mode of the files of a metadata store
_NOTE_SIZE_MAX = 256
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock. `shared`: it lets others join."""

    process: int
    shared: bool


def lock_file_of(path: Path) -> Path:
    """The lock file of a metadata file."""
    return path.with_name(path.name + ".lock")


class LockFile:
    """Locked from construction to release(), or to the end of the process. The file itself stays.

    A forked child does not hold the lock.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """Take the lock without waiting. `shared`: what the file says of this process, see Holder.

        Raises DataDirectoryBusyError, DataDirectoryError (it cannot be written, or has no locks).
        """
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            path.touch(mode=PRIVATE)
            self._file = path.open("r+b", buffering=0)
        except OSError as e:
            raise not_writable(path.parent, e) from e
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            self._file.close()
            if e.errno in _HELD:
                raise busy(path) from None
            raise DataDirectoryError(
                f"{path.parent} must be on a file system that has locks (flock), got {e.strerror or e}"
            ) from e
        close_when_forked(self)
        self.left_behind = bool(self._file.read(1))  # the last holder has not released it: it was killed
        self.note(shared=shared)

    def note(self, *, shared: bool) -> None:
        """Have the file say it."""
        with suppress(OSError):  # a full disk: it says nothing then, and nothing else depends on it
            self._write(json.dumps({"process": os.getpid(), "shared": shared}).encode() + b"\n")

    def _write(self, text: bytes) -> None:
        self._file.seek(0)
        self._file.write(text)
        self._file.truncate()

    def descriptors(self) -> tuple[int, ...]:
        """Of the open file."""
        return () if self._file.closed else (self._file.fileno(),)

    def release(self) -> None:
        """Release the lock, also when a forked child has inherited the file. Idempotent."""
        if not self._file.closed:
            with suppress(OSError):
                self._write(b"")
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()


def holder_of(path: Path) -> Holder | None:
    """The process that holds the lock of the file at `path`, as the file says; None: it does not say, or is out of
    date.
    """
    try:
        with path.open("rb", buffering=0) as file:
            said = json.loads(file.read(_NOTE_SIZE_MAX))
        found = Holder(int(said["process"]), bool(said["shared"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if _is_alive(found.process) else None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def not_writable(directory: Path, error: OSError) -> DataDirectoryError:
    """That this process cannot use a directory."""
    return DataDirectoryError(
        f"{directory} cannot be written: it must be writable by this process, got {error.strerror or error}"
    )


def busy(path: Path) -> DataDirectoryBusyError:
    """That a lock is held, and by which process."""
    holder = holder_of(path)
    who = "another engine" if holder is None else f"another engine, of the process {holder.process}"
    return DataDirectoryBusyError(f"{path.parent} is open in {who}; close that one, or choose another directory")
