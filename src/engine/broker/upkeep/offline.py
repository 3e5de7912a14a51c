"""Reads a data directory that no process has open: log files and the metadata file, without changing them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine._native.format.entry import Entry, walk
from engine._native.serve import log
from engine.errors import CorruptionError, InvalidArgumentError, NotFoundError
from engine.limits import HASH_RING_SIZE
from engine.metadata.image import Image
from engine.metadata.lockfile import LockFile, lock_file_of
from engine.metadata.store import Record
from engine.metadata.witness import MarkPolicy, log_of
from engine.storage.file.format import HEADER_SIZE_MAX, Closing, Header, Opening
from engine.storage.file.logfile import SUFFIX, parse_file_name

_SQLITE_MAGIC = b"SQLite format 3\0"
_LOG_MAGIC = b"ENLG"


@dataclass(frozen=True, slots=True)
class LogReport:
    """One log file. `entries`: those that pass every check; `tail`: the number of bytes after them.

    `damage`: a description, or None. A tail without damage is a write that never became durable.
    """

    path: str
    header: Header
    closing: Closing | None
    entries: list[Entry]
    end_offset: int
    tail: int
    damage: str | None

    @property
    def opening(self) -> Opening:
        """The first block of the header."""
        return self.header.opening

    @property
    def messages(self) -> int:
        """How many the entries hold."""
        return self.end_offset - self.opening.first_offset


def kind_of(path: Path) -> str:
    """ "directory", "log" or "metadata". Raises NotFoundError, InvalidArgumentError for any other file."""
    if path.is_dir():
        return "directory"
    if not path.exists():
        raise NotFoundError(f"{path} does not exist")
    with path.open("rb") as file:
        magic = file.read(len(_SQLITE_MAGIC))
    if magic == _SQLITE_MAGIC:
        return "metadata"
    if magic.startswith(_LOG_MAGIC) or path.suffix == SUFFIX:
        return "log"
    raise InvalidArgumentError(f"{path} is neither a log file, nor a metadata file, nor a data directory")


def read_log(path: Path) -> LogReport:
    """Read and check one log file. Raises CorruptionError when its header is damaged, UnsupportedError."""
    data = path.read_bytes()
    header = Header.unpack(data[:HEADER_SIZE_MAX], str(path))
    opening, closing = header.opening, header.closing
    start = opening.data_position
    stop = closing.end_position if closing else len(data)
    known_end = closing.end_offset if closing else _next_file_begin(path, opening.first_offset)
    scan = log.Scan(opening.salt, opening.segment_id, opening.first_offset, start, [HASH_RING_SIZE - 1], known_end)
    size = scan.feed(memoryview(data)[start:stop])
    rest = memoryview(data)[start + size : stop]
    entries = walk(data[start : start + size])
    tail = 0 if is_zero(rest) else len(rest)
    damage = _damage(header, known_end, scan, rest)
    return LogReport(str(path), header, closing, entries, scan.next_offset, tail, damage)


def _next_file_begin(path: Path, first_offset: int) -> int | None:
    """The end of this file by the next one's header; bytes of an unclosed file beyond it were never durable."""
    others = [p for p in path.parent.glob(f"*{SUFFIX}") if _number(p) > first_offset]
    if not others:
        return None
    following = min(others, key=_number)
    with following.open("rb") as file:
        header = Header.unpack(file.read(HEADER_SIZE_MAX), str(following))
    return header.opening.first_offset if header.origin is None else header.origin.previous_end


def is_zero(data: memoryview) -> bool:
    """Whether every byte is zero: space allocated and not used yet."""
    return not data.tobytes().strip(b"\0")


def _damage(header: Header, known_end: int | None, scan: log.Scan, rest: memoryview) -> str | None:
    """The damage after the last valid entry; None when there is none, or only a torn tail."""
    where = f"position {scan.position}, offset {scan.next_offset}"
    if known_end is not None and scan.next_offset == known_end:
        return None
    if known_end is None and not _was_durable(header, scan, rest):
        return None
    try:
        log.raise_fault(scan.fault or log.FAULT_SHORT, header.opening.segment_id, scan.next_offset)
    except CorruptionError as e:
        return f"{where}: {e}"
    return f"{where}: entries that were durable are missing"


def _was_durable(header: Header, scan: log.Scan, rest: memoryview) -> bool:
    """Whether more than the valid entries was durable, by the file's own records (storage/file/recovery.py)."""
    witnessed = 0 if header.witness is None else header.witness.durable_offset
    if max(scan.durable_upto, witnessed) > scan.next_offset:
        return True
    if is_zero(rest):
        return False
    if scan.fault in log.FAULTS_DELIBERATE:
        return True
    return log.find_durable(rest, header.opening.salt, header.opening.segment_id, scan.next_offset) >= 0


def log_files(directory: Path) -> Iterator[tuple[str, Path]]:
    """(segment, file) of every log file below a data directory, in order; the segment in its textual form."""
    for path in sorted(directory.rglob(f"*{SUFFIX}"), key=lambda p: (p.parent.as_posix(), _number(p))):
        parts = path.relative_to(directory).parts
        yield "/".join(parts[1:-1]) or path.parent.name, path


def _number(path: Path) -> int:
    found = parse_file_name(path.name)
    return -1 if found is None else found[0]


def metadata_file(directory: Path) -> Path | None:
    """The metadata file of a data directory, if it has one."""
    found = (p for p in sorted(directory.iterdir()) if p.is_file() and p.suffix == ".db")
    return next(found, None)


def read_metadata(path: Path, scratch: Path, *, with_log: bool = True) -> tuple[list[Record], int]:
    """(every record of a metadata file, all checked; its version). `scratch`: a directory for the copy. `with_log`:
    include the write-ahead log.

    The copy is opened regardless of the mark beside the file. Raises DataDirectoryBusyError, CorruptionError,
    UnsupportedError.
    """
    lock_path = lock_file_of(path)
    lock = LockFile(lock_path) if lock_path.exists() else None
    try:
        for source in (path, log_of(path)):
            copy = scratch / source.name
            copy.unlink(missing_ok=True)
            if source.exists() and (with_log or source == path):
                copy.write_bytes(source.read_bytes())
    finally:
        if lock is not None:
            lock.release()
    image = Image(scratch / path.name, MarkPolicy.IGNORE)
    rows = image.load()
    image.close()
    return [row.record for row in rows], image.version
