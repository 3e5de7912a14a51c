"""How far a segment's log reaches, read without opening the segment: nothing is written, repaired or claimed.

The headers tell it all where the last file was closed in order: its closing block states the end. After a crash the
last file has none, and is scanned, as recovery will do (file/recovery.py), for the same end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from engine._native.serve import log
from engine.errors import CorruptionError
from engine.storage.disk.disk import Disk
from engine.storage.file.continuation import Gaps
from engine.storage.file.logfile import LogFile, read_header
from engine.storage.file.owners import chain, is_of
from engine.storage.file.removal import remaining, term_of


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets and the size of a log. `gaps`: runs [start, stop) without messages. `size_bytes`: of all files."""

    first_offset: int
    end_offset: int
    gaps: Gaps
    size_bytes: int
    files: int
    sealed: bool


NO_FILES = Extent(0, 0, Gaps(), 0, 0, sealed=False)


def read_extent(disk: Disk, directory: str, bucket_ends: Sequence[int], born: int) -> Extent:
    """The extent of the segment in that directory; NO_FILES where it has none. Blocking.

    `born`: see Lease. Raises CorruptionError, UnsupportedError, OSError.
    """
    names = [name for name in remaining(disk.list(directory)) if is_of(term_of(name), born)]
    if not names:
        return NO_FILES
    found = [_open(disk, directory, name) for name in names]
    sizes = dict(found)
    files, _ = chain([file for file, _ in found])
    for file, following in itertools.pairwise(files):
        file.end_offset = following.previous_end
        file.end_position = sizes[file] if file.closing is None else file.closing.end_position
    last = files[-1]
    if last.closing is None:
        _scan(disk, last, tuple(bucket_ends))
    else:
        last.end_offset, last.end_position = last.closing.end_offset, last.closing.end_position
    size = sum(file.size_bytes for file in files)
    return Extent(files[0].first_offset, last.end_offset, Gaps(files), size, len(files), last.sealed)


def _open(disk: Disk, directory: str, name: str) -> tuple[LogFile, int]:
    """The file as its header describes it, and its size."""
    header, size = read_header(disk, directory, name)
    file = LogFile(directory, header.opening, header.origin, header.witness, created=True)
    file.closing = header.closing
    return file, size


def _scan(disk: Disk, file: LogFile, bucket_ends: tuple[int, ...]) -> None:
    """Find the end of a file that was not closed. Raises CorruptionError when it lies below what was durable."""
    from engine.storage.file.recovery import feed_file  # after a crash alone

    opening = file.opening
    scan = log.Scan(opening.salt, opening.segment_id, opening.first_offset, opening.data_position, bucket_ends)
    handle = disk.open(file.path)
    try:
        feed_file(scan, handle)
    finally:
        handle.close()
    if file.witness is not None and file.witness.durable_offset > scan.next_offset:
        raise CorruptionError(
            f"{file.path}, position {scan.position}: the log ends at offset {scan.next_offset}, and was durable up to "
            f"offset {file.witness.durable_offset}"
        )
    file.end_offset, file.end_position = scan.next_offset, scan.position
