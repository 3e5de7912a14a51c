"""A disk in memory that loses unsynced data, tears writes and fails on demand: `storage.disk.Disk` for simulations.

Files are memfds, so native code has real descriptors. Beside what is visible the disk keeps what is durable: the state
of each file and directory at its last sync, and the operations since. A power cut keeps a legal part of those: of each
write any of its sectors, of each directory any prefix of its changes. A killed process loses nothing.

Several machines may mount one disk, as a shared file system: see `mount()` and medium.py.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from typing_extensions import Buffer

from engine.errors import DataDirectoryBusyError
from engine.testing.medium import Inode, Truncate, Write

# What happens to names at once, or not at all: each now means an inode, or nothing. All are in one directory.
_Change = list[tuple[str, Inode | None]]


def _link(names: dict[str, Inode], path: str, inode: Inode | None) -> None:
    if inode is None:
        names.pop(path, None)
    else:
        names[path] = inode


@dataclass(slots=True)
class Fault:
    """Let an operation fail: the `after`-th and up to `times` following ones of its kind on paths that hold `path`.

    `operation` is a method's name: "write", "sync", "sync_directory", "create", "rename", "truncate", "unlink".
    A failing write leaves a random prefix; a failing sync leaves a random part of what was written, and all of it then
    counts as clean, so that a second sync would succeed without making it durable, as on Linux.
    """

    operation: str
    error: int = errno.EIO
    path: str = ""
    after: int = 0
    times: int = 1


@dataclass(slots=True)
class DiskStatistics:
    """How often each operation was called."""

    calls: dict[str, int] = field(default_factory=dict)


class SimDisk:
    """The medium of one machine; it outlives the processes that use it through `mount()`."""

    def __init__(self, rng: random.Random, *, capacity: int | None = None) -> None:
        """`capacity`: bytes of all files together, above which writes fail with ENOSPC."""
        self._rng = rng
        self.capacity = capacity
        self.faults: list[Fault] = []
        self.statistics = DiskStatistics()
        self._files: dict[str, Inode] = {}
        self._directories: set[str] = {"", "/"}
        self._durable_files: dict[str, Inode] = {}
        # Directory -> its changes since its last sync, in order, with the machine that made each.
        self._pending: dict[str, list[tuple[str, _Change]]] = {}
        self._locks: dict[str, str] = {}  # path -> machine
        self._generations: dict[str, int] = {}  # by machine

    def mount(self, machine: str = "") -> MountedDisk:
        """A view for one process, on one of the machines that share the disk. It ends with their kill() or crash()."""
        return MountedDisk(self, machine, self._generations.setdefault(machine, 0))

    def kill(self, machine: str | None = None) -> None:
        """The process on a machine (None: on each) died: its locks and files are closed, everything written stays."""
        for name in self._generations if machine is None else (machine,):
            self._generations[name] = self._generations.get(name, 0) + 1
        self._locks = {p: m for p, m in self._locks.items() if machine not in (None, m)}

    def crash(self, machine: str | None = None) -> None:
        """Power cut of a machine (None: of all): what it had not synced is lost but for a random, legal part."""
        self.kill(machine)
        for directory, changes in list(self._pending.items()):
            self._lose_changes(directory, changes, machine)
        self._files = dict(self._durable_files)
        for _, change in (entry for changes in self._pending.values() for entry in changes):
            for path, changed in change:
                _link(self._files, path, changed)
        for inode in self._files.values():
            inode.lose(machine, self._rng)
            inode.show()

    def _lose_changes(self, directory: str, changes: list[tuple[str, _Change]], machine: str | None) -> None:
        """Of one machine's, a prefix is made durable and the rest is gone; another's before them go along."""
        own = [i for i, (maker, _) in enumerate(changes) if machine in (None, maker)]
        kept = self._rng.randint(0, len(own))
        last = own[kept - 1] if kept else -1
        for _, change in changes[: last + 1]:
            self._make_durable(change)
        left = [(maker, change) for maker, change in changes[last + 1 :] if machine not in (None, maker)]
        if left:
            self._pending[directory] = left
        else:
            del self._pending[directory]

    def corrupt(self, path: str, position: int, mask: int = 1) -> None:
        """Flip bits of a byte, on the medium and in what is read."""
        inode = self._files[path]
        (byte,) = os.pread(inode.fd, 1, position)
        os.pwrite(inode.fd, bytes([byte ^ mask]), position)
        if position < len(inode.durable):
            inode.durable[position] ^= mask

    def paths(self) -> list[str]:
        return sorted(self._files)

    def read(self, path: str) -> bytes:
        """The visible bytes of a file."""
        fd = self._files[path].fd
        return os.pread(fd, os.fstat(fd).st_size, 0)

    def used(self) -> int:
        """Bytes of all files together."""
        return sum(os.fstat(inode.fd).st_size for inode in self._files.values())

    def _make_durable(self, change: _Change) -> None:
        for path, inode in change:
            _link(self._durable_files, path, inode)

    def _change(self, machine: str, change: _Change) -> None:
        for path, inode in change:
            _link(self._files, path, inode)
        self._pending.setdefault(os.path.dirname(change[0][0]), []).append((machine, change))

    def _enter(self, operation: str, path: str, grows: bool = True) -> Fault | None:
        """Count an operation; returns the fault that applies to it. Overwriting needs no space."""
        calls = self.statistics.calls
        calls[operation] = calls.get(operation, 0) + 1
        for fault in self.faults:
            if fault.operation == operation and fault.path in path and fault.times > 0:
                if fault.error == errno.ENOSPC and not grows:
                    continue
                fault.after -= 1
                if fault.after < 0:
                    fault.times -= 1
                    return fault
        return None


class MountedDisk:
    """The disk as one process sees it; see storage.disk.Disk for what each method promises."""

    def __init__(self, disk: SimDisk, machine: str, generation: int) -> None:
        self._disk = disk
        self.machine = machine
        self._generation = generation

    def _enter(self, operation: str, path: str) -> None:
        """Raise when the process is dead or a fault is due."""
        self._check_alive(path)
        fault = self._disk._enter(operation, path)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), path)

    def _check_alive(self, path: str) -> None:
        if self._generation != self._disk._generations[self.machine]:
            raise OSError(errno.EIO, "the process that had this disk is dead", path)

    def create(self, path: str) -> SimFile:
        self._enter("create", path)
        if not self.exists(os.path.dirname(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        inode = Inode()
        self._disk._change(self.machine, [(path, inode)])
        return SimFile(self, self._disk, path, inode)

    def open(self, path: str) -> SimFile:
        self._enter("open", path)
        if path not in self._disk._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return SimFile(self, self._disk, path, self._disk._files[path])

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        self._enter("list", path)
        prefix = path.rstrip("/") + "/"
        below = [*self._disk._files, *self._disk._directories]
        return sorted({p[len(prefix) :].split("/")[0] for p in below if p.startswith(prefix)} - {""})

    def exists(self, path: str) -> bool:
        """Whether the path exists, as a file or a directory."""
        self._check_alive(path)
        return path in self._disk._files or path.rstrip("/") in self._disk._directories

    def make_directories(self, path: str) -> None:
        """The directory with its parents, durable."""
        self._enter("make_directories", path)
        path = path.rstrip("/")
        while path not in self._disk._directories:
            self._disk._directories.add(path)
            path = os.path.dirname(path)

    def rename(self, old: str, new: str) -> None:
        self._enter("rename", old)
        if old not in self._disk._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        self._disk._change(self.machine, [(new, self._disk._files[old]), (old, None)])

    def link(self, old: str, new: str) -> None:
        self._enter("link", old)
        if old not in self._disk._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        if new in self._disk._files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self._disk._change(self.machine, [(new, self._disk._files[old])])

    def unlink(self, path: str) -> None:
        self._enter("unlink", path)
        if path in self._disk._files:
            self._disk._change(self.machine, [(path, None)])

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Raises OSError when it is not."""
        self._enter("remove_directory", path)
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._disk._directories.discard(path.rstrip("/"))

    def sync_directory(self, path: str) -> None:
        """Make the directory's changes durable."""
        self._enter("sync_directory", path)
        for _, change in self._disk._pending.pop(path.rstrip("/"), []):  # of all machines: names are the disk's own
            self._disk._make_durable(change)

    def lock(self, path: str) -> SimLock:
        """Hold the lock file. Raises DataDirectoryBusyError."""
        self._enter("lock", path)
        if path in self._disk._locks:
            raise DataDirectoryBusyError(f"{path} is locked: another process has this data directory open")
        self._disk._locks[path] = self.machine
        return SimLock(lambda: self._release(path))

    def shared_path(self, path: str) -> None:
        """It is nowhere but in this process."""

    def _release(self, path: str) -> None:
        if self._generation == self._disk._generations[self.machine]:
            self._disk._locks.pop(path, None)


