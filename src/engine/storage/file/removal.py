"""Removes the files of a segment that is deleted: all there are, or, where owners share the disk, those of its owners.

The deletion is marked first, by an empty file whose name carries the term of who deletes: what bears that term or a
smaller one is gone, whatever becomes of the process. An owner that was stopped in the middle may go on when there is a
new segment of that name in the directory: its mark does not touch that, because the terms there are larger.
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator

from engine.storage.disk.disk import Disk
from engine.storage.file.logfile import SUFFIX, sync

MARK = "deleted"  # under no term: of everything
_EVERYTHING = 1 << 64
_TERM = re.compile(r"-([0-9]+)(\.log)?(\.new)?$")


def term_of(name: str) -> int:
    """The term in a file's name; 0 for none."""
    found = _TERM.search(name)
    return int(found[1]) if found else 0


def remaining(names: Iterable[str]) -> list[str]:
    """The log files that no deletion has marked."""
    names = list(names)
    bound = max((_bound(name) for name in names if _is_mark(name)), default=-1)
    return [name for name in names if name.endswith(SUFFIX) and term_of(name) > bound]


def finish_removal(disk: Disk, directory: str) -> None:
    """Finish the deletions that were begun. Blocking. Raises OSError, SyncFailed."""
    marks = [name for name in disk.list(directory) if _is_mark(name)]
    if marks:
        _remove(disk, directory, max(map(_bound, marks)))


def remove(disk: Disk, directory: str, term: int | None = None) -> None:
    """Remove what bears this term or a smaller one; None: everything. Blocking. Raises OSError, SyncFailed."""
    bound = _EVERYTHING if term is None else term
    doomed = [name for name in disk.list(directory) if not _outlives(name, bound)]
    if any(not _is_mark(name) for name in doomed):
        _mark(disk, directory, MARK if term is None else f"{MARK}-{term}")
    _remove(disk, directory, bound)


def _remove(disk: Disk, directory: str, bound: int) -> None:
    names = [name for name in disk.list(directory) if not _outlives(name, bound)]
    marks = [name for name in names if _is_mark(name)]
    for name in names:
        if name not in marks:
            disk.unlink(f"{directory}/{name}")
    if marks:
        disk.sync_directory(directory)
    for name in marks:
        disk.unlink(f"{directory}/{name}")
    with _unless_used():
        disk.remove_directory(directory)


def _mark(disk: Disk, directory: str, name: str) -> None:
    mark = disk.create(f"{directory}/{name}")
    try:
        sync(mark)
    finally:
        mark.close()
    disk.sync_directory(directory)


def _is_mark(name: str) -> bool:
    return name == MARK or (name.startswith(f"{MARK}-") and name[len(MARK) + 1 :].isdecimal())


def _bound(mark: str) -> int:
    return _EVERYTHING if mark == MARK else term_of(mark)


def _outlives(name: str, bound: int) -> bool:
    return (_bound(name) if _is_mark(name) else term_of(name)) > bound


@contextlib.contextmanager
def _unless_used() -> Iterator[None]:
    """A directory that another owner has begun to use, or has removed, is not this one's to remove."""
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
