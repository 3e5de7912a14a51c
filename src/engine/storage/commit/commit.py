"""Group commit: turns appends into writes and syncs of the active file, and knows what is durable.

Appends that arrive while a sync runs form the next group; there is no timer. At most two jobs run: the *primary* writes
a group and syncs, or only syncs what was written; while it runs, large groups are written *ahead*, so that the disk is
never without work. What may go wrong with the file is in `active_file.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.errors import UnknownOutcomeError
from engine.limits import KIB
from engine.storage.commit.active_file import ActiveFile
from engine.storage.commit.group import Group
from engine.storage.commit.pipeline import Failure, Primary, fail_all
from engine.storage.disk.config import FSYNC, INTERVAL
from engine.storage.file.logfile import LogFile, SyncFailed
from engine.storage.file.writer import write_job

AHEAD_MIN = 256 * KIB  # a smaller group waits for the sync that runs and is written together with its own
PAD_GROUP_MAX = 32 * KIB  # after larger groups no zeros are written ahead

# The last entries of a burst have no later entry that knows them to be durable, so the file's witness says it: handed
# to the system once nothing more was synced for this time, which outlives the process ...
WITNESS_S = 0.05
WITNESS_SYNC_S = 2.0  # ... and synced after this one, so that a power cut finds it; the next commit would do it as well


class Committer(ActiveFile):
    """Group commit for one segment. Loop thread only."""

    __slots__ = ()

    # Which job is next

    def schedule(self) -> None:
        """Pump at the end of this turn of the loop, so that appends of one turn share a commit."""
        if not self._scheduled and not self._blocked:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump_scheduled)

    def _pump_scheduled(self) -> None:
        self._scheduled = False
        self._pump()

    def _pump(self) -> None:
        if self._blocked or self._failure is not None or self._lapsed():
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
        elif self._written or self._is_sync_due():
            self._start_primary(None, True)

    def _is_sync_due(self) -> bool:
        unsynced = self._sync_wanted and self._written_offset > self.synced_offset
        return unsynced or (self._witness_wanted and self.file is not None)

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
        self._primary = Primary(covered, group, syncs, pads, offset, position, self._clock.monotonic())
        self._sync_wanted = self._sync_wanted and not syncs
        self._witness_wanted = self._witness_wanted and not syncs
        self._post_write(file, group, pads, syncs, self._primary_done)

    def _start_ahead(self, group: Group) -> None:
        self._ahead = group
        self._post_write(group.file, group, False, False, self._ahead_done)

    def _primary_done(self, error: BaseException | None) -> None:
        job, self._primary = self._primary, None
        assert job is not None
        if error is not None:
            self._primary_failed(job, error)
            return
        if job.syncs:
            self.counters.syncs += 1
            self._measures.sync_s.observe(self._clock.monotonic() - job.begun)
            self.synced_offset, self._synced_position = job.offset, job.position
            self._begin_witness()
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
        if self._lapsed():
            fail_all(groups, self._lapse_error())
            return
        last = groups[-1]
        last.file.end_offset, last.file.end_position = last.next_offset, last.end_position
        self.durable_offset = last.next_offset
        if last.next_offset > self._written_offset:
            self._written_offset, self._written_position = last.next_offset, last.end_position
        self._count(groups)
        for group in groups:
            self._owner.group_durable(group)
            group.succeed()
        if self._mode == INTERVAL and self._timer is None and self._written_offset > self.synced_offset:
            self._timer = asyncio.get_running_loop().call_later(self.interval_ms / 1000, self._tick)

    def _count(self, groups: list[Group]) -> None:
        """One commit, before those who wait for it are told."""
        size = sum(g.size for g in groups)
        self.counters.commits += 1
        self.counters.commit_bytes += size
        self._measures.trouble = None
        self._measures.commit_bytes.observe(size)
        self._measures.commit_appends.observe(sum(len(g.waiters) for g in groups))
        self.marks.add(groups[0].first_offset, self._clock.monotonic())

    # The witness

    def _begin_witness(self) -> None:
        """Something was synced: see to it that the file says so, once no more comes."""
        if self._witness_timer is None and self._is_unwitnessed():
            self._wait_for_quiet(WITNESS_S, self._write_witness)

    def _is_unwitnessed(self) -> bool:
        file = self.file
        if file is None or file.witness is None or file.closing is not None or self._blocked:
            return False
        return file.witness.durable_offset < self.synced_offset

    def _wait_for_quiet(self, delay_s: float, then: Callable[[], None]) -> None:
        synced = self.synced_offset

        def look() -> None:
            self._witness_timer = None
            if self.synced_offset == synced:
                then()
            else:
                self._begin_witness()

        self._witness_timer = asyncio.get_running_loop().call_later(delay_s, look)

    def _write_witness(self) -> None:
        """Hand it to the system. Not synced: an error of this file's data must not be met here, and be forgotten."""
        file = self.file
        if not self._is_unwitnessed() or file is None or self._failure is not None or self._lapsed():
            return
        before, image = file.witness, file.renew_witness(self.synced_offset, self._generation)
        written = file.witness
        assert written is not None

        def done(error: BaseException | None) -> None:
            if error is not None:
                if file.witness is written:  # the next takes its place: should this one be torn, the other is good
                    file.witness = before
            elif not self._blocked and file is self.file:
                self._wait_for_quiet(WITNESS_SYNC_S, self._sync_witness)

        self._post(file, lambda handle: write_job(handle, [image], written.position, 0, False), done)

    def _sync_witness(self) -> None:
        self._witness_wanted = True
        self._pump()

    def _tick(self) -> None:
        self._timer = None
        self._sync_wanted = True
        self._pump()

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

    # Standing still

    async def drain(self) -> None:
        """Wait until nothing is on its way and everything written is synced, or failed. Raises NotOwnerError."""
        if self._lapsed():
            raise self._lapse_error()
        self._sync_wanted = True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        self._pump()
        await waiter
        self._cancel_timers()

    def stop(self) -> None:
        """Start nothing more. What waits fails; a job that runs still ends."""
        self._blocked = True
        self._cancel_timers()
        waiting = [*self._queue, *([self._open] if self._open is not None else [])]
        fail_all(waiting, UnknownOutcomeError("the segment was closed before the append was written"))
