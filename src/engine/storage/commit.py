"""Group commit: turns appends into writes and syncs of the active file, and knows what is durable.

Appends that arrive while a sync runs form the next group; there is no timer. At most two jobs run: the *primary* writes
a group and syncs, or only syncs what was written; while it runs, large groups are written *ahead*, so that the disk is
never without work. A failed write is cut off again. A failed sync is never retried: the file is abandoned at its last
durable byte and a new one continues (DESIGN section 6).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from engine.errors import CorruptionError, EngineError, StorageError, UnknownOutcomeError
from engine.limits import KIB
from engine.storage.config import FSYNC, INTERVAL, StorageConfig, storage_error
from engine.storage.disk import File
from engine.storage.format import State
from engine.storage.group import GROUP_MAX, Appended, Group
from engine.storage.handles import Handles
from engine.storage.logfile import LogFile, SyncFailed, sync
from engine.storage.recovery import verify_tail
from engine.storage.workers import Workers, run

AHEAD_MIN = 256 * KIB  # a smaller group waits for the sync that runs and is written together with its own
PAD_GROUP_MAX = 32 * KIB  # after larger groups no zeros are written ahead

_log = logging.getLogger("engine.storage")


class Owner(Protocol):
    """What group commit needs of its segment."""

    def plan_file(self, first_offset: int) -> LogFile:
        """A file to be created, with a new salt and what duplicate detection knows below the offset."""

    def snapshot(self, below: int) -> bytes:
        """What duplicate detection knows below an offset."""

    def file_created(self, file: LogFile) -> None:
        """The file is there and durable; it is the active one from now on."""

    def group_durable(self, group: Group) -> None:
        """The group may be read."""

    def rolled_back(self, offset: int) -> None:
        """Nothing at or above the offset is in the log any more."""

    def file_failed(self, error: EngineError) -> None:
        """What was durable is damaged; the segment cannot go on."""


@dataclass(slots=True)
class Counters:
    """Counted since the segment was opened."""

    commits: int = 0
    commit_bytes: int = 0
    syncs: int = 0
    rolls: int = 0
    write_failures: int = 0
    sync_failures: int = 0


@dataclass(slots=True)
class Primary:
    """The primary job that runs."""

    covered: list[Group]  # durable when it succeeds, in order
    written: Group | None  # the last of them, where the job writes it
    syncs: bool
    pads: bool
    offset: int  # synced up to here when it succeeds
    position: int


@dataclass(slots=True)
class Failure:
    """What went wrong. `group` is the one that could not be written; None: a sync failed."""

    error: BaseException
    group: Group | None
    lost: list[Group]


class Committer:
    """Group commit for one segment. Loop thread only."""

    __slots__ = (
        "_ahead",
        "_blocked",
        "_config",
        "_failure",
        "_handles",
        "_idle",
        "_mode",
        "_open",
        "_owner",
        "_position",
        "_primary",
        "_queue",
        "_scheduled",
        "_sync_wanted",
        "_synced_position",
        "_target",
        "_timer",
        "_workers",
        "_written",
        "_written_offset",
        "_written_position",
        "counters",
        "durable_offset",
        "file",
        "interval_ms",
        "next_offset",
        "synced_offset",
    )

    def __init__(
        self, owner: Owner, handles: Handles, workers: Workers, config: StorageConfig, mode: str, file: LogFile
    ) -> None:
        # Fixed after it was made.
        self._owner = owner
        self._handles = handles
        self._workers = workers
        self._config = config
        self._mode = mode
        self.interval_ms = config.interval_ms
        self.counters = Counters()
        # How far the log goes: synced <= durable (what the mode calls so) <= written <= next.
        end, position = file.end_offset, file.end_position
        self.synced_offset = self.durable_offset = self._written_offset = self.next_offset = end
        self._synced_position = self._written_position = self._position = position
        # The active file, None when it was abandoned; and the one that new appends go to, which may not be there yet.
        self.file: LogFile | None = file
        self._target: LogFile | None = file
        # Groups on their way: waiting; being added to; being written ahead; written, not yet covered by a sync.
        self._queue: deque[Group] = deque()
        self._open: Group | None = None
        self._ahead: Group | None = None
        self._written: list[Group] = []
        # Jobs.
        self._primary: Primary | None = None
        self._failure: Failure | None = None
        self._blocked = False  # a file is being made, or a failure cleaned up
        self._scheduled = False
        self._sync_wanted = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []

    # Appending

    def add(
        self, data: memoryview, positions: list[int], counts: list[int], term: int, time_ms: int
    ) -> tuple[Group, int]:
        """Give whole entries their place; (the group they are in, their first offset)."""
        group = self._group_for(len(data))
        first = offset = self.next_offset
        position = group.end_position
        group.add(data, term, time_ms, self.synced_offset)
        index = group.file.index
        assert index is not None
        for at, count in zip(positions, counts, strict=True):
            index.add(offset, position + at, time_ms)
            offset += count
        group.file.last_time_ms = time_ms
        self.next_offset = group.next_offset
        self._position = group.end_position
        self._schedule()
        return group, first

    def newest(self) -> Group | None:
        """The group that becomes durable last, None when everything is."""
        if self._open is not None:
            return self._open
        if self._queue:
            return self._queue[-1]
        if self._ahead is not None:
            return self._ahead
        if self._written:
            return self._written[-1]
        return self._primary.covered[-1] if self._primary is not None and self._primary.covered else None

    def _group_for(self, size: int) -> Group:
        target, group = self._target, self._open
        full = target is not None and self._position + size > self._config.file_size_max
        if target is None or (full and self._position > target.opening.data_position):
            self._freeze()
            target = self._target = self._owner.plan_file(self.next_offset)
            self._position = target.opening.data_position
        elif group is not None and group.size + size <= GROUP_MAX:
            return group
        self._freeze()
        self._open = Group(target, self._position, self.next_offset)
        return self._open

    def _freeze(self) -> None:
        if self._open is not None:
            self._queue.append(self._open)
            self._open = None

    # Which job is next

    def _schedule(self) -> None:
        """Pump at the end of this turn of the loop, so that appends of one turn share a commit."""
        if not self._scheduled and not self._blocked:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump_scheduled)

    def _pump_scheduled(self) -> None:
        self._scheduled = False
        self._pump()

    def _pump(self) -> None:
        if self._blocked or self._failure is not None:
            return
        group = self._queue[0] if self._queue else self._open
        if self._primary is None:
            self._pump_primary(group)
            group = self._queue[0] if self._queue else self._open
        if self._primary is not None and group is not None and self._may_write_ahead(group):
            self._start_ahead(self._take(group))
        self._check_idle()

    def _pump_primary(self, group: Group | None) -> None:
        if group is not None and group.file is not self.file:
            self._pump_rotation(group.file)
        elif group is not None and self._ahead is None and not (self._written and group.size >= AHEAD_MIN):
            self._start_primary(self._take(group), self._mode == FSYNC)
        elif self._written or (self._sync_wanted and self._written_offset > self.synced_offset):
            self._start_primary(None, True)

    def _pump_rotation(self, target: LogFile) -> None:
        """Everything before a new file is durable before the new file is made."""
        if self._written or (self.file is not None and self._written_offset > self.synced_offset):
            if self._ahead is None or self._written:
                self._start_primary(None, True)
        elif self._ahead is None:
            self._rotate(target, None)

    def _may_write_ahead(self, group: Group) -> bool:
        primary, file = self._primary, self.file
        if self._ahead is not None or primary is None or primary.pads or group.file is not file:
            return False
        if file.closing is not None or (self._mode == FSYNC and group.size < AHEAD_MIN):
            return False
        unsynced = sum(g.size for g in self._written) + sum(g.size for g in primary.covered)
        return unsynced + group.size <= self._config.commit_bytes_max

    def _take(self, group: Group) -> Group:
        if self._queue:
            return self._queue.popleft()
        self._open = None
        return group

    # Jobs

    def _start_primary(self, group: Group | None, syncs: bool) -> None:
        file = self.file
        assert file is not None
        covered = [*self._written, group] if group else self._written
        last = covered[-1] if covered else None
        offset, position = (
            (last.next_offset, last.end_position) if last else (self._written_offset, self._written_position)
        )
        self._written = []
        pads = group is not None and group.size <= PAD_GROUP_MAX and group.end_position > file.allocated
        self._primary = Primary(covered, group, syncs, pads, offset, position)
        self._sync_wanted = self._sync_wanted and not syncs
        self._post(file, lambda handle: _write_and_sync(file, handle, group, syncs, pads), self._primary_done)

    def _start_ahead(self, group: Group) -> None:
        self._ahead = group
        file = group.file
        self._post(
            file, lambda handle: file.write(handle, group.buffers, group.position, group.size, False), self._ahead_done
        )

    def _post(self, file: LogFile, work: Callable[[File], Any], done: Callable[[BaseException | None], None]) -> None:
        try:
            handle = self._handles.pin(file)
        except OSError as e:
            asyncio.get_running_loop().call_soon(done, e)
            return

        def finished(_: object, error: BaseException | None) -> None:
            self._handles.unpin(file)
            done(error)

        self._workers.post(lambda: work(handle), finished)

    def _primary_done(self, error: BaseException | None) -> None:
        job, self._primary = self._primary, None
        assert job is not None
        if error is not None:
            self._primary_failed(job, error)
            return
        if job.syncs:
            self.counters.syncs += 1
            self.synced_offset, self._synced_position = job.offset, job.position
        if self._mode == FSYNC:
            self._publish(job.covered)
        elif job.written is not None:
            self._publish([job.written])
            self._publish_written()
        self._continue()

    def _publish_written(self) -> None:
        """In the relaxed modes what is written counts as durable, in order."""
        groups, self._written = self._written, []
        self._publish(groups)

    def _ahead_done(self, error: BaseException | None) -> None:
        group, self._ahead = self._ahead, None
        assert group is not None
        if error is not None:
            self._note(Failure(error, None if isinstance(error, SyncFailed) else group, [group]))
        else:
            self._written.append(group)
            if self._mode != FSYNC and (self._primary is None or self._primary.written is None):
                self._publish_written()
        self._continue()

    def _continue(self) -> None:
        if self._failure is None:
            self._pump()
        elif self._primary is None and self._ahead is None:
            self._clean_up(self._failure)

    def _publish(self, groups: list[Group]) -> None:
        if not groups:
            return
        last = groups[-1]
        last.file.end_offset, last.file.end_position = last.next_offset, last.end_position
        self.durable_offset = last.next_offset
        if last.next_offset > self._written_offset:
            self._written_offset, self._written_position = last.next_offset, last.end_position
        self.counters.commits += 1
        self.counters.commit_bytes += sum(g.size for g in groups)
        for group in groups:
            self._owner.group_durable(group)
            group.succeed()
        if self._mode == INTERVAL and self._timer is None and self._written_offset > self.synced_offset:
            self._timer = asyncio.get_running_loop().call_later(self.interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._sync_wanted = True
        self._pump()

    # Failures

    def _primary_failed(self, job: Primary, error: BaseException) -> None:
        if isinstance(error, OSError) and job.written is not None:
            self._written = [g for g in job.covered if g is not job.written] + self._written
            self._note(Failure(error, job.written, [job.written]))
        elif isinstance(error, OSError):
            self._written = job.covered + self._written  # the file could not be opened: nothing was done
            self._note(Failure(SyncFailed(error), None, []))
        else:
            self._note(Failure(error, None, list(job.covered)))
        self._continue()

    def _note(self, failure: Failure) -> None:
        """Keep the failure that undoes more; what both lose is lost."""
        known = self._failure
        if known is None:
            self._failure = failure
            return
        lost = sorted((*known.lost, *failure.lost), key=lambda g: g.first_offset)
        both = [f for f in (known, failure) if f.group is None] or [
            min((known, failure), key=lambda f: f.group.first_offset if f.group else 0)
        ]
        self._failure = Failure(both[0].error, both[0].group, lost)

    def _clean_up(self, failure: Failure) -> None:
        """No job runs. Take everything from the failed offset on out of the log, then out of the file."""
        self._failure = None
        self._blocked = True
        if failure.group is None or self.file is None:
            self._abandon(failure)
            return
        self.counters.write_failures += 1
        file, group = self.file, failure.group
        lost = self._cut_off(group.first_offset, failure.lost)
        self._target, self._position = file, group.position
        error = (
            storage_error(failure.error, file.path)
            if isinstance(failure.error, OSError)
            else StorageError(f"{file.path}: {failure.error}")
        )

        def done(trouble: BaseException | None) -> None:
            if trouble is not None:
                self._abandon(Failure(trouble, None, lost))
                return
            _fail_all(lost, error)
            self._blocked = False
            self._pump()

        if file.closing is not None:  # the file could not be opened for appending again; it holds nothing of the group
            asyncio.get_running_loop().call_soon(done, None)
        else:
            self._post(file, lambda handle: file.rollback(handle, group.position), done)

    def _cut_off(self, offset: int, lost: list[Group]) -> list[Group]:
        """Nothing at or above `offset` was appended, as far as memory knows; the groups concerned."""
        waiting = [*self._written, *self._queue, *([self._open] if self._open else [])]
        lost = sorted({*lost, *(g for g in waiting if g.first_offset >= offset)}, key=lambda g: g.first_offset)
        self._written = [g for g in self._written if g.first_offset < offset]
        self._queue.clear()
        self._open = None
        self.next_offset = offset
        if self.file is not None and self.file.index is not None:
            self.file.index.rollback(offset)
        self._owner.rolled_back(offset)
        return lost

    def _abandon(self, failure: Failure) -> None:
        """A sync failed: nothing more is done with this file. What was not synced is cut off, a new file continues."""
        self._blocked = True
        self.counters.sync_failures += 1
        old = self.file
        lost = self._cut_off(self.synced_offset, failure.lost)
        self.durable_offset = self._written_offset = self.synced_offset
        if old is not None:
            old.end_offset, old.end_position = self.synced_offset, self._synced_position
        self.file = None
        path = old.path if old is not None else "the log"
        _log.error("%s: sync failed (%s); the file is abandoned at offset %d", path, failure.error, self.synced_offset)
        _fail_all(
            lost, UnknownOutcomeError(f"{path}: the sync failed ({failure.error}); read back to see what is there")
        )
        self._target = self._owner.plan_file(self.next_offset)
        self._position = self._target.opening.data_position
        self._rotate(self._target, old)

    # Files

    def _rotate(self, new: LogFile, abandoned: LogFile | None) -> None:
        """Make a new file and go on there."""
        self._blocked = True
        old = self.file

        def work() -> File:
            if abandoned is not None:
                verify_tail(self._handles.disk, abandoned)
            return new.create(self._handles.disk)

        def done(handle: File | None, error: BaseException | None) -> None:
            self._blocked = False
            if error is not None or handle is None:
                self._rotation_failed(new, error)
                return
            self._handles.adopt(new, handle)
            self.file, new.created = new, True
            self._written_position = self._synced_position = new.opening.data_position
            self.counters.rolls += 1
            self._owner.file_created(new)
            if old is not None:
                self._close_rolled(old, new.snapshot or b"")
            new.snapshot = None
            self._pump()

        self._workers.post(work, done)

    def _rotation_failed(self, new: LogFile, error: BaseException | None) -> None:
        """The new file may be there or not; so the old one is over, and the next append makes the new one again."""
        lost = self._cut_off(new.first_offset, [])
        self.file = self._target = None
        if isinstance(error, CorruptionError):
            self._owner.file_failed(error)
            _fail_all(lost, error)
        elif isinstance(error, SyncFailed):
            _fail_all(lost, storage_error(error.error, new.path))
        elif isinstance(error, OSError):
            _fail_all(lost, storage_error(error, new.path))
        else:
            _fail_all(lost, StorageError(f"{new.path}: {error}"))
        self._check_idle()

    def _close_rolled(self, file: LogFile, snapshot: bytes) -> None:
        """Give a full file its footer, behind everybody's back; without it, opening the segment reads the file."""

        def work(handle: File) -> None:
            closing = file.close(handle, State.ROLLED, file.end_offset, file.end_position, snapshot)
            file.closing, file.index = closing, None

        def done(error: BaseException | None) -> None:
            if error is not None:
                _log.warning("%s: no footer could be written (%s)", file.path, error)

        self._post(file, work, done)

    # Standing still

    async def finish(self, state: State) -> None:
        """Wait for all appends, then close the active file so that it ends as `state`. No appends meanwhile.

        Raises StorageError. After a failed sync the next attempt makes a new, empty file.
        """
        await self.drain()
        if self.file is None:
            await self._replace()
        file = self.file
        assert file is not None
        handle = self._handles.pin(file)
        snapshot = self._owner.snapshot(self.next_offset)
        try:
            file.closing = await run(
                self._workers, lambda: file.close(handle, state, file.end_offset, file.end_position, snapshot)
            )
        except SyncFailed as e:
            self.file = self._target = None
            raise storage_error(e.error, file.path) from e
        except OSError as e:
            raise storage_error(e, file.path) from e
        finally:
            self._handles.unpin(file)

    async def _replace(self) -> None:
        new = self._owner.plan_file(self.next_offset)
        self._target, self._position = new, new.opening.data_position
        self._rotate(new, None)
        await self.drain()
        if self.file is not new:
            raise StorageError(f"{new.path} could not be made")

    async def drain(self) -> None:
        """Wait until nothing is on its way and everything written is synced, or failed."""
        self._sync_wanted = True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        self._pump()
        await waiter
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_idle(self) -> None:
        if not self._idle or self.newest() is not None or self._primary is not None or self._blocked:
            return
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _write_and_sync(file: LogFile, handle: File, group: Group | None, syncs: bool, pads: bool) -> None:
    """The primary job. An OSError means that the write failed; SyncFailed, the sync."""
    if group is not None:
        file.write(handle, group.buffers, group.position, group.size, pads)
    if syncs:
        sync(handle)


def _fail_all(groups: list[Group], error: EngineError) -> None:
    for group in groups:
        group.fail(error)


__all__ = ["Appended", "Committer", "Counters", "Group", "Owner"]
