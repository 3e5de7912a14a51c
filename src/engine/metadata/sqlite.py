"""The metadata store of one machine: records in memory, their durable image in a SQLite file, group commit.

    callers           put() put() put()     put() put()
                          |                    |
    loop, one batch   evaluate on the      (queued: the next batch, evaluated
                      visible table         when this one is visible)
                          | step
    owner's thread    BEGIN, rows, summary, COMMIT = one sync
                          | done
    loop              apply to the table, answer callers, notify watches, begin the next batch

One commit runs at a time; writes that arrive meanwhile form the next one and share its sync. A write is evaluated when
the commit before it is visible, so a compare-and-set sees exactly what it competes with; and it becomes visible when
its own commit is durable, so a reader never sees what a crash could take back. A commit that fails surely (disk full)
leaves no trace. One whose outcome is unknown stops the store until the file is opened again: what is on disk is no
longer known to equal what is in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from engine.aio.histogram import Histogram, HistogramStatistics
from engine.aio.shielded import finished, shielded
from engine.aio.workers import ThreadWorkers, run
from engine.clock import Clock
from engine.errors import StorageError
from engine.limits import METADATA_COMMIT_WRITES_MAX
from engine.metadata.batch import Batch
from engine.metadata.commits import ImageCommits, StepCommits
from engine.metadata.image import Image, ImageStep
from engine.metadata.library import SqliteConnection, find_library
from engine.metadata.local import LocalStore
from engine.metadata.lockfile import LockFile
from engine.metadata.mark import Mark
from engine.metadata.table import Table, is_served
from engine.metadata.watches import WatchHub

T = TypeVar("T")
_Opened = tuple[Image, Table, "SqliteConnection | None"]

log = logging.getLogger(__name__)

_QUIET_S = 0.02  # without commits, after which the mark is synced
_BUSY_CHECKS_MAX = 50  # or after so many checks while commits never pause


@dataclass(frozen=True, slots=True)
class MetadataStatistics:
    """Counters since the store was opened, and sizes now."""

    records: int
    writes: int
    commits: int
    conflicts: int
    version: int
    commit_s: HistogramStatistics  # from handing a commit over until the loop learns that it is durable


@dataclass(slots=True)
class _Write:
    """One queued write: its evaluation, its future, its result. It is done even when its caller was cancelled."""

    operation: Callable[[Batch], Any]
    future: asyncio.Future[Any]
    count: int = 1  # the writes that it counts as
    result: Any = None
    error: Exception | None = None

    def evaluate(self, batch: Batch) -> None:
        try:
            self.result = self.operation(batch)
        except Exception as e:
            self.error = e

    def finish(self, failure: BaseException | None = None) -> None:
        if self.future.done():
            return  # the caller was cancelled
        error = failure or self.error
        if error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(error)


class SqliteMetadataStore(LocalStore):
    """Open it with `await SqliteMetadataStore.open(path, clock=…)`. Used on the loop that opened it."""

    def __init__(self, image: Image, table: Table, clock: Clock, owner: ThreadWorkers, commits: StepCommits) -> None:
        """Use open()."""
        super().__init__(table, WatchHub(table))
        self._image = image
        self._clock = clock
        self._owner = owner  # the one thread that may touch the image
        self._commits_to = commits
        # Writes not in a commit yet, in order.
        self._queue: deque[_Write] = deque()
        self._committing = False
        self._idle: asyncio.Future[None] | None = None
        self._failure: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self._writes = self._commits = self._conflicts = 0
        self._commit_s = Histogram()
        self._begun_at = 0.0
        self._until_quiet: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        clock: Clock,
        native: Callable[[SqliteConnection, Mark | None], StepCommits] | None = None,
        lock: LockFile | None = None,
        served: bool = False,
    ) -> SqliteMetadataStore:
        """Open or create the file at `path`; beside it are `-wal`, while it is open, and `.lock`.

        The store starts the thread that owns the file. `native`: makes the StepCommits where SQLite can be used without
        Python's interpreter lock; elsewhere that thread commits. `lock`: its lock file, where the caller has taken it.
        `served`: leave the sessions of an earlier service's clients to this one's service, which ends them in time;
        otherwise they end now.

        A cancelled open() ends when the file is closed and the lock released: until then the thread changes files that
        another process would open with that lock.

        Raises DataDirectoryBusyError, UnsupportedError (a newer format), CorruptionError, DiskFullError, StorageError.
        """
        owner = ThreadWorkers(1, "engine-metadata")
        opening = run(owner, partial(_open_image, Path(path), native is not None, lock))
        try:
            image, table, connection = await finished(opening)
        except BaseException:
            await _discard(opening, owner)
            raise
        commits = ImageCommits(image, owner) if native is None or connection is None else native(connection, image.mark)
        store = cls(image, table, clock, owner, commits)
        try:
            await store._end_leftover_sessions(served=served)
        except BaseException:
            await finished(asyncio.ensure_future(store.close()))
            raise
        return store

    async def _end_leftover_sessions(self, *, served: bool) -> None:
        leftover = [session for session in self._table.sessions if not (served and is_served(session))]
        for session in leftover:
            await self._write(lambda batch, session=session: batch.end_session(session))  # type: ignore[misc]

    async def _write(self, operation: Callable[[Batch], T], count: int = 1) -> T:
        if self._failure is not None:
            raise StorageError(self._failure)
        loop = asyncio.get_running_loop()
        write = _Write(operation, loop.create_future(), count)
        self._queue.append(write)
        if not self._committing:
            # Not at once: other writes of this turn of the loop join the commit.
            self._committing = True
            loop.call_soon(self._commit_next)
        result: T = await write.future
        return result

    def _commit_next(self) -> None:
        """Evaluate queued writes as one batch and start its commit. One commit at a time."""
        while self._queue:
            writes, count = [], 0
            batch = Batch(self._table, self._clock.time_ms())
            while self._queue and (count := count + self._queue[0].count) <= METADATA_COMMIT_WRITES_MAX:
                writes.append(write := self._queue.popleft())
                write.evaluate(batch)
            if not batch.changes:
                self._finish(batch, writes)
            elif self._post(batch, writes):
                return
        self._committing = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _post(self, batch: Batch, writes: list[_Write]) -> bool:
        """Start a commit. False: it could not be started, and its writes have failed."""
        self._begun_at = self._clock.monotonic()
        try:
            step = self._image.step(batch.changes)
            self._commits_to.post(step, partial(self._committed, batch, writes, step))
        except Exception as e:
            self._fail(e, writes)
            return False
        return True

    def _committed(
        self, batch: Batch, writes: list[_Write], step: ImageStep, _: None, failure: BaseException | None
    ) -> None:
        if failure is None:
            self._image.committed(step)
            self._commits += 1
            self._commit_s.observe(self._clock.monotonic() - self._begun_at)
            if self._until_quiet is None:
                self._wait_for_quiet()
            self._finish(batch, writes)
        else:
            self._fail(failure, writes)
        self._commit_next()

    def _wait_for_quiet(self, checks: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._until_quiet = loop.call_later(_QUIET_S, self._sync_when_quiet, self._commits, checks + 1)

    def _sync_when_quiet(self, commits: int, checks: int) -> None:
        """Sync the mark once per burst of commits: when none has ended since the timer was set."""
        if commits != self._commits and checks < _BUSY_CHECKS_MAX:
            self._wait_for_quiet(checks)
            return
        self._until_quiet = None
        mark = self._image.mark
        if mark is not None:
            self._owner.post(mark.sync, lambda _, error: None)

    def _finish(self, batch: Batch, writes: list[_Write]) -> None:
        batch.apply()
        self._conflicts += batch.refused
        for write in writes:
            self._writes += write.count
            self._conflicts += write.error is not None
            write.finish()
        self._hub.notify(batch.changes)

    def _fail(self, failure: BaseException, writes: list[_Write]) -> None:
        """Nothing of a failed commit becomes visible. After an unknown outcome the store takes no writes until
        reopened.
        """
        for write in writes:
            write.finish(failure)
        if isinstance(failure, StorageError):
            return
        self._failure = f"the metadata store stopped: {failure}; open it again"
        log.critical("%s", self._failure)
        while self._queue:
            self._queue.popleft().finish(StorageError(self._failure))

    @property
    def failure(self) -> str | None:
        """Why writes are refused until the file is opened again; None while the store works."""
        return self._failure

    def statistics(self) -> MetadataStatistics:
        return MetadataStatistics(
            len(self._table.rows), self._writes, self._commits, self._conflicts, self._table.version,
            self._commit_s.statistics(),
        )  # fmt: skip

    async def close(self) -> None:
        """Finish queued writes, end sessions and watches, release the file and its lock. Idempotent."""
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await shielded(self._closing)

    async def _close(self) -> None:
        sessions = [self.end_session(session) for session in list(self._sessions)]
        await asyncio.gather(*sessions, return_exceptions=True)
        if self._committing:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self._close_watches()
        if self._until_quiet is not None:
            self._until_quiet.cancel()
        self._commits_to.close()
        await run(self._owner, self._image.close)
        self._owner.close()


def _open_image(path: Path, native: bool, lock: LockFile | None) -> _Opened:
    image = Image(path, lock=lock)
    rows = image.load()
    table = Table(image.version, rows)  # on this thread: of 100,000 topics it takes a second or two
    library = find_library() if native else None
    return image, table, None if library is None else image.connect(library)


async def _discard(opening: asyncio.Future[_Opened], owner: ThreadWorkers) -> None:
    """Release what an open() that failed or was cancelled holds; the thread that opened it has ended to do so."""
    try:
        if opening.exception() is None:
            await finished(run(owner, opening.result()[0].close))
    finally:
        owner.close()