class SimLock:
    """A lock file that is held."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class SimFile:
    """One open file; see storage.disk.File."""

    def __init__(self, mount: MountedDisk, disk: SimDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._mount = mount
        self._disk = disk
        self._inode = inode
        self._closed = False

    def _fault(self, operation: str, grows: bool = True) -> Fault | None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
        self._mount._check_alive(self.path)
        return self._disk._enter(operation, self.path, grows)

    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._inode.fd).st_size

    def read_into(self, buffer: Buffer, position: int) -> int:
        """Fill the buffer; how many bytes were read."""
        fault = self._fault("read")
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), self.path)
        with memoryview(buffer).cast("B") as view:
            return os.preadv(self._inode.fd, [view], position) if len(view) else 0

    def read_cached(self, buffer: Buffer, position: int) -> int:
        """Nothing: everything comes from the medium."""
        return 0

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all, or fail with a prefix written."""
        data = b"".join(bytes(memoryview(buffer).cast("B")) for buffer in buffers)
        end = position + len(data)
        fault = self._fault("write", grows=end > self.size())
        error = None if fault is None else fault.error
        if error is None and self._over_capacity(end):
            error = errno.ENOSPC
        if error is not None:
            data = data[: self._disk._rng.randint(0, len(data))]
            if error == errno.ENOSPC and self._disk.capacity is not None:
                data = b""
        if data:
            os.pwrite(self._inode.fd, data, position)
            self._inode.pending.append(Write(position, data, self._mount.machine))
        if error is not None:
            raise OSError(error, os.strerror(error), self.path)

    def _over_capacity(self, end: int) -> bool:
        growth = max(0, end - self.size())
        return self._disk.capacity is not None and self._disk.used() + growth > self._disk.capacity

    def truncate(self, size: int) -> None:
        fault = self._fault("truncate")
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), self.path)
        os.ftruncate(self._inode.fd, size)
        self._inode.pending.append(Truncate(size, self._mount.machine))

    def sync(self) -> None:
        """Make the file's bytes durable, or lose some of them for good."""
        fault = self._fault("sync")
        if fault is not None:
            self._inode.lose(self._mount.machine, self._disk._rng)
            raise OSError(fault.error, os.strerror(fault.error), self.path)
        self._inode.sync(self._mount.machine)

    def drop_cache(self, start: int = 0, end: int = 0, *, writes: bool = False) -> None:
        """Drop clean pages: after a failed sync, reads show the medium. Without pending writes all are clean."""
        self._fault("drop_cache")
        if not self._inode.pending:
            self._inode.show()

    def fileno(self) -> int:
        """A real descriptor of the bytes."""
        return self._inode.fd

    def close(self) -> None:
        """Release the file. It syncs nothing. Idempotent."""
        self._closed = True
