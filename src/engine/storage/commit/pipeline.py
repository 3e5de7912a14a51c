"""The appends of one segment that are on their way: which group and file they are in, how far it all goes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine._native.serve.log import Claim
from engine.errors import EngineError
from engine.limits import LOG_FILE_MESSAGES_MAX, LOG_INDEX_BYTES_STEP
from engine.storage.commit.group import GROUP_MAX, Group
from engine.storage.disk.measures import Marks
from engine.storage.file.context import Context
from engine.storage.file.logfile import LogFile
from engine.storage.file.owners import Lease


class Owner(Protocol):
    """What group commit needs of its segment."""

    def plan_file(self, first_offset: int) -> LogFile:
        """A file to be created, with a new salt and what duplicate detection knows below the offset."""

    def gap_made(self, end: int, restart: int) -> None:
        """The log goes on at `restart` in a new file, and what was between may have been seen."""

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
    begun: float  # monotonic


@dataclass(slots=True)
class Failure:
    """What went wrong. `group` is the one that could not be written; None: a sync failed."""

    error: BaseException
    group: Group | None
    lost: list[Group]


class Pipeline:
    """Groups from their first append to their end. Loop thread only."""

    __slots__ = (
        "_ahead",
        "_blocked",
        "_clock",
        "_config",
        "_failure",
        "_generation",
        "_handles",
        "_idle",
        "_lease",
        "_measures",
        "_mode",
        "_open",
        "_owner",
        "_position",
        "_primary",
        "_queue",
        "_scheduled",
        "_spoilt",
        "_sync_wanted",
        "_synced_position",
        "_target",
        "_timer",
        "_witness_timer",
        "_witness_wanted",
        "_workers",
        "_written",
        "_written_offset",
        "_written_position",
        "counters",
        "durable_offset",
        "file",
        "interval_ms",
        "marks",
        "next_offset",
        "synced_offset",
    )

    def __init__(
        self,
        owner: Owner,
        context: Context,
        mode: str,
        file: LogFile,
        lease: Lease | None = None,
        restart: int | None = None,
        *,
        continues: bool = True,
    ) -> None:
        """`continues`: `file` may be written to; else the first append makes a new one. `restart`: the offset that the
        next message gets, None: the file's end.
        """
        # Fixed after it was made.
        self._owner = owner
        self._clock = context.clock
        self._handles = context.handles
        self._measures = context.measures
        self._workers = context.workers
        self._config = context.config
        self._generation = context.generation
        self._mode = mode
        self._lease = lease  # None: for ever
        self.interval_ms = context.config.interval_ms
        self.counters = Counters()
        self.marks = Marks()
        # How far the log goes: synced <= durable (what the mode calls so) <= written <= next.
        end, position = file.end_offset if restart is None else restart, file.end_position
        self.synced_offset = self.durable_offset = self._written_offset = self.next_offset = end
        self._synced_position = self._written_position = self._position = position
        # The active file, None when it was abandoned; and the one that new appends go to, which may not be there yet.
        self.file: LogFile | None = file if continues else None
        self._target: LogFile | None = self.file
        self._spoilt: LogFile | None = None  # a write to it failed, and under a lease nothing is cut off
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
        self._witness_wanted = False  # a sync that makes the file's witness durable
        self._timer: asyncio.TimerHandle | None = None
        self._witness_timer: asyncio.TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []

    def add(self, data: memoryview, claims: Sequence[Claim], term: int, time_ms: int) -> Group:
        """Give whole entries their place; the group they are in."""
        group = self._group_for(len(data), sum(claim.count for claim in claims))
        offset, position = self.next_offset, group.end_position
        group.add(data, term, time_ms, self.synced_offset)
        file = group.file
        assert file.index is not None
        file.index.add(offset, position, time_ms)
        if len(data) > LOG_INDEX_BYTES_STEP:
            for claim in claims:
                file.index.add(offset, position + claim.position, time_ms)
                offset += claim.count
        file.last_time_ms = time_ms
        self.next_offset = group.next_offset
        self._position = group.end_position
        return group

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

    def _group_for(self, size: int, messages: int) -> Group:
        target, group = self._target, self._open
        full = target is not None and (
            self._position + size > self._config.file_size_max
            or self.next_offset + messages - target.first_offset > LOG_FILE_MESSAGES_MAX
        )
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

    def _take(self, group: Group) -> Group:
        if self._queue:
            return self._queue.popleft()
        self._open = None
        return group

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

    def lapse(self, error: EngineError) -> None:
        """The lease is over: nothing is begun any more, and nothing confirmed of what is on its way."""
        self._blocked = True
        self._cancel_timers()
        waiting = [*self._written, *self._queue, *([self._open] if self._open is not None else [])]
        self._written, self._open = [], None
        self._queue.clear()
        fail_all(waiting, error)
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(type(error)(*error.args))

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._witness_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._witness_timer = None

    def _check_idle(self) -> None:
        if not self._idle or self.newest() is not None or self._primary is not None or self._blocked:
            return
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def fail_all(groups: list[Group], error: EngineError) -> None:
    """Tell everybody who waits for the groups."""
    for group in groups:
        group.fail(error)
