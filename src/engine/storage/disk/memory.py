"""`MemoryDisk`: a file system in memory, gone with the object, for engines that need not outlive their process."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.aio.locks import Lock
from engine.errors import DataDirectoryBusyError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Bytes:
    """The contents of a file, which open files share."""

    __slots__ = ("data", "lock")

    def __init__(self) -> None:
        self.data = bytearray()
        self.lock = Lock()  # a bytearray must not change its size while another thread copies from it


class MemoryFile:
    """One open file. Calls come from any thread; the file of a name that was removed stays readable."""

    __slots__ = ("_bytes", "path")

    def __init__(self, path: str, contents: _Bytes) -> None:
        self.path = path
        self._bytes = contents

    def size(self) -> int:
        return len(self._bytes.data)

    def read_into(self, buffer: Buffer, position: int) -> int:
        with memoryview(buffer).cast("B") as view, self._bytes.lock, memoryview(self._bytes.data) as data:
            found = data[position : position + len(view)]
            view[: len(found)] = found
            count = len(found)
            found.release()
            return count

    def read_cached(self, buffer: Buffer, position: int) -> int:
        """Everything is at hand."""
        return self.read_into(buffer, position)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all the buffers one after the other; a gap before them is filled with zeros."""
        with self._bytes.lock:
            data = self._bytes.data
            if position > len(data):
                data.extend(bytes(position - len(data)))
            for buffer in buffers:
                with memoryview(buffer).cast("B") as view:
                    data[position : position + len(view)] = view
                    position += len(view)

    def truncate(self, size: int) -> None:
        with self._bytes.lock:
            data = self._bytes.data
            if size < len(data):
                del data[size:]
            else:
                data.extend(bytes(size - len(data)))

    def sync(self) -> None:
        """Nothing: what is written is as durable as it becomes."""

    def drop_cache(self, start: int = 0, end: int = 0, *, writes: bool = False) -> None:
        """Nothing: memory is the medium."""

    def fileno(self) -> int:
        """Raises OSError: there is no descriptor."""
        raise OSError(errno.EBADF, "no file of the system", self.path)

    def close(self) -> None:
        """Nothing is held."""


class _MemoryLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path
        locks.add(path)

    def release(self) -> None:
        self._locks.discard(self._path)


class MemoryDisk:
    """The file system. Calls come from any thread."""

    def __init__(self) -> None:
        self._files: dict[str, _Bytes] = {}
        self._directories: set[str] = set()
        self._locks: set[str] = set()
        self._names = Lock()  # of everything above

    def create(self, path: str) -> MemoryFile:
        with self._names:
            if posixpath.dirname(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
            contents = self._files.get(path)
            if contents is None:
                contents = self._files[path] = _Bytes()
        file = MemoryFile(path, contents)
        file.truncate(0)
        return file

    def open(self, path: str) -> MemoryFile:
        with self._names:
            contents = self._files.get(path)
        if contents is None:
            raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)
        return MemoryFile(path, contents)

    def list(self, path: str) -> list[str]:
        with self._names:
            names = [*self._files, *self._directories]
        return sorted(posixpath.basename(name) for name in names if posixpath.dirname(name) == path and name != path)

    def exists(self, path: str) -> bool:
        with self._names:
            return path in self._files or path in self._directories

    def make_directories(self, path: str) -> None:
        with self._names:
            while path not in self._directories:
                if path in self._files:
                    raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
                self._directories.add(path)
                path = posixpath.dirname(path)

    def rename(self, old: str, new: str) -> None:
        with self._names:
            if old in self._files:
                self._files[new] = self._files.pop(old)
            elif old in self._directories:
                self._move_directory(old, new)
            else:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", old)

    def _move_directory(self, old: str, new: str) -> None:
        inside = f"{old}/"

        def moved(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(inside) else path

        self._files = {moved(path): found for path, found in self._files.items()}
        self._directories = {moved(path) for path in self._directories}

    def link(self, old: str, new: str) -> None:
        with self._names:
            if old not in self._files:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", old)
            if new in self._files:
                raise FileExistsError(errno.EEXIST, "file exists", new)
            self._files[new] = self._files[old]

    def unlink(self, path: str) -> None:
        with self._names:
            self._files.pop(path, None)

    def remove_directory(self, path: str) -> None:
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, "directory not empty", path)
        with self._names:
            self._directories.discard(path)

    def sync_directory(self, path: str) -> None:
        """Raises FileNotFoundError where there is none; there is nothing to make durable."""
        with self._names:
            if path not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such file or directory", path)

    def lock(self, path: str) -> _MemoryLock:
        with self._names:
            if path in self._locks:
                raise DataDirectoryBusyError(f"{path} is locked: another engine has this disk open")
            return _MemoryLock(self._locks, path)

    def shared_path(self, path: str) -> None:
        """None: no other process can open a file."""
        return
