"""`Committer`: group commit for one segment. It decides which job is next, and what is durable.

What repeats with each append and each commit is its native base (`_native/serve/commits.pyx`).

Appends of one turn of the event loop, and all that arrive while a sync runs, share the next write and the next sync:
the slower the disk, the larger the groups, and there is no timer to tune. At most two jobs run:

    primary   writes the next group and syncs, or only syncs what was written
    ahead     writes a large group while the primary runs, so that the disk is never without work

    time ──────────────────────────────────────────────────────────────────────►
    primary   │ write 1, sync       │ sync          │ write 5, sync │
    ahead        │ write 2 │ write 3 │ write 4 │
    durable                         1               2, 3            4, 5      in order of offsets, always

With durability "fsync" a group is durable when a sync covers it; with "interval" and "os" when it is written, and the
sync follows after a time, or never; with "object" when it is written, never synced, and in the segment's backing, as
all before it is. A store of objects takes long for one, and many at a time: so the next group is written, and handed
over, while those before it are on their way; a small one waits a moment for others first.

    primary   │ write 1 │ write 2 │    │ write 3 │
    backing             │ 1 ─────────────│ 2 ──────────│ 3 ──────
    durable                              1             2           3

Rules that keep this correct:

* The next job is chosen by one function, next_step(), from what is waiting and what runs.
* All of a file is synced before the next file is created. So only the last file can have a torn tail.
* A failure lets running jobs end, then everything from the failed offset on is taken out of memory and out of the
  file; the more destructive of two failures is handled. See active_file.py for the file's part.
* Under a lease nothing is begun, and nothing confirmed, once the lease may be over (file/owners.py).
* When a backing does not say whether it has a group, the segment stops as if its lease were over: nothing is undone,
  and the next owner finds out. So a failure here is cleaned up when the backing has all that it was handed before.
"""

from __future__ import annotations

import asyncio
import enum
import logging

from engine._native.serve.commits import CommitTurns, Primary
from engine._native.serve.groups import Group
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    EngineError,
    NotOwnerError,
    StorageError,
    UnknownOutcomeError,
)
from engine.storage.commit.active_file import ActiveFile
from engine.storage.commit.failures import Failure, LogEndedError, job_error, worse
from engine.storage.commit.groups import Groups, fail_all
from engine.storage.commit.ports import Backing, SegmentLog
from engine.storage.commit.witness import WitnessWriter
from engine.storage.disk.config import FSYNC, INTERVAL, OBJECT
from engine.storage.file.context import Context
from engine.storage.file.format import State
from engine.storage.file.logfile import LogFile, SyncFailed
from engine.storage.file.owners import Lease

_log = logging.getLogger("engine.storage")


class Phase(enum.Enum):
    """Whether jobs may be started."""

    RUNNING = "jobs may be started"
    CHANGING = "a file is being created, or repaired after a failure: no job may touch it"
    STOPPED = "the segment was closed, or its lease is over: nothing is started any more"


