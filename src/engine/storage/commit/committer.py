"""`Committer`: group commit for one segment. It decides which job is next, and what is durable.

Appends of one turn of the event loop, and all that arrive while a sync runs, share the next write and the next sync:
the slower the disk, the larger the groups, and there is no timer to tune. At most two jobs run:

    primary   writes the next group and syncs, or only syncs what was written
    ahead     writes a large group while the primary runs, so that the disk is never without work

    time ──────────────────────────────────────────────────────────────────────►
    primary   │ write 1, sync       │ sync          │ write 5, sync │
    ahead        │ write 2 │ write 3 │ write 4 │
    durable                         1               2, 3            4, 5      in order of offsets, always

With durability "fsync" a group is durable when a sync covers it; with "interval" and "os" when it is written, and the
sync follows after a time, or never; with "object" when it is written, never synced, and in the segment's backing.
With the last, all that waits goes to the backing at once: a store of objects takes long for one, and many at a time.

Rules that keep this correct:

* The next job is chosen by one function, _next(), from what is waiting and what runs.
* All of a file is synced before the next file is created. So only the last file can have a torn tail.
* A failure lets running jobs end, then everything from the failed offset on is taken out of memory and out of the
  file; the more destructive of two failures is handled. See active_file.py for the file's part.
* Under a lease nothing is begun, and nothing confirmed, once the lease may be over (file/owners.py).
* When a backing does not say whether it has a group, the segment stops as if its lease were over: nothing is undone,
  and the next owner finds out.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass

from engine._native.serve.groups import Group, messages_of
from engine._native.serve.log import Claim
from engine.errors import (
    AlreadyClosedError,
    CorruptionError,
    EngineError,
    NotOwnerError,
    StorageError,
    UnknownOutcomeError,
)
from engine.limits import KIB, LOG_INDEX_BYTES_STEP
from engine.storage.commit.active_file import ActiveFile
from engine.storage.commit.failures import Failure, LogEndedError, job_error, worse
from engine.storage.commit.groups import Groups, fail_all
from engine.storage.commit.ports import Backing, Counters, SegmentLog
from engine.storage.commit.witness import WitnessWriter
from engine.storage.disk.config import FSYNC, INTERVAL, OBJECT
from engine.storage.disk.metrics import Marks
from engine.storage.file.context import Context
from engine.storage.file.format import State
from engine.storage.file.logfile import LogFile, SyncFailed
from engine.storage.file.owners import Lease

_log = logging.getLogger("engine.storage")

AHEAD_MIN = 256 * KIB  # a smaller group waits for the running sync, and is written together with its own sync
PAD_GROUP_MAX = 32 * KIB  # behind larger groups no zeros are written


class Phase(enum.Enum):
    """Whether jobs may be started."""

    RUNNING = "jobs may be started"
    CHANGING = "a file is being created, or repaired after a failure: no job may touch it"
    STOPPED = "the segment was closed, or its lease is over: nothing is started any more"


class Step(enum.Enum):
    """What may be done next."""

    WRITE = "write the next group, and sync it with durability fsync"
    SYNC = "sync what was written"
    ROLL = "create the file that the next group goes to"


@dataclass(slots=True)
class Primary:
    """The primary job that runs."""

    written: list[Group]  # the groups that it writes
    syncs: bool
    offset: int  # synced up to here when it succeeds
    position: int
    pads: bool
    begun: float  # monotonic


class Committer:
    """Owns the groups and the active file of one segment."""

    __slots__ = (
        "_active", "_clock", "_commit_bytes_max", "_failure", "_idle", "_lease", "_metrics", "_mode", "_phase",
        "_primary", "_scheduled", "_segment", "_stopped_by", "_sync_wanted", "_timer", "_witness",
        "_witness_sync_wanted", "_writes_max", "counters", "durable_offset", "groups", "interval_ms", "marks",
    )  # fmt: skip

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
        # Fixed after it was made.
        self._segment = segment
        self._clock = context.clock
        self._metrics = context.metrics
        self._commit_bytes_max = context.config.commit_bytes_max
        self._writes_max = self._commit_bytes_max if mode == OBJECT else 1  # 1: the first group alone
        self._mode = mode
        self._lease = lease  # None: no other broker can own the segment
        self.interval_ms = context.config.interval_ms
        self.counters = Counters()
        self.marks = Marks()
        # Its parts. How far the log goes: active.synced_offset <= durable_offset (what the mode calls so) <=
        # groups.next_offset.
        end, target = file.end_offset if restart is None else restart, file if continues else None
        self.groups = Groups(target, end, context.config.file_size_max)
        self._active = ActiveFile(context, target, lease, end, file.end_position, backing, mode)
        self._witness = WitnessWriter(self._active, self, context.generation)
        self.durable_offset = end
        # What runs, and what is wanted.
        self._phase = Phase.RUNNING
        self._primary: Primary | None = None
        self._failure: Failure | None = None  # handled once no job runs
        self._stopped_by: EngineError | None = None
        self._scheduled = False
        self._sync_wanted = False
        self._witness_sync_wanted = False
        self._timer: asyncio.TimerHandle | None = None  # durability "interval": the next sync
        self._idle: list[asyncio.Future[None]] = []

    @property
    def file(self) -> LogFile | None:
        """The active file. None: the next append creates one."""
        return self._active.file

    # Appends

    def add(self, data: memoryview, claims: list[Claim], term: int, time_ms: int) -> Group:
        """Assign offsets to whole entries; the group that they are in."""
        groups, size, messages = self.groups, len(data), messages_of(claims)
        offset, position, synced = groups.next_offset, groups.position, self._active.synced_offset
        group = groups.append(data, messages, term, time_ms, synced)
        if group is None:
            groups.go_on_in(self._segment.plan_file(offset))
            position = groups.position
            group = groups.append(data, messages, term, time_ms, synced)
            assert group is not None
        file = group.file
        file.index.add(offset, position, time_ms)
        if size > LOG_INDEX_BYTES_STEP:
            for claim in claims:
                file.index.add(offset, position + claim.position, time_ms)
                offset += claim.count
        file.last_time_ms = time_ms
        if not self._scheduled:
            self.schedule()
        return group

    def schedule(self) -> None:
        """Pump at the end of this turn of the loop, so that appends of one turn share a commit."""
        if not self._scheduled and self._phase is Phase.RUNNING:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump_scheduled)

    def _pump_scheduled(self) -> None:
        self._scheduled = False
        self._pump()

    # Which job is next

    def _pump(self) -> None:
        """Start what may be started."""
        if not self.may_write():
            return
        if self._primary is None:
            step = self._next()
            if step is not None:
                self._start(step)
        if self._primary is not None and self._may_write_ahead(self._primary):
            group = self.groups.begin_ahead()
            self._active.write([group], pads=False, syncs=False, done=self._ahead_done)
        self._check_idle()

    def _next(self) -> Step | None:
        """The next step while no primary job runs. None: there is nothing to do, or the ahead job has to end first."""
        groups, head = self.groups, self.groups.head
        if head is not None and head.file is not self._active.file:
            unsynced = self._active.file is not None and self.durable_offset > self._active.synced_offset
            if groups.written:
                return Step.SYNC
            if groups.ahead is not None:
                return None
            return Step.SYNC if unsynced else Step.ROLL
        if head is not None and groups.ahead is None and not (groups.written and head.size >= AHEAD_MIN):
            return Step.WRITE
        if groups.written or self._is_sync_due():
            return Step.SYNC
        return None

    def _is_sync_due(self) -> bool:
        unsynced = self._sync_wanted and self.durable_offset > self._active.synced_offset
        return self._active.file is not None and (unsynced or self._witness_sync_wanted)

    def _may_write_ahead(self, primary: Primary) -> bool:
        groups, head, file = self.groups, self.groups.head, self._active.file
        if head is None or groups.ahead is not None or primary.pads or head.file is not file:
            return False
        if file.closing is not None or self._mode == OBJECT or (self._mode == FSYNC and head.size < AHEAD_MIN):
            return False
        return groups.unsynced_bytes + head.size <= self._commit_bytes_max

    # Jobs

    def _start(self, step: Step) -> None:
        if step is Step.ROLL:
            head = self.groups.head
            assert head is not None
            self._roll(head.file, None)
        else:
            self._start_primary(writes=step is Step.WRITE)

    def _start_primary(self, *, writes: bool) -> None:
        groups, file = self.groups, self._active.file
        assert file is not None
        written = groups.begin_primary(writes_max=self._writes_max if writes else 0)
        syncs = not written or self._mode == FSYNC
        small = bool(written) and written[0].size <= PAD_GROUP_MAX
        pads = small and self._mode != OBJECT and written[0].end_position > file.allocated
        offset, position = self.durable_offset, file.end_position
        if groups.covered:
            last = groups.covered[-1]
            offset, position = last.next_offset, last.end_position
        if syncs:
            self._sync_wanted = self._witness_sync_wanted = False
        self._primary = Primary(written, syncs, offset, position, pads, self._clock.monotonic())
        self._active.write(written, pads=pads, syncs=syncs, done=self._primary_done)

    def _primary_done(self, error: BaseException | None) -> None:
        job, self._primary = self._primary, None
        covered = self.groups.end_primary()
        assert job is not None
        if error is not None:
            self._primary_failed(job, covered, error)
        else:
            if job.syncs:
                self.counters.syncs += 1
                self._metrics.sync_s.observe(self._clock.monotonic() - job.begun)
                self._active.synced_offset, self._active.synced_position = job.offset, job.position
                self._witness.synced()
            if self._mode == FSYNC:
                self._publish(covered)
            elif self._mode == OBJECT:
                self._active.synced_offset, self._active.synced_position = job.offset, job.position
                self._publish(covered)
            elif job.written:
                self._publish(job.written)
                self._publish(self.groups.take_written())
        self._continue()

    def _ahead_done(self, error: BaseException | None) -> None:
        group = self.groups.end_ahead()
        if error is not None:
            self._note(Failure(error, None if isinstance(error, SyncFailed) else group, [group]))
        else:
            self.groups.written.append(group)
            # In the relaxed modes what is written is durable, once all before it is: the primary may still be writing
            # its group, or have failed to.
            behind = self._failure is not None or (self._primary is not None and bool(self._primary.written))
            if self._mode != FSYNC and not behind:
                self._publish(self.groups.take_written())
        self._continue()

    def _continue(self) -> None:
        if self._stopped_by is not None:
            self._fail_rest(self._stopped_by)
        elif self._failure is None:
            self._pump()
        elif self._primary is None and self.groups.ahead is None:
            self._clean_up(self._failure)

    def _publish(self, groups: list[Group]) -> None:
        """These are durable, as the mode calls it; all before them are."""
        if not groups:
            return
        if self._lapsed():
            fail_all(groups, self._lapse_error())
            return
        last = groups[-1]
        file, self.durable_offset = last.file, last.next_offset
        file.end_offset, file.end_position = last.next_offset, last.end_position
        if file.end_position >= file.count_at:
            self._active.pages.written(file)
        self._count(groups)
        for group in groups:
            self._segment.group_durable(group)
            group.succeed()
        if self._mode == INTERVAL and self._timer is None and self.durable_offset > self._active.synced_offset:
            self._timer = asyncio.get_running_loop().call_later(self.interval_ms / 1000, self._tick)

    def _count(self, groups: list[Group]) -> None:
        """One commit, before its waiters are resumed."""
        size = sum(g.size for g in groups)
        self.counters.commits += 1
        self.counters.commit_bytes += size
        self._metrics.trouble = None
        self._metrics.commit_bytes.observe(size)
        self._metrics.commit_appends.observe(sum(len(g.waiters) for g in groups))
        self.marks.add(groups[0].first_offset, self._clock.monotonic())

    def _tick(self) -> None:
        self._timer = None
        self._sync_wanted = True
        self._pump()

    # What the witness needs (witness.Commits)

    @property
    def is_running(self) -> bool:
        return self._phase is Phase.RUNNING

    def may_write(self) -> bool:
        return self._phase is Phase.RUNNING and self._failure is None and not self._lapsed()

    def sync_witness(self) -> None:
        self._witness_sync_wanted = True
        self._pump()

    # From one file to the next

    def _roll(self, new: LogFile, abandoned: LogFile | None, *, closes: bool = True) -> None:
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
            self._segment.file_created(new)
            if old is not None and closes:
                self._active.close_rolled(old, new.snapshot or b"")
            new.snapshot = None
            self._pump()

        self._active.create(new, abandoned, done)

    def _roll_failed(self, new: LogFile, error: BaseException) -> None:
        """The new file may be there or not; so the old one is over, and the next append creates the new one again."""
        lost = self._cut_off(new.first_offset, [])
        self._active.leave()
        self.groups.go_on_in(None)
        self._report_trouble(error)
        if isinstance(error, CorruptionError):
            self._segment.file_failed(error)
        fail_all(lost, job_error(error, new.path))
        self._check_idle()

    # Failure

    def _primary_failed(self, job: Primary, covered: list[Group], error: BaseException) -> None:
        if isinstance(error, LogEndedError):
            fail_all(covered, self._end_with(error))
        elif isinstance(error, OSError) and job.written:
            self.groups.give_back([group for group in covered if group not in job.written])
            self._note(Failure(error, job.written[0], job.written))
        elif isinstance(error, OSError):
            self.groups.give_back(covered)  # the file could not be opened: nothing was done
            self._note(Failure(SyncFailed(error), None, []))
        else:
            self._note(Failure(error, None, covered))

    def _note(self, failure: Failure) -> None:
        self._failure = failure if self._failure is None else worse(self._failure, failure)

    def _clean_up(self, failure: Failure) -> None:
        """No job runs. Take everything from the failed offset on out of memory, then out of the file."""
        self._failure = None
        self._move_to(Phase.CHANGING)
        self._report_trouble(failure.error)
        file, group = self._active.file, failure.group
        if self._lapsed():  # the next owner may go by what the failed write or sync has left in the file
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
            if self._stopped_by is not None:
                fail_all(lost, self._stopped_by)
                return
            if trouble is not None:
                self._abandon(trouble, lost)
                return
            fail_all(lost, error)
            self._move_to(Phase.RUNNING)
            self._pump()

        self._active.cut(group.position, done)

    def _leave_spoilt(self, file: LogFile, group: Group, failure: Failure) -> None:
        self.counters.write_failures += 1
        lost = self._cut_off(group.first_offset, failure.lost)
        self._active.spoil()
        self.groups.go_on_in(None)
        fail_all(lost, job_error(failure.error, file.path))
        self._move_to(Phase.RUNNING)
        self._pump()

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
            self._segment.gap_made(end, restart)
        path = old.path if old is not None else "the log"
        _log.error("%s: sync failed (%s); the file is abandoned at offset %d", path, error, end)
        fail_all(lost, UnknownOutcomeError(f"{path}: the sync failed ({error}); read back to see what is there"))
        new = self._segment.plan_file(restart)
        self.groups.go_on_in(new)
        self._roll(new, old)

    def _cut_off(self, offset: int, lost: list[Group]) -> list[Group]:
        """Take everything from `offset` on out of memory. The groups that fail by this, in order."""
        lost = self.groups.cut(offset, lost)
        file = self._active.file
        if file is not None and file.index is not None:
            file.index.rollback(offset)
        self._segment.rolled_back(offset)
        return lost

    def _report_trouble(self, error: BaseException) -> None:
        """The store counts as troubled until something is durable again, in any segment."""
        if isinstance(error, OSError | SyncFailed):
            self._metrics.trouble = (self._clock.monotonic(), str(error))

    # Standing still

    async def drain(self) -> None:
        """Wait until all appends are durable, or failed. Raises NotOwnerError, AlreadyClosedError."""
        self._check_not_stopped()
        self._sync_wanted = True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        self._pump()
        await waiter
        self._cancel_timers()

    def _check_idle(self) -> None:
        if not self._idle or not self.is_running or self._primary is not None or self.groups.newest is not None:
            return
        waiters, self._idle = self._idle, []
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
            await self._active.close(state, self._segment.snapshot(self.groups.next_offset))
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
        new = self._segment.plan_file(self.groups.next_offset)
        self.groups.go_on_in(new)
        self._roll(new, None, closes=closes)
        await self.drain()
        if self._active.file is not new:
            raise StorageError(f"{new.path} could not be created")

    # The end

    def _lapsed(self) -> bool:
        """Whether the lease is over; then all that waits has failed. Asked after each sync, before it is published."""
        if self._lease is None or self._lease.held:
            return False
        self.lapse(self._lapse_error())
        return True

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
        self._stopped_by = self._stopped_by or appends
        self._cancel_timers()
        self._fail_rest(appends)
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(type(drains)(*drains.args))

    def _fail_rest(self, error: EngineError) -> None:
        """After the end: what no job that runs will confirm."""
        failure, self._failure = self._failure, None
        if failure is not None:
            fail_all(failure.lost, error)
        fail_all(self.groups.take_written(), error)
        fail_all(self.groups.drop_unwritten(), error)

    def _check_not_stopped(self) -> None:
        """Raise NotOwnerError when the lease is over, AlreadyClosedError when the segment was closed."""
        if self._lapsed():
            raise self._lapse_error()
        if self._phase is Phase.STOPPED:
            raise AlreadyClosedError("the segment is closed")

    def _move_to(self, phase: Phase) -> None:
        """STOPPED is for good: a job that ends later does not start anything."""
        if self._phase is not Phase.STOPPED:
            self._phase = phase

    def _cancel_timers(self) -> None:
        self._witness.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
