"""`Destination`: where backups are kept, under names that never change; and the one in a directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.backups.manifest import FORMAT, LOCKS, MARK, is_url
from engine.errors import (
    CorruptionError,
    DataDirectoryBusyError,
    DataDirectoryError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    UnsupportedError,
)
from engine.metadata.lockfile import LockFile
from engine.storage.disk.config import storage_error
from engine.storage.disk.disk import Disk

if TYPE_CHECKING:
    import random

    from typing_extensions import Buffer

UNFINISHED = ".new"


class Stored(NamedTuple):
    """One object of a destination."""

    name: str
    size: int


class Destination(Protocol):
    """Named objects that are there whole or not at all. Blocking; `put` may run on several threads.

    All methods raise StorageError, DiskFullError, AuthenticationError, AuthorizationError.
    """

    def is_within(self, directory: Path) -> bool:
        """Whether it is a part of this directory."""

    def put(self, name: str, buffers: Sequence[Buffer], *, large: bool = False) -> None:
        """Store an object, durable when this returns. `large`: no other has ever had this name."""

    def get(self, name: str) -> bytes:
        """The whole object. Raises NotFoundError."""

    def read(self, name: str, start: int, size: int) -> memoryview:
        """Bytes of an object, fewer where it ends. Raises NotFoundError."""

    def list(self, folder: str) -> list[Stored]:
        """The objects of a folder, by name."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are not there count as deleted."""

    def lock(self) -> LockHeld:
        """Keep others from changing what is here. Raises LimitExceededError: another one does."""

    def close(self) -> None:
        """Release what it holds. Idempotent."""


class LockHeld(Protocol):
    """A destination that nobody else changes."""

    def renew(self) -> None:
        """Call it now and then. Raises LimitExceededError: it was not called for too long, and another one works."""

    def release(self) -> None:
        """Let others. Idempotent."""


@contextmanager
def open_destination(
    where: str, disk: Disk, environment: Mapping[str, str], rng: random.Random, *, create: bool = False
) -> Iterator[Destination]:
    """A directory, or s3://, gs://, az://. `create`: it may be begun; otherwise it has to hold backups.

    Raises NotFoundError (no backups are there), InvalidArgumentError (it holds something else), UnsupportedError (a
    newer format, or obstore is missing), StorageError.
    """
    destination: Destination
    if is_url(where):
        from engine.backups.objects import ObjectDestination

        destination = ObjectDestination(where, environment, rng)
    else:
        destination = DirectoryDestination(where, disk)
    try:
        _check_mark(destination, where, create=create)
        yield destination
    finally:
        destination.close()


def _check_mark(destination: Destination, where: str, *, create: bool) -> None:
    try:
        image = destination.get(MARK)
    except NotFoundError:
        if not create:
            raise NotFoundError(f"{where} holds no backups: {MARK} is not there") from None
        if isinstance(destination, DirectoryDestination) and destination.is_used:
            raise InvalidArgumentError(
                f"{where} must be empty, or hold backups, got a directory with other files"
            ) from None
        destination.put(MARK, [json.dumps({"format": FORMAT}).encode()])
        return
    try:
        form = json.loads(image)["format"]
    except (ValueError, KeyError, TypeError):
        raise CorruptionError(f"{where}/{MARK} is damaged: it must say its format") from None
    if form != FORMAT:
        raise UnsupportedError(f"{where} has format {form}; this release of Engine knows {FORMAT}")


class DirectoryDestination:
    """A directory. An object is written under another name, synced, and then gets its own."""

    def __init__(self, where: str, disk: Disk) -> None:
        self._where = str(Path(where).absolute())
        self._disk = disk

    def is_within(self, directory: Path) -> bool:
        return Path(self._where).resolve().is_relative_to(directory.resolve())

    def _path(self, name: str) -> str:
        return f"{self._where}/{name}"

    @property
    def is_used(self) -> bool:
        """Whether it holds what no backup has written."""
        return bool(set(self._disk.list(self._where)) - {MARK + UNFINISHED, LOCKS})

    def put(self, name: str, buffers: Sequence[Buffer], *, large: bool = False) -> None:
        path = self._path(name)
        folder = path.rpartition("/")[0]
        try:
            self._disk.make_directories(folder)
            file = self._disk.create(path + UNFINISHED)
            try:
                file.write(buffers, 0)
                file.sync()
            finally:
                file.close()
            self._disk.rename(path + UNFINISHED, path)
            self._disk.sync_directory(folder)
        except OSError as e:
            with suppress(OSError):
                self._disk.unlink(path + UNFINISHED)
            raise storage_error(e, path) from e

    def get(self, name: str) -> bytes:
        return bytes(self.read(name, 0, -1))

    def read(self, name: str, start: int, size: int) -> memoryview:
        """`size`: -1 for all."""
        path = self._path(name)
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(start)
                return memoryview(file.readall() if size < 0 else _read(file, size))
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"{path} is missing") from None
        except OSError as e:
            raise storage_error(e, path) from e

    def list(self, folder: str) -> list[Stored]:
        at = Path(self._path(folder))
        try:
            names = [name for name in self._disk.list(str(at)) if not name.endswith(UNFINISHED)]
            return [Stored(f"{folder}/{name}", (at / name).stat().st_size) for name in names]
        except OSError as e:
            raise storage_error(e, str(at)) from e

    def delete(self, names: Sequence[str]) -> None:
        try:
            for name in names:
                self._disk.unlink(self._path(name))
            for folder in {self._path(name).rpartition("/")[0] for name in names}:
                self._disk.sync_directory(folder)
        except OSError as e:
            raise storage_error(e, self._where) from e

    def lock(self) -> FileLock:
        return FileLock(Path(self._path(LOCKS), "lock"), self._where)

    def close(self) -> None:
        """Nothing is held."""


def _read(file: object, size: int) -> bytearray:
    buffer = bytearray(size)
    with memoryview(buffer) as view:
        done = 0
        while done < size and (n := file.readinto(view[done:])):  # type: ignore[attr-defined]
            done += n
    del buffer[done:]
    return buffer


class FileLock:
    """The system releases it when the process dies."""

    def __init__(self, path: Path, where: str) -> None:
        try:
            self._lock = LockFile(path)
        except DataDirectoryBusyError:
            raise LimitExceededError(f"{where} is being changed by another backup; wait until that has ended") from None
        except DataDirectoryError as e:
            raise InvalidArgumentError(f"the destination must be a writable directory: {e}") from e

    def renew(self) -> None:
        """It lasts."""

    def release(self) -> None:
        self._lock.release()
