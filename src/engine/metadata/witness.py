"""Compares a metadata file with the mark beside it, and gives it one where it has none (docs/formats/metadata.md)."""

from __future__ import annotations

import enum
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import CorruptionError
from engine.metadata.mark import REPAIR, Mark, read_version, sync_directory

if TYPE_CHECKING:
    import sqlite3

# Files that no build with marks has opened have no such table. Its row and the mark bear the same number.
_MARKED = "SELECT COUNT(*) FROM sqlite_master WHERE name = 'mark'"
_TABLE = "CREATE TABLE IF NOT EXISTS mark (id INTEGER, checksum INTEGER)"


class MarkPolicy(enum.Enum):
    """What becomes of the mark beside the file."""

    CHECK = "check"  # the file must have come as far as it says; made where there was none before
    RENEW = "renew"  # whatever it says is void: a new one, as far as the file has come
    IGNORE = "ignore"  # not looked at, not written


def mark_of(path: Path) -> Path:
    """Where the mark of a metadata file is."""
    return path.with_suffix(".mark")


def log_of(path: Path) -> Path:
    """Where SQLite has the write-ahead log of a metadata file."""
    return path.with_name(path.name + "-wal")


def enter_mark(path: Path, database: sqlite3.Connection, version: int, witness: MarkPolicy) -> Mark | None:
    """The mark of the open and checked file that has come as far as `version`; None where it is to be ignored.

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
    """What file and mark have in common; None in a file that was never marked."""
    if database.execute(_MARKED).fetchall() == [(0,)]:
        return None
    found = database.execute("SELECT id, checksum FROM mark").fetchall()
    if len(found) != 1 or not isinstance(found[0][0], int) or _checksum(found[0][0]) != found[0][1]:
        raise CorruptionError(f"{path} is damaged: the id of its mark does not match its checksum")
    ident: int = found[0][0]
    return ident


def _make(where: Path, database: sqlite3.Connection, version: int) -> Mark:
    """A mark, durable before the file says that it has one; and the file's own name before that."""
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
