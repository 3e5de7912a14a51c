"""`engine` with a bug in it, for tests that have to find it: `python -m tests.chaos.planted_program BUG serve …`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from engine._native.format.crc32c import crc32c
from engine.aio.workers import run
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.ownership import OwnerLease
from engine.cli.main import main
from engine.storage import consolidation
from engine.storage.commit.committer import Committer
from engine.storage.file import upload as uploads
from engine.storage.objects.references import RolledFile
from engine.storage.objects.wal import ObjectWal
from engine.storage.objects.writer import LogWriter

LATE_S = 60.0


def lease_is_believed() -> None:
    """No bug by itself: the fence is enough."""
    OwnerLease.held = property(lambda lease: not lease._over)  # type: ignore[assignment, method-assign]
    OwnerLease.end = lambda lease: None  # type: ignore[method-assign]
    Committer._lapsed = lambda committer: False  # type: ignore[method-assign]
    OpenSegments.session_lost = lambda segments: None  # type: ignore[method-assign]


def no_fence() -> None:
    """R3: a takeover goes by the names that it finds, and the old owner goes on writing."""
    lease_is_believed()

    async def fence(self: ObjectWal, session: str) -> int:
        folder = self._log._replace(session=session).folder
        names = [int(info.name.rsplit("/", 1)[1]) async for info in self._store.list(folder)]
        return max(names, default=-1) + 1

    ObjectWal.fence = fence  # type: ignore[method-assign]


def acknowledged_before_the_put() -> None:
    """R7: a group is acknowledged as soon as it has its place in an object."""
    real = LogWriter._add

    def add(self: LogWriter, *arguments: Any) -> asyncio.Future[int]:
        real(self, *arguments).add_done_callback(lambda stored: stored.cancelled() or stored.exception())
        at_once: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        at_once.set_result(self._open.n)
        return at_once

    LogWriter._add = add  # type: ignore[method-assign]


def named_before_the_upload() -> None:
    """R14: the record names a file that is stored later."""
    real, later = consolidation.upload, set[asyncio.Task[Any]]()

    async def upload(store: Any, name: str, disk: Any, workers: Any, file: Any, following: Any) -> RolledFile:
        def look() -> tuple[Any, uploads._Pieces]:
            ready = uploads._prepare(disk, file, following)
            pieces = uploads._Pieces(ready.handle, ready.size)
            for _ in pieces:
                """Only for its checksum."""
            ready.handle.close()
            return ready, pieces

        async def store_it() -> None:
            await asyncio.sleep(LATE_S)
            await real(store, name, disk, workers, file, following)

        ready, pieces = await run(workers, look)
        later.add(asyncio.create_task(store_it()))
        closing = ready.closing
        return RolledFile(
            file.first_offset, closing.end_offset, ready.size, crc32c(b"", pieces.crc), name, closing.last_time_ms
        )

    consolidation.upload = upload


BUGS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (lease_is_believed, no_fence, acknowledged_before_the_put, named_before_the_upload)
}

if __name__ == "__main__":
    BUGS[sys.argv.pop(1)]()
    sys.exit(main())
