"""`Backups`: keeps the data directory as it is at one moment, for as long as a backup copies it.

    begin     nothing is being opened, closed or deleted: in one turn of the loop the records of the metadata, and of
              every open segment its files and its durable end
              then the files get links of their own, the records become a metadata file, a plan says what is what
    read      pieces of what is kept, for a backup from elsewhere; on this machine it is copied from there
    renew     a backup that was not heard of for LEASE_S has ended
    end       the links go

What is kept is what a kill at that moment would have left on the disk, without what was not durable. So all that holds
after a kill holds in a copy (docs/design/backup.md).

Where several processes of one server serve the directory, the parent has this object, with the others as `Together`:
all of them stand still at the moment. The object of each child passes what it is asked on to the parent.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from engine._native.records.rows import Row
from engine.aio.shielded import shielded
from engine.aio.workers import ThreadWorkers, run
from engine.clock import Clock
from engine.control.base.topic_records import INDEX_TOPICS, topic_of_key
from engine.errors import (
    CorruptionError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from engine.metadata import keys
from engine.metadata.image import write_image
from engine.metadata.sqlite import SqliteMetadataStore
from engine.metadata.store import MetadataStore
from engine.model.backups import FORMAT, METADATA_FILE, PLAN_FILE, READ_SIZE_MAX, KeptSegment, Plan
from engine.model.identity import Identity
from engine.model.layout import SegmentLayout
from engine.model.names import SegmentName
from engine.storage.disk.config import storage_error
from engine.storage.disk.disk import Disk, OsDisk
from engine.storage.store import Freeze, SegmentStore

log = logging.getLogger(__name__)

DIRECTORY = "kept-for-backups"  # in the data directory
LEASE_S = 300.0
_LOOK_S = 15.0
_AT_ONCE_MAX = 4
_KEPT_AT_ONCE = 64  # segments
_ATTEMPTS_S_MAX = 20.0  # after that no further attempt is made to have all processes stand still
_ATTEMPT_PAUSE_S = 0.2
_PARENT = 0  # its number among the processes

Elsewhere = Callable[..., Awaitable[Any]]  # an operation's name, and its arguments


class InterruptedMomentError(Exception):
    """A process ended, began, or did not stand still in time. Another attempt may succeed."""


class Together(Protocol):
    """The other processes that serve the directory. All raise InterruptedMomentError."""

    def still(self, directory: str) -> AbstractAsyncContextManager[None]:
        """Inside, none of them does anything. Each has written what it has open, and keeps what it changes later."""

    def check(self) -> None:
        """None has ended or begun since."""

    async def go_on(self) -> None:
        """All is kept: they keep no longer. Raises nothing."""


@dataclass(slots=True)
class _Kept:
    path: Path
    began: float  # monotonic
    renewed: float


@dataclass(frozen=True, slots=True)
class BackupStatistics:
    """Since the start. `finished`: backups that were completed; `last_ms`: when the last of them was, 0 for none."""

    under_way: int
    finished: int
    last_ms: int


class Backups:
    """Of one broker. Loop thread only."""

    def __init__(
        self,
        store: SegmentStore,
        metadata: MetadataStore,
        clock: Clock,
        *,
        shared: bool,
        together: Together | None = None,
    ) -> None:
        """`shared`: other brokers may use the metadata store. `together`: the brokers, where this process is none."""
        self.elsewhere: Elsewhere | None = None  # another process of this server has the backups
        self._together = together
        self._store = store
        self._metadata = metadata
        self._disk = store.disk
        self._clock = clock
        self._shared = shared
        self._root = Path(store.data) / DIRECTORY
        self._kept: dict[str, _Kept] = {}
        self._began = asyncio.Event()
        self._beginning = asyncio.Lock()
        self._finished = self._last_ms = 0
        self._workers = ThreadWorkers(1, "engine-backup")

    def statistics(self) -> BackupStatistics:
        """Counters, and what holds now."""
        return BackupStatistics(len(self._kept), self._finished, self._last_ms)

    async def run(self) -> None:
        """Remove what an earlier process has kept, then what is not renewed in time. Until cancelled."""
        if self._is_supported:
            try:
                await run(self._workers, partial(_remove_all, self._disk, str(self._root)))
            except OSError as e:
                log.warning("what an earlier backup kept in %s could not be removed: %s", self._root, e)
        try:
            while True:
                await self._began.wait()
                await asyncio.sleep(_LOOK_S)
                await self.expire()
                if not self._kept:
                    self._began.clear()
        finally:
            self._workers.close()

    async def expire(self) -> None:
        """End those that were not heard of for LEASE_S."""
        now = self._clock.monotonic()
        for ident in [i for i, kept in self._kept.items() if now - kept.renewed > LEASE_S]:
            log.warning("the backup %s was not heard of for %g s, and has ended", ident, LEASE_S)
            await self.end(ident, done=False)

    @property
    def _is_supported(self) -> bool:
        return isinstance(self._disk, OsDisk) and isinstance(self._metadata, SqliteMetadataStore) and not self._shared

    def _check_supported(self) -> None:
        if self._shared:
            raise UnsupportedError(
                "a cluster, or a directory that several servers share, cannot be backed up while they run: stop them "
                "and back the directory up with --data; see the page `backup` for a cluster"
            )
        if not self._is_supported:
            raise UnsupportedError("an engine in memory has no files that could be backed up")

    async def begin(self) -> dict[str, Any]:
        """See the table of operations."""
        if self.elsewhere is not None:
            begun: dict[str, Any] = await self.elsewhere("begin")
            return begun
        self._check_supported()
        async with self._beginning:
            if len(self._kept) >= _AT_ONCE_MAX:
                raise LimitExceededError(
                    f"at most {_AT_ONCE_MAX} backups may run at once; one that was killed ends after {LEASE_S:g} s"
                )
            began = self._clock.monotonic()
            while True:
                try:
                    ident, plan = await self._attempt(began)
                    break
                except InterruptedMomentError as e:
                    if self._clock.monotonic() - began > _ATTEMPTS_S_MAX:
                        raise StorageError(f"the processes did not stand still for a backup: {e}; try again") from e
                    log.info("another attempt to keep the directory is made: %s", e)
                await asyncio.sleep(_ATTEMPT_PAUSE_S)
            self._began.set()
        log.info("the backup %s keeps %d segments", ident, len(plan.segments), extra={"version": plan.version})
        return {"backup": ident, "directory": str(self._kept[ident].path.absolute())}

    async def _attempt(self, began: float) -> tuple[str, Plan]:
        ident = f"{self._store.rng.getrandbits(64):016x}"
        path = self._root / ident
        try:
            plan = await self._keep(path)
        except BaseException:
            try:
                await shielded(run(self._workers, partial(_remove, self._disk, str(path))))
            except OSError as e:  # another process has just added a link
                log.warning("what an attempt kept in %s is removed at the next start: %s", path, e)
            raise
        self._kept[ident] = _Kept(path, began, self._clock.monotonic())
        return ident, plan

    async def _keep(self, path: Path) -> Plan:
        from importlib.metadata import version as release

        assert isinstance(self._metadata, SqliteMetadataStore)
        await self._run(partial(path.mkdir, mode=0o700, parents=True), path)
        together = self._together
        try:
            async with self._store.settled() if together is None else together.still(str(path)):
                # From here on to the next await: the moment.
                freeze = self._store.freeze(str(path)) if together is None else self._freeze_shared(path)
                version, rows = self._metadata.rows()
                taken_ms = self._clock.time_ms()
            try:
                topics, names = await self._run(partial(_stores, rows), path)
                segments = [each async for each in self._keep_all(freeze, names)]
                if together is not None:
                    together.check()
            finally:
                freeze.end()
        finally:
            if together is not None:
                await together.go_on()
        identity = _identity(rows)
        plan = Plan(
            format=FORMAT,
            engine=release("engine"),
            version=version,
            store=f"{identity.store:016x}",
            generation=identity.generation,
            topics=topics,
            taken_ms=taken_ms,
            segments=segments,
        )
        await self._run(partial(_write, path, plan, version, rows), path)
        return plan

    def _freeze_shared(self, path: Path) -> Freeze:
        from engine.storage.shared_moment import SharedMoment

        return self._store.freeze(str(path), SharedMoment(self._disk, str(path), _PARENT))

    async def _keep_all(self, freeze: Freeze, names: dict[SegmentName, bool]) -> AsyncIterator[KeptSegment]:
        waiting = list(names.items())
        for start in range(0, len(waiting), _KEPT_AT_ONCE):
            some = waiting[start : start + _KEPT_AT_ONCE]
            for (name, recorded), kept in zip(
                some, await asyncio.gather(*(freeze.keep(name) for name, _ in some)), strict=True
            ):
                if kept is None and recorded:
                    raise CorruptionError(
                        f"{name} is missing: {self._store.directory(name)} has none of its files, and by the metadata "
                        "it was created and not deleted"
                    )
                if kept is not None:
                    yield kept

    async def _run(self, work: partial[Any], path: Path) -> Any:
        try:
            return await run(self._workers, work)
        except OSError as e:
            raise storage_error(e, str(path)) from e

    def _find(self, ident: str) -> _Kept:
        kept = self._kept.get(ident)
        if kept is None:
            raise NotFoundError(
                f"no backup {ident!r:.40} is under way: the broker was started again, or did not hear of it for "
                f"{LEASE_S:g} s; begin again"
            )
        kept.renewed = self._clock.monotonic()
        return kept

    async def read(self, ident: str, file: str, position: int, size: int) -> str:
        """See the table of operations."""
        if self.elsewhere is not None:
            return str(await self.elsewhere("read", ident=ident, file=file, position=position, size=size))
        kept = self._find(ident)
        if not (file.isdecimal() or file in (PLAN_FILE, METADATA_FILE)):
            raise InvalidArgumentError(f"file must be one that the plan names, got {file!r:.80}")
        return str(await self._run(partial(_read, kept.path / file, position, min(size, READ_SIZE_MAX)), kept.path))

    async def renew(self, ident: str) -> None:
        """See the table of operations."""
        if self.elsewhere is not None:
            await self.elsewhere("renew", ident=ident)
        else:
            self._find(ident)

    async def end(self, ident: str, done: bool) -> None:
        """See the table of operations."""
        if self.elsewhere is not None:
            await self.elsewhere("end", ident=ident, done=done)
            return
        kept = self._kept.pop(ident, None)
        if kept is None:
            return
        if done:
            self._finished += 1
            self._last_ms = self._clock.time_ms()
        log.info("the backup %s has ended after %.1f s", ident, self._clock.monotonic() - kept.began)
        await self._run(partial(_remove, self._disk, str(kept.path)), kept.path)


def _stores(rows: Sequence[Row]) -> tuple[int, dict[SegmentName, bool]]:
    """How many topics there are; the segments that have a store, and whether that is recorded."""
    names: dict[SegmentName, bool] = {}
    topics = 0
    for row in rows:
        record = row.record
        if INDEX_TOPICS in row.indexes:
            topics += 1
            topic = topic_of_key(record.key)
            for info in SegmentLayout.from_json(record.value).segments.values():
                names.setdefault(topic.segment(info.hash_range, info.segment_id), False)
        elif keys.is_stored(record.key):
            descriptor = record.value.decode().partition(" ")[0]
            names[SegmentName.described(topic_of_key(record.key), descriptor)] = True
    return topics, names


def _identity(rows: Sequence[Row]) -> Identity:
    """Written by the broker's start."""
    return next(Identity.from_json(row.record.value) for row in rows if row.record.key == keys.STORE)


def _write(path: Path, plan: Plan, version: int, rows: Sequence[Row]) -> None:
    """The records without those of sessions, which end with their process; and the plan."""
    write_image(path / METADATA_FILE, version, [row for row in rows if row.record.stat.session is None])
    (path / PLAN_FILE).write_bytes(msgspec.json.encode(plan))


def _read(path: Path, position: int, size: int) -> str:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise InvalidArgumentError(f"file must be one that the plan names, got {path.name!r:.80}") from None
    with file:
        file.seek(position)
        return base64.b64encode(file.read(size)).decode()


_is_ident = re.compile(r"[0-9a-f]{16}").fullmatch


def _remove(disk: Disk, path: str) -> None:
    """The directory of a backup and its links."""
    for name in disk.list(path):
        disk.unlink(f"{path}/{name}")
    disk.remove_directory(path)


def _remove_all(disk: Disk, root: str) -> None:
    """What an earlier process has left."""
    for name in disk.list(root):
        if _is_ident(name):
            _remove(disk, f"{root}/{name}")
