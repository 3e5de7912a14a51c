"""Which files of a segment may go, and letting them go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.aio.workers import run
from engine.clock import Ages
from engine.storage.disk.config import storage_error
from engine.storage.file.context import Context
from engine.storage.file.logfile import LogFile
from engine.storage.file.owners import Lease


def ages_of(files: Sequence[LogFile], now_ms: int, ages: Ages[int] | None) -> dict[int, float]:
    """Seconds since the newest entry of each file but the last, by first offset. `ages`: of earlier looks, if any."""
    newest_ms = {file.first_offset: file.last_time_ms for file in files[:-1]}
    if ages is not None:
        return ages.look(newest_ms)
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

    `ages_s`: see ages_of(). Past the time: its newest entry is older than `retention_ms`. Past the size: without it the
    rest still has `retention_bytes`. None: no such limit.
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
    """Take them out of `files`, then from the disk, the oldest first. Raises StorageError, NotOwnerError.

    One that could not be deleted stays, and all behind it: a later one must not go before it, or there were a hole.
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
