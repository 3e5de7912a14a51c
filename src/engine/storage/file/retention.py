"""Retention: which files of a segment may be deleted, and deleting them.

Files go whole, the oldest first, and never the last one. A file goes if every subscription has acknowledged all of it
(`min_offset`), and if it is past one of the limits:

    oldest ──► newest    │ 0.log │ 900.log │ 1800.log │ 2700.log (last) │
    by time                its newest entry is older than retention_ms
    by size                the files behind it still hold retention_bytes without it

The first file that has to stay keeps all behind it, so that the log never has a hole. Each file is removed durably
before the next one, for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.aio.workers import run
from engine.clock import Ages
from engine.storage.disk.config import storage_error
from engine.storage.file.context import Context
from engine.storage.file.logfile import LogFile
from engine.storage.file.owners import Lease


def ages_of(files: Sequence[LogFile], now_ms: int, ages: Ages[int] | None) -> dict[int, float]:
    """Seconds since the newest entry of each file but the last, by first offset. `ages`: kept between calls."""
    newest_ms = {file.first_offset: file.last_time_ms for file in files[:-1]}
    if ages is not None:
        return ages.update(newest_ms)
    return {offset: (now_ms - time_ms) / 1000 for offset, time_ms in newest_ms.items()}


def files_to_delete(
    files: Sequence[LogFile],
    *,
    min_offset: int,
    ages_s: Mapping[int, float],
    retention_ms: int | None,
    retention_bytes: int | None,
) -> list[LogFile]:
    """The oldest files that hold only messages below `min_offset` and are past a limit; never the last file.

    `ages_s`: see ages_of(). `retention_ms`, `retention_bytes`: None for no limit.
    """
    size = sum(f.size_bytes for f in files)
    doomed: list[LogFile] = []
    for file in files[:-1]:
        size -= file.size_bytes
        old = retention_ms is not None and ages_s[file.first_offset] * 1000 > retention_ms
        surplus = retention_bytes is not None and size >= retention_bytes
        if file.end_offset > min_offset or not (old or surplus):
            break
        doomed.append(file)
    return doomed


async def delete_files(
    context: Context, files: list[LogFile], doomed: Sequence[LogFile], lease: Lease | None = None
) -> None:
    """Remove files from the list `files`, then from the disk, the oldest first. Raises StorageError, NotOwnerError.

    A file that could not be deleted stays in the list, and so do all behind it.
    """
    for file in doomed:
        if lease is not None:
            lease.check()
        files.remove(file)
        context.handles.retire(file)
        try:
            await run(context.workers, lambda f=file: f.delete(context.disk))  # type: ignore[misc]
        except OSError as e:
            files.insert(0, file)
            raise storage_error(e, file.path) from e