class Committer(CommitTurns):
    """Owns the groups and the active file of one segment."""

    __slots__ = (
        "_active", "_backing", "_clock", "_lease", "_log", "_metrics", "_mode", "_phase", "_timer", "_witness",
        "interval_ms",
    )  # fmt: skip
    groups: Groups

    def __init__(
        self,
        segment: SegmentLog,
        context: Context,
        mode: str,
        file: LogFile,
        lease: Lease | None = None,
        restart: int | None = None,
        *,
        continues: bool = True,
        backing: Backing | None = None,
    ) -> None:
        """`continues`: `file` may be written to; else the first append creates a new one. `restart`: the offset that
        the next message gets, None: the file's end. `backing`: with durability "object".
        """
        end, target = file.end_offset if restart is None else restart, file if continues else None
        # Its parts. How far the log goes: active.synced_offset <= durable_offset (what the mode calls so) <=
        # groups.next_offset.
        self._active = ActiveFile(context, target, lease, end, file.end_position, backing, mode)
        super().__init__(
            Groups(target, end, context.config.file_size_max),
            self._active,
            segment,
            context.metrics,
            context.clock.monotonic,
            lease,
            by_sync=mode == FSYNC,
            by_interval=mode == INTERVAL,
            backed=mode == OBJECT,
            commit_bytes_max=context.config.commit_bytes_max,
        )
        # Fixed after it was made.
        self._log: SegmentLog = segment
        self._clock = context.clock
        self._metrics = context.metrics
        self._mode = mode
        self._backing = backing
        self._lease = lease  # None: no other broker can own the segment
        self.interval_ms = context.config.interval_ms
        self._witness = WitnessWriter(self._active, self, context.generation)
        self._phase = Phase.RUNNING
        self._timer: asyncio.TimerHandle | None = None  # "interval": the next sync; "object": of a small group

    @property
    def file(self) -> LogFile | None:
        """The active file. None: the next append creates one."""
        return self._active.file

    # Jobs

    def ahead_done(self, error: BaseException | None) -> None:
        group = self.groups.end_ahead()
        if error is not None:
            self._note(Failure(error, None if isinstance(error, SyncFailed) else group, [group]))
        else:
            self.groups.written.append(group)
            # In the relaxed modes what is written is durable, once all before it is: the primary may still be writing
            # its group, or have failed to.
            behind = self.failure is not None or (self.primary is not None and bool(self.primary.written))
            if self._mode != FSYNC and not behind:
                self.publish(self.groups.take_written())
        self.proceed()

    def synced(self) -> None:
        self._witness.synced()

    def sync_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.sync_wanted = True
        self.pump()

    def write_later(self) -> None:
        if self._timer is None:
            assert self._backing is not None
            self._timer = asyncio.get_running_loop().call_later(self._backing.gather_s, self._gathered)

    def _gathered(self) -> None:
        self._timer = None
        self.small_wanted = self.groups.head is not None
        self.pump()

    @property
    def newest(self) -> Group | None:
        """The group that ends last: with it all that was appended is durable, or has failed. None: that is so now."""
        groups, failure = self.groups, self.failure
        lost: list[Group] = [] if failure is None else failure.lost
        # What is lost fails when all before it has ended.
        return lost[-1] if lost and groups.head is None else groups.newest

    # What the witness needs (witness.Commits)

    @property
    def is_running(self) -> bool:
        return self.running

    def sync_witness(self) -> None:
        self.witness_sync_wanted = True
        self.pump()

    # From one file to the next

    def roll(self, new: LogFile, abandoned: LogFile | None, *, closes: bool = True) -> None:
        """Create a new file and go on there. `abandoned`: the file before, after a failed sync."""
        self._move_to(Phase.CHANGING)
        old = self._active.file

        def done(error: BaseException | None) -> None:
            self._move_to(Phase.RUNNING)
            if isinstance(error, LogEndedError):
                self._end_with(error)
                return
            if error is not None:
                self._roll_failed(new, error)
                return
            self.counters.rolls += 1
            self._log.file_created(new)
            if old is not None and closes:
                self._active.close_rolled(old, new.snapshot or b"")
            new.snapshot = None
            self.pump()

        self._active.create(new, abandoned, done)

    def _roll_failed(self, new: LogFile, error: BaseException) -> None:
        """The new file may be there or not; so the old one is over, and the next append creates the new one again."""
        lost = self._cut_off(new.first_offset, [])
        self._active.leave()
        self.groups.go_on_in(None)
        self._report_trouble(error)
        if isinstance(error, CorruptionError):
            self._log.file_failed(error)
        fail_all(lost, job_error(error, new.path))
        self.check_idle()

    # Failure

    def backing_ended(self, error: BaseException, groups: list[Group]) -> None:
        ended = error if isinstance(error, LogEndedError) else LogEndedError(repr(error))
        fail_all(groups, self._end_with(ended))

    def primary_failed(self, job: Primary, covered: list[Group], error: BaseException) -> None:
        if isinstance(error, OSError) and job.written:
            self.groups.give_back([group for group in covered if group not in job.written])
            self._note(Failure(error, job.written[0], job.written))
        elif isinstance(error, OSError):
            self.groups.give_back(covered)  # the file could not be opened: nothing was done
            self._note(Failure(SyncFailed(error), None, []))
        else:
            self._note(Failure(error, None, covered))

    def _note(self, failure: Failure) -> None:
        self.failure = failure if self.failure is None else worse(self.failure, failure)

    def clean_up(self, failure: Failure) -> None:
        """No job runs. Take everything from the failed offset on out of memory, then out of the file."""
        self.failure = None
        self._move_to(Phase.CHANGING)
        self._report_trouble(failure.error)
        file, group = self._active.file, failure.group
        if self.lapsed():  # the next owner may go by what the failed write or sync has left in the file
            fail_all(failure.lost, self._lapse_error())
        elif group is None or file is None:
            self._abandon(failure.error, failure.lost)
        elif self._lease is not None:
            self._leave_spoilt(file, group, failure)
        else:
            self._undo_write(file, group, failure)

    def _undo_write(self, file: LogFile, group: Group, failure: Failure) -> None:
        self.counters.write_failures += 1
        lost = self._cut_off(group.first_offset, failure.lost)
        self.groups.go_on_in(file, group.position)
        error = job_error(failure.error, file.path)

        def done(trouble: BaseException | None) -> None:
            if self.stopped_by is not None:
                fail_all(lost, self.stopped_by)
                return
            if trouble is not None:
                self._abandon(trouble, lost)
                return
            fail_all(lost, error)
            self._move_to(Phase.RUNNING)
            self.pump()

        self._active.cut(group.position, done)

    def _leave_spoilt(self, file: LogFile, group: Group, failure: Failure) -> None:
        self.counters.write_failures += 1
        lost = self._cut_off(group.first_offset, failure.lost)
        self._active.spoil()
        self.groups.go_on_in(None)
        fail_all(lost, job_error(failure.error, file.path))
        self._move_to(Phase.RUNNING)
        self.pump()

    def _abandon(self, error: BaseException, lost: list[Group]) -> None:
        """A sync failed: what was not synced is taken out of the log, and a new file continues."""
        self._move_to(Phase.CHANGING)
        self.counters.sync_failures += 1
        end, seen = self._active.synced_offset, self.durable_offset
        lost = self._cut_off(end, lost)
        # In the relaxed modes messages above the end were readable: their offsets name them, and are not used again.
        restart = seen if self._mode != FSYNC else end
        old = self._active.abandon(restart)
        self.groups.next_offset = self.durable_offset = restart
        if restart > end:
            self._log.gap_made(end, restart)
        path = old.path if old is not None else "the log"
        _log.error("%s: sync failed (%s); the file is abandoned at offset %d", path, error, end)
        fail_all(lost, UnknownOutcomeError(f"{path}: the sync failed ({error}); read back to see what is there"))
        new = self._log.plan_file(restart)
        self.groups.go_on_in(new)
        self.roll(new, old)

    def _cut_off(self, offset: int, lost: list[Group]) -> list[Group]:
        """Take everything from `offset` on out of memory. The groups that fail by this, in order."""
        lost = self.groups.cut(offset, lost)
        file = self._active.file
        if file is not None and file.index is not None:
            file.index.rollback(offset)
        self._log.rolled_back(offset)
        return lost

    def _report_trouble(self, error: BaseException) -> None:
        """The store counts as troubled until something is durable again, in any segment."""
        if isinstance(error, OSError | SyncFailed):
            self._metrics.trouble = (self._clock.monotonic(), str(error))

    # Standing still

    async def drain(self) -> None:
        """Wait until all appends are durable, or failed. Raises NotOwnerError, AlreadyClosedError."""
        self._check_not_stopped()
        self.sync_wanted = True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle.append(waiter)
        self.pump()
        await waiter
        self._cancel_timers()

    def check_idle(self) -> None:
        if not self.idle or not self.is_running or self.primary is not None or self.groups.newest is not None:
            return
        waiters, self.idle = self.idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def finish(self, state: State) -> None:
        """Wait for all appends, then close the active file so that it ends as `state`. No appends meanwhile.

        Raises StorageError; the next attempt, or the next append, creates a new file.
        """
        await self.drain()
        if not self._active.is_fit:
            await self.replace()
        if self._lease is not None:
            self._lease.check()
        try:
            await self._active.close(state, self._log.snapshot(self.groups.next_offset))
        except LogEndedError as e:
            raise self._end_with(e) from e
        finally:
            if self._active.file is None:
                self.groups.go_on_in(None)

    async def confirm(self) -> None:
        """Make the closing block that was found at open durable once more. Raises StorageError."""
        await self._active.confirm()

    async def end_file(self, *, closes: bool = True) -> None:
        """Go on in a new file: now, if nothing is under way, or with the next append. Raises as replace() does."""
        file, groups = self._active.file, self.groups
        if not self.is_running or groups.file not in (None, file):
            return  # a new one is planned
        groups.go_on_in(None)
        if groups.newest is not None:
            return
        await self.drain()  # all of a file is synced before the next one is created
        if self._active.file is file and groups.file is None:
            await self.replace(closes=closes)

    async def replace(self, *, closes: bool = True) -> None:
        """Go on in a new file, created now. `closes`: the one before gets a footer. StorageError."""
        self._check_not_stopped()
        new = self._log.plan_file(self.groups.next_offset)
        self.groups.go_on_in(new)
        self.roll(new, None, closes=closes)
        await self.drain()
        if self._active.file is not new:
            raise StorageError(f"{new.path} could not be created")

    # The end

    def lapses(self) -> bool:
        self.lapse(self._lapse_error())
        return True

    def refuse(self, groups: list[Group]) -> None:
        fail_all(groups, self._lapse_error())

    def _end_with(self, error: LogEndedError) -> EngineError:
        """The backing has ended, and with it this owner's time. What is raised for it."""
        failed = job_error(error, "the segment" if self._active.file is None else self._active.file.path)
        self.lapse(failed)
        return failed

    def _lapse_error(self) -> NotOwnerError:
        path = "the segment" if self._active.file is None else self._active.file.path
        return NotOwnerError(f"{path}: the lease is over; what was being appended may be in the log or not")

    def lapse(self, error: EngineError) -> None:
        """The lease is over: nothing is begun any more, and nothing confirmed of what is under way."""
        self._stop(error, error)

    def stop(self) -> None:
        """The segment is closed: nothing is begun any more. A job that runs still ends, and is confirmed."""
        self._stop(
            UnknownOutcomeError("the segment was closed before the append was durable"),
            AlreadyClosedError("the segment is closed"),
        )

    def _stop(self, appends: EngineError, drains: EngineError) -> None:
        self._move_to(Phase.STOPPED)
        self.stopped_by = self.stopped_by or appends
        self._cancel_timers()
        self.fail_rest(appends)
        waiters, self.idle = self.idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(type(drains)(*drains.args))

    def fail_rest(self, error: EngineError) -> None:
        """After the end: what no job that runs will confirm."""
        failure, self.failure = self.failure, None
        if failure is not None:
            fail_all(failure.lost, error)
        fail_all(self.groups.take_written(), error)
        fail_all(self.groups.drop_unwritten(), error)

    def _check_not_stopped(self) -> None:
        """Raise NotOwnerError when the lease is over, AlreadyClosedError when the segment was closed."""
        if self.lapsed():
            raise self._lapse_error()
        if self._phase is Phase.STOPPED:
            raise AlreadyClosedError("the segment is closed")

    def _move_to(self, phase: Phase) -> None:
        """STOPPED is for good: a job that ends later does not start anything."""
        if self._phase is not Phase.STOPPED:
            self._phase = phase
            self.running = phase is Phase.RUNNING

    def _cancel_timers(self) -> None:
        self._witness.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
