"""The durable image of a metadata table in one SQLite file: create, lock, verify, load, commit.

See docs/formats/metadata.md for the file and for what is checked when it is opened.
"""

from __future__ import annotations

import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from engine._native.records.rows import Change, Row, checksum_of, fields_of, step_of
from engine.errors import (
    CorruptionError,
    DataDirectoryBusyError,
    DataDirectoryError,
    DiskFullError,
    StorageError,
    UnsupportedError,
)
from engine.metadata.library import Library, LibraryError, SqliteConnection
from engine.metadata.lockfile import PRIVATE, LockFile, lock_file_of
from engine.metadata.mark import REPAIR, Mark, SlotWrite
from engine.metadata.store import Indexes, OutcomeUnknownError, Record, Stat
from engine.metadata.table import NO_INDEXES
from engine.metadata.wal import find_damage
from engine.metadata.witness import MarkPolicy, enter_mark, log_of, mark_of

FORMAT = 1  # on disk: do not change the meaning of a number
APPLICATION_ID = 0x454E474D  # "ENGM"; on disk: do not change
_DIGEST_MASK = (1 << 63) - 1
_LOG_SIZE_KEPT = 4 << 20
ENDING_S_MAX = 5.0  # a process that ends, on a loaded machine, has SQLite's locks for so long after the directory's
_EXCLUSIVE = "PRAGMA locking_mode = EXCLUSIVE"

