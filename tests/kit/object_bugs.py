"""Bugs to plant into brokers on an object store: each is a function that is given `setattr`, or what undoes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from engine.aio.workers import run
from engine.broker.hosting.object_backing import ObjectBacking
from engine.broker.hosting.object_logs import ObjectLogs
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.ownership import OwnerLease
from engine.metadata import keys
from engine.storage import consolidation
from engine.storage.commit.committer import Committer
from engine.storage.consolidation import ObjectGarbage
from engine.storage.file import upload as uploads
from engine.storage.objects import fence as fences
from engine.storage.objects import records
from engine.storage.objects.references import RolledFile
from engine.storage.objects.wal import ObjectWal
from engine.storage.objects.writer import LogWriter

LATE_S = 60.0
Plant = Callable[[Any, str, Any], None]


def lease_is_believed(plant: Plant) -> None:
    """An owner goes on when its lease is over. No bug by itself: the fence is enough."""
    plant(OwnerLease, "held", property(lambda lease: not lease._over))
    plant(OwnerLease, "end", lambda lease: None)
    plant(Committer, "lapses", lambda committer: False)
    plant(OpenSegments, "session_lost", lambda segments: None)


def no_fence(plant: Plant) -> None:
    """R3: a takeover goes by the names that it finds, and the old owner goes on writing."""
    lease_is_believed(plant)

    async def fence(self: ObjectWal, session: str) -> int:
        seen = await records.read(self._metadata, session)
        log = self._log._replace(session=session)
        return await fences._first_without_data(self._store, log, seen.record.trimmed)

    plant(ObjectWal, "fence", fence)


def acknowledged_before_the_put(plant: Plant) -> None:
    """R7: a group is acknowledged as soon as it has its place in an object."""
    real = LogWriter._add

    def add(self: LogWriter, *arguments: Any) -> asyncio.Future[int]:
        real(self, *arguments).add_done_callback(lambda stored: stored.cancelled() or stored.exception())
        at_once: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        at_once.set_result(self._open.n)
        return at_once

    plant(LogWriter, "_add", add)


def named_before_the_upload(plant: Plant) -> None:
    """R14: the record names a file that is stored later."""
    real, later = consolidation.upload, set[asyncio.Task[Any]]()

    async def upload(
        store: Any, name: str, disk: Any, workers: Any, file: Any, following: Any, pace: Any
    ) -> RolledFile:
        def look() -> tuple[Any, int]:
            ready = uploads._prepare(disk, file, following)
            pieces = uploads._Pieces(ready.handle, ready.size)
            for _ in pieces:
                """For the checksum alone."""
            ready.handle.close()
            return ready, pieces.crc

        async def store_it() -> None:
            await asyncio.sleep(LATE_S)
            await real(store, name, disk, workers, file, following, pace)

        ready, crc = await run(workers, look)
        later.add(asyncio.create_task(store_it()))
        closing = ready.closing
        return RolledFile(file.first_offset, closing.end_offset, ready.size, crc, name, closing.last_time_ms)

    plant(consolidation, "upload", upload)


def inherited_is_not_kept(plant: Plant) -> None:
    """What a segment inherits of its parents' producers is on one machine's disk alone."""

    async def keep_inherited(self: ObjectBacking, snapshot: bytes) -> None:
        """Not."""

    plant(ObjectBacking, "keep_inherited", keep_inherited)


def no_grace(plant: Plant) -> None:
    """What retention gave up is deleted at once, also under readers that have begun."""
    real = ObjectGarbage.__init__
    plant(ObjectGarbage, "__init__", lambda self, store: real(self, store, 0.0))


def one_name_for_all_sessions(plant: Plant) -> None:
    """The sessions of a broker, one behind the other, have one name, and the record begins anew."""
    real = ObjectWal.open

    async def begin(self: ObjectLogs) -> ObjectWal:
        name = self._url.rpartition("//")[2].partition(":")[0]
        return await real(
            self.store, self._metadata, self.cluster, name, self._url, rng=self._rng, config=self._config
        )  # fmt: skip

    async def create(metadata: Any, session: str, record: Any) -> None:
        await metadata.put(keys.wal(session), msgspec.json.encode(record))

    plant(ObjectLogs, "_begin", begin)
    plant(records, "create", create)
