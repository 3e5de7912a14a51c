"""Removes the files of a deleted segment: all there are, or under a lease those up to its owner's term.

The deletion is marked first, by an empty file with the deleting owner's term in its name: files of that term or a
smaller one count as deleted, even if the process dies now. An owner that was stopped in the middle may go on when a new
segment of the same name is in the directory: the mark does not concern that segment, whose terms are larger.

    create and sync the mark ──► remove the files ──► sync the directory ──► remove the mark, and the directory if empty
    (from here on deleted)       (a crash: finish_removal() at the next open)
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator

from engine.storage.disk.disk import Disk
from engine.storage.file.logfile import SUFFIX, sync

MARK = "deleted"  # without a term: everything is deleted
_EVERYTHING = 1 << 64
_TERM = re.compile(r"-([0-9]+)(\.log)?(\.new)?$")


def term_of(name: str) -> int:
    """The term in a file's name; 0 for none."""
    found = _TERM.search(name)
    return int(found[1]) if found else 0


def remaining(names: Iterable[str]) -> list[str]:
    """The log files that are not marked as deleted."""
    names = list(names)
    bound = max((_bound(name) for name in names if _is_mark(name)), default=-1)
    return [name for name in names if name.endswith(SUFFIX) and term_of(name) > bound]


def finish_removal(disk: Disk, directory: str) -> None:
    """Finish deletions that were begun. Blocking. Raises OSError, SyncFailed."""
    marks = [name for name in disk.list(directory) if _is_mark(name)]
    if marks:
        _remove(disk, directory, max(map(_bound, marks)))


def remove(disk: Disk, directory: str, term: int | None = None) -> None:
    """Remove the files of this term and smaller ones; None: all. Blocking. Raises OSError, SyncFailed."""
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
    """Leave a directory that another owner has begun to use; one that it has removed is fine."""
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
