"""`Frozen`: the segments of a store as they were at one moment, kept while the store goes on.

A log only grows, so of an open segment three facts taken at that moment say all: the names of its files, its durable
end, whether it was sealed. What lies behind the end came later. A closed segment does not change until it is opened or
deleted, so its files say the same when it is kept. The files stay under further names (hard links), so that retention
and deletion may go on.

    the moment          facts of the open segments, on the loop, in one turn
    then, in any order  each segment is kept: its files get links
    before a change     opening, deleting, retention: the segment is kept first, if it is not yet

Several processes that share the directory have one moment, and store for each other what they kept (shared_moment.py).
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import posixpath
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from engine.aio.shielded import shielded
from engine.aio.workers import Workers, run
from engine.errors import CorruptionError, UnsupportedError
from engine.limits import HASH_RING_SIZE
from engine.model.backups import KeptFile, KeptSegment
from engine.model.names import SegmentName
from engine.storage.disk.config import storage_error
from engine.storage.disk.disk import Disk
from engine.storage.file.extent import read_extent
from engine.storage.file.logfile import LogFile, parse_file_name
from engine.storage.file.producer_snapshot import is_producer_snapshot
from engine.storage.file.removal import remaining
from engine.storage.shared_moment import Held

if TYPE_CHECKING:
    from engine.storage.shared_moment import SharedMoment

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)


class Open(Protocol):
    """What is asked of an open segment."""

    @property
    def files(self) -> Sequence[LogFile]:
        """Its log files, the oldest first."""

    @property
    def durable_offset(self) -> int:
        """Its durable end."""

    sealed: bool


def hold(segment: Open) -> Held:
    """What of an open segment a backup has that is taken now."""
    end = segment.durable_offset
    logs = [posixpath.basename(file.path) for file in segment.files if file.first_offset <= end]
    return Held(logs, end, segment.sealed)


class Frozen:
    """Loop thread only. `into`: the directory of the links. `held`: what was open, also in other processes; asked on
    the workers. `shared`: the moment that several processes have together.
    """

    def __init__(
        self,
        disk: Disk,
        workers: Workers,
        into: str,
        held: Callable[[], Mapping[SegmentName, Held]],
        shared: SharedMoment | None = None,
    ) -> None:
        self._disk = disk
        self._workers = workers
        self._into = into
        self._held = held
        self._shared = shared
        self._kept: dict[SegmentName, asyncio.Task[KeptSegment | None]] = {}
        self._numbers = itertools.count(1 if shared is None else shared.first_link)

    async def keep(self, name: SegmentName, directory: str, below: str) -> KeptSegment | None:
        """Link the segment's files; None where it has none. `directory`: of the segment; `below`: the data directory.

        Raises UnsupportedError (the file system has no hard links), StorageError, CorruptionError.
        """
        return await shielded(self._task(name, directory, below))

    async def keep_before_change(self, name: SegmentName, directory: str, below: str) -> None:
        """The same, for what is about to change the segment. A failure is that of the backup, and raised by keep()."""
        await asyncio.wait([self._task(name, directory, below)])

    def _task(self, name: SegmentName, directory: str, below: str) -> asyncio.Task[KeptSegment | None]:
        task = self._kept.get(name)
        if task is None:
            work = partial(self._link, name, directory, below)
            task = self._kept[name] = asyncio.get_running_loop().create_task(self._run(work, directory))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is raised by keep()
        return task

    async def _run(self, work: partial[KeptSegment | None], directory: str) -> KeptSegment | None:
        try:
            return await run(self._workers, work)
        except OSError as e:
            if e.errno in _NO_LINKS:
                raise UnsupportedError(
                    f"{directory}: a backup of a running engine needs a file system with hard links, got "
                    f"{e.strerror or e}"
                ) from e
            raise storage_error(e, directory) from e

    def _link(self, name: SegmentName, directory: str, below: str) -> KeptSegment | None:
        if self._shared is None:
            return self._linked(name, directory, below)
        found = self._shared.find(name)
        if found is None:
            try:
                return self._shared.store(name, self._linked(name, directory, below))
            except (CorruptionError, OSError):
                found = self._shared.find(name)  # another process has kept it meanwhile, and changes it now
                if found is None:
                    raise
        return found[0]

    def _linked(self, name: SegmentName, directory: str, below: str) -> KeptSegment | None:
        names, held = self._disk.list(directory), self._held().get(name)
        there = sorted((n for n in remaining(names) if parse_file_name(n) is not None), key=_place)
        if held is None:
            held = _read(self._disk, directory, there)
        logs = list(held.logs)
        if missing := set(logs) - set(there):
            raise CorruptionError(f"{directory}/{min(missing)} is missing, and retention has not deleted it")
        if not logs:
            return None
        others = [n for n in names if is_producer_snapshot(n)]
        links = {n: str(next(self._numbers)) for n in (*logs, *others)}
        for file, link in links.items():
            self._disk.link(f"{directory}/{file}", f"{self._into}/{link}")
        return KeptSegment(
            str(name.topic),
            directory.removeprefix(f"{below}/"),
            [KeptFile(n, links[n]) for n in logs],
            [KeptFile(n, links[n]) for n in others],
            held.end,
            held.sealed,
        )


def _read(disk: Disk, directory: str, logs: list[str]) -> Held:
    """Of a closed segment. One whose end is damaged has no end: nothing appends to it, and it is copied unjudged."""
    try:
        extent = read_extent(disk, directory, (HASH_RING_SIZE - 1,), 0)
    except CorruptionError:
        return Held(logs, None, sealed=False)
    return Held(logs, extent.end_offset, extent.sealed)


def _place(name: str) -> tuple[int, int]:
    place = parse_file_name(name)
    assert place is not None
    return place