Fields = tuple[str, bytes, int, int, int, int | None, str | None, int]  # a row of `records`
_encode = msgspec.json.Encoder(order="sorted").encode

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
BEGIN;
CREATE TABLE records (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    modified_ms INTEGER NOT NULL,
    session INTEGER,
    indexes TEXT,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE meta (format INTEGER, version INTEGER, rows INTEGER, digest INTEGER, checksum INTEGER);
INSERT INTO meta VALUES ({FORMAT}, 0, 0, 0, {crc32(f"{FORMAT} 0 0 0".encode())});
COMMIT;
"""

# The statements of a commit, for each implementation of StepCommits.
STATEMENTS = {
    "begin": "BEGIN IMMEDIATE",
    "remove": "DELETE FROM records WHERE key = ?",
    "put": "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "summary": "UPDATE meta SET version = ?, rows = ?, digest = ?, checksum = ?",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
}
_PRAGMAS = f"""
PRAGMA cell_size_check = ON;
PRAGMA synchronous = FULL;
PRAGMA fullfsync = ON;  -- of macOS; elsewhere it changes nothing
PRAGMA journal_mode = WAL;
PRAGMA journal_size_limit = {_LOG_SIZE_KEPT};
PRAGMA temp_store = MEMORY;
"""


class ImageStep(NamedTuple):
    """One commit: rows to put, keys to remove, and the summary behind it: version, rows, digest, checksum.

    `mark`: the slot to write when the commit is durable.
    """

    put: list[Fields]
    removed: list[str]
    summary: tuple[int, int, int, int]
    mark: SlotWrite | None = None


class Image:
    """The open file. Used on the thread that opened it, except step() and committed(): those run on the loop."""

    def __init__(self, path: Path, witness: MarkPolicy = MarkPolicy.CHECK, lock: LockFile | None = None) -> None:
        """Lock and open `path`, creating it when there is none.

        `lock`: of lock_file_of(path), where the caller has taken it; it is released with the file.

        Raises DataDirectoryBusyError, UnsupportedError (a newer format), CorruptionError, DiskFullError, StorageError.
        """
        self._path = path
        self._witness = witness
        self.mark: Mark | None = None
        self.version = 0
        self._count = 0
        self._digest = 0
        self._connection: SqliteConnection | None = None  # replaces _database after connect()
        self._lock = lock or LockFile(lock_file_of(path))
        try:
            with _errors_named(path):
                _create_if_missing(path, witness)
                _make_private(path)
                self._log = _check_log(log_of(path))
                self._database = _connect(path)
        except BaseException:
            self._lock.release()
            raise

    def load(self) -> list[Row]:
        """Every row in key order, verified. Raises CorruptionError, and closes the image then."""
        try:
            with _errors_named(self._path):
                rows = self._load()
                self.mark = enter_mark(self._path, self._database, self.version, self._witness)
                return rows
        except BaseException:
            self._close_database()
            self._put_back_log()
            self._release()
            raise

    def _put_back_log(self) -> None:
        """Restore the log's bytes after SQLite folded its valid part into the file: they may help to find the cause."""
        log = log_of(self._path)
        if self._log and not log.exists():
            log.write_bytes(self._log)

    def _load(self) -> list[Row]:
        for (verdict,) in self._database.execute("PRAGMA quick_check(1)"):
            if verdict != "ok":
                raise CorruptionError(f"{self._path} is damaged: {verdict}")
        _, self.version, self._count, self._digest = self._meta()
        rows, digest = [], 0
        for fields in self._database.execute("SELECT * FROM records ORDER BY key"):
            row, checksum = _to_row(self._path, fields)
            digest += checksum
            rows.append(row)
        if len(rows) != self._count or digest & _DIGEST_MASK != self._digest:
            raise CorruptionError(
                f"{self._path} is damaged: it holds {len(rows)} records, not the {self._count} that were written"
            )
        return rows

    def _meta(self) -> tuple[int, int, int, int]:
        found = self._database.execute("SELECT format, version, rows, digest, checksum FROM meta").fetchall()
        if len(found) != 1 or _meta_checksum(*found[0][:4]) != found[0][4]:
            raise CorruptionError(f"{self._path} is damaged: its summary does not match its checksum")
        form, version, rows, digest, _ = found[0]
        return form, version, rows, digest

    def step(self, changes: list[Change]) -> ImageStep:
        """Prepare the commit of these changes, which follow the last step."""
        put, removed, count, digest = step_of(changes, self._count, self._digest, _encode)
        summary = (changes[-1].version, count, digest & _DIGEST_MASK)
        mark = None if self.mark is None else self.mark.following(summary[0])
        return ImageStep(put, removed, (*summary, _meta_checksum(FORMAT, *summary)), mark)

    def committed(self, step: ImageStep) -> None:
        """The step is durable."""
        self.version, self._count, self._digest, _ = step.summary
        if self.mark is not None:
            self.mark.taken(self.version)

    def commit(self, step: ImageStep) -> None:
        """Commit a step, all or nothing.

        Raises DiskFullError, StorageError (nothing was written), OutcomeUnknownError (a failed sync: the image must be
        closed and opened again before further use).
        """
        try:
            self._database.execute(STATEMENTS["begin"])
            if step.removed:
                self._database.executemany(STATEMENTS["remove"], [(key,) for key in step.removed])
            self._database.executemany(STATEMENTS["put"], step.put)
            self._database.execute(STATEMENTS["summary"], step.summary)
        except sqlite3.Error as e:
            self._roll_back()
            raise error_of(self._path, _code(e), str(e), committing=False) from e
        try:
            self._database.execute(STATEMENTS["commit"])
        except sqlite3.Error as e:
            error = error_of(self._path, _code(e), str(e), committing=True)
            if isinstance(error, DiskFullError):
                self._roll_back()
            raise error from e
        if self.mark is not None and step.mark is not None:
            self.mark.write(step.mark)

    def _roll_back(self) -> None:
        if self._database.in_transaction:
            self._database.execute(STATEMENTS["rollback"])

    def connect(self, library: Library) -> SqliteConnection:
        """Hand a loaded file to native commits, through a connection of its own; commit() may not be called afterwards.

        close() closes the connection. Raises DataDirectoryError, StorageError, and closes the image then.
        """
        try:
            with _errors_named(self._path):
                self._database.close()
                self._connection = SqliteConnection(library, self._path)
                self._connection.execute(f"{_EXCLUSIVE};{_PRAGMAS}")
        except BaseException:
            self.close()
            raise
        return self._connection

    def close(self) -> None:
        """Fold the write-ahead log into the file and release the lock."""
        try:
            self._close_database()
        finally:
            self._release()

    def _close_database(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._database.close()

    def _release(self) -> None:
        mark, self.mark = self.mark, None
        if mark is not None:
            mark.close()
        self._lock.release()


def write_image(path: Path, version: int, rows: Iterable[Row]) -> None:
    """A new metadata file, without a mark, at that version and of these rows. Raises DiskFullError, StorageError."""
    with _errors_named(path):
        path.touch(mode=PRIVATE, exist_ok=False)
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = FULL; {_SCHEMA}")
            fields = [fields_of(row, _encode) for row in rows]
            summary = (version, len(fields), sum(each[-1] for each in fields) & _DIGEST_MASK)
            database.execute(STATEMENTS["begin"])
            database.executemany(STATEMENTS["put"], fields)
            database.execute(STATEMENTS["summary"], (*summary, _meta_checksum(FORMAT, *summary)))
            database.execute(STATEMENTS["commit"])


def _connect(path: Path) -> sqlite3.Connection:
    # A process that ends loses its locks one by one: the directory's, which is ours now, may be free before SQLite's.
    database = sqlite3.connect(path, timeout=ENDING_S_MAX, isolation_level=None)
    try:
        database.execute(_EXCLUSIVE)
        _check_format(path, database)
        database.executescript(_PRAGMAS)
    except BaseException:
        database.close()
        raise
    return database


def _check_format(path: Path, database: sqlite3.Connection) -> None:
    ((application,),) = database.execute("PRAGMA application_id").fetchall()
    ((version,),) = database.execute("PRAGMA user_version").fetchall()
    if application != APPLICATION_ID:
        raise CorruptionError(f"{path} is damaged, or is not a metadata file of Engine")
    fields = database.execute("SELECT format, version, rows, digest, checksum FROM meta").fetchall()
    confirmed = len(fields) == 1 and fields[0][0] == version and _meta_checksum(*fields[0][:4]) == fields[0][4]
    if version > FORMAT and confirmed:
        raise UnsupportedError(f"{path} has format {version}; this release of Engine reads up to format {FORMAT}")
    if version != FORMAT or not confirmed:
        raise CorruptionError(f"{path} is damaged: its summary does not match its checksum")


def _create_if_missing(path: Path, witness: MarkPolicy) -> None:
    """A new file appears under its name complete or not at all; an empty file is damage."""
    log = log_of(path)
    if path.exists():
        if path.stat().st_size == 0:
            raise CorruptionError(f"{path} is damaged: it is empty")
        return
    if log.exists():
        raise CorruptionError(f"{path} is missing, yet {log} is there")
    if witness is MarkPolicy.CHECK and mark_of(path).exists():
        raise CorruptionError(f"{path} is missing, yet {mark_of(path)} is there; put it back, or {REPAIR}")
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=PRIVATE)
    database = sqlite3.connect(fresh, isolation_level=None)
    try:
        database.executescript(_SCHEMA)
    finally:
        database.close()
    # The first commit makes the new name durable: SQLite syncs the directory with the write-ahead log it creates there.
    fresh.rename(path)


def _make_private(path: Path) -> None:
    """Remove access for other users, which earlier releases left. SQLite creates the log with the mode of its file."""
    for file in (path.with_name(path.name + suffix) for suffix in ("", "-wal", ".lock")):
        with suppress(FileNotFoundError, PermissionError):  # a file of another user stays as it is
            if file.stat().st_mode & 0o077:
                file.chmod(PRIVATE)


def _check_log(log: Path) -> bytes:
    """The log's content. Raises CorruptionError."""
    content = log.read_bytes() if log.exists() else b""
    damage = find_damage(content)
    if damage is not None:
        raise CorruptionError(f"{log} is damaged: {damage}")
    return content


def _to_row(path: Path, fields: tuple[object, ...]) -> tuple[Row, int]:
    key, value, version, created_ms, modified_ms, session, indexes, checksum = fields
    stat = Stat(version, created_ms, modified_ms, session)  # type: ignore[arg-type]  # proven by the checksum
    facts = version, created_ms, modified_ms, session, indexes
    if not isinstance(key, str) or not isinstance(value, bytes) or checksum_of(key, value, *facts) != checksum:
        raise CorruptionError(f"{path} is damaged: the record of {key!r} does not match its checksum")
    return Row(Record(key, value, stat), _indexes_of(indexes), checksum), checksum


def _indexes_of(text: object) -> Indexes:
    if not isinstance(text, str):
        return NO_INDEXES
    return {name: tuple(keys) if isinstance(keys, list) else keys for name, keys in json.loads(text).items()}


def _meta_checksum(form: int, version: int, rows: int, digest: int) -> int:
    """CRC-32 of the summary. On disk: do not change."""
    return crc32(f"{form} {version} {rows} {digest}".encode())


def _code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return code


def error_of(path: Path, code: int, said: str, *, committing: bool) -> Exception:
    """The error for a failure of SQLite. `code`: primary or extended; `committing`: COMMIT itself failed."""
    text, primary = f"{path}: {said}", code & 0xFF
    if primary == sqlite3.SQLITE_FULL:
        return DiskFullError(f"{text}; nothing was written")
    if committing:
        return OutcomeUnknownError(f"{path}: the commit failed: {said}")
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DataDirectoryBusyError(f"{path} is open in another process")
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return DataDirectoryError(f"{text}; the file and its directory must be writable by this process")
    if primary == sqlite3.SQLITE_IOERR:
        return StorageError(text)
    return CorruptionError(f"{path} is damaged: {said}")


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the system into ours."""
    try:
        yield
    except sqlite3.Error as e:
        raise error_of(path, _code(e), str(e), committing=False) from e
    except LibraryError as e:
        raise error_of(path, e.code, str(e), committing=False) from e
    except UnicodeDecodeError as e:  # a damaged schema's text, in SQLite's message or in place of a value
        raise CorruptionError(f"{path} is damaged: it holds text that is not UTF-8") from e
    except PermissionError as e:
        raise DataDirectoryError(f"{path} cannot be written: {e.strerror}") from e
    except OSError as e:
        kind = DiskFullError if e.errno == errno.ENOSPC else StorageError
        raise kind(f"{path}: {e}") from e
