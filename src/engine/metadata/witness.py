"""Checks a metadata file against the mark beside it, and gives it one where it has none (docs/formats/metadata.md)."""

from __future__ import annotations

import enum
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import CorruptionError
from engine.metadata.mark import REPAIR, Mark, read_version, sync_directory

if TYPE_CHECKING:
    import sqlite3

# Files that were never opened by a release with marks lack this table. Its row and the mark hold the same id.
_MARKED = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'mark'"
_TABLE = "CREATE TABLE IF NOT EXISTS mark (id INTEGER, checksum INTEGER)"


class MarkPolicy(enum.Enum):
    """What opening a file does with the mark beside it."""

    CHECK = "check"  # the file must have reached the mark's version; a file that never had a mark gets one
    RENEW = "renew"  # the mark is replaced by one at the file's version
    IGNORE = "ignore"  # the mark is neither read nor written


def mark_of(path: Path) -> Path:
    """The path of a metadata file's mark."""
    return path.with_suffix(".mark")


def log_of(path: Path) -> Path:
    """The path of a metadata file's write-ahead log."""
    return path.with_name(path.name + "-wal")


def enter_mark(path: Path, database: sqlite3.Connection, version: int, witness: MarkPolicy) -> Mark | None:
    """The mark of a file that is open, checked, and at `version`; None where it is to be ignored.

    Raises CorruptionError, UnsupportedError, OSError, sqlite3.Error.
    """
    if witness is MarkPolicy.IGNORE:
        return None
    where, ident = mark_of(path), _ident(path, database)
    if ident is None or witness is MarkPolicy.RENEW:
        if witness is MarkPolicy.CHECK:
            _check_reached(path, version, read_version(where))
        return _make(where, database, version)
    mark = Mark.open(where, ident)
    try:
        _check_reached(path, version, mark.version)
    except BaseException:
        mark.close()
        raise
    if mark.version < version:
        mark.write(mark.following(version))
        mark.taken(version)
    return mark


def _check_reached(path: Path, version: int, marked: int | None) -> None:
    if marked is not None and marked > version:
        raise CorruptionError(
            f"{path} is at version {version}, yet {mark_of(path)} says that it was at {marked}: its last commits are "
            f"damaged or cut off, its {log_of(path).name} is missing, or it is an older copy; put back the right "
            f"files, or {REPAIR}"
        )


def _ident(path: Path, database: sqlite3.Connection) -> int | None:
    """The id that file and mark share; None in a file that never had a mark."""
    if database.execute(_MARKED).fetchall() == [(0,)]:
        return None
    found = database.execute("SELECT id, checksum FROM mark").fetchall()
    if len(found) != 1 or not isinstance(found[0][0], int) or _checksum(found[0][0]) != found[0][1]:
        raise CorruptionError(f"{path} is damaged: the id of its mark does not match its checksum")
    ident: int = found[0][0]
    return ident


def _make(where: Path, database: sqlite3.Connection, version: int) -> Mark:
    """Create a mark: first the file's own name is durable, then the mark, then the file says that it has one."""
    ((ident,),) = database.execute("SELECT random()").fetchall()
    sync_directory(where.parent)
    mark = Mark.create(where, ident, version)
    try:
        database.execute("BEGIN IMMEDIATE")
        database.execute(_TABLE)
        database.execute("DELETE FROM mark")
        database.execute("INSERT INTO mark VALUES (?, ?)", (ident, _checksum(ident)))
        database.execute("COMMIT")
    except BaseException:
        mark.close()
        raise
    return mark


def _checksum(ident: int) -> int:
    """CRC-32 of the mark's id. On disk: do not change."""
    return zlib.crc32(f"mark {ident}".encode())
