"""Which files of a segment may go, and letting them go."""

from __future__ import annotations

from collections.abc import Sequence

from engine.aio.workers import run
from engine.storage.config import storage_error
from engine.storage.context import Context
from engine.storage.logfile import LogFile
from engine.storage.succession import Lease


def files_to_delete(
    files: Sequence[LogFile],
    *,
    min_offset: int,
    now_ms: int,
    retention_ms: int | None,
    retention_bytes: int | None,
) -> list[LogFile]:
    """The oldest files that hold only messages below `min_offset` and are past a limit; never the last file.

    Past the time: its newest entry is older than `retention_ms`. Past the size: without it the rest still has
    `retention_bytes`. None: no such limit.
    """
    size = sum(f.size_bytes for f in files)
    doomed: list[LogFile] = []
    for file in files[:-1]:
        size -= file.size_bytes
        old = retention_ms is not None and file.last_time_ms < now_ms - retention_ms
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
