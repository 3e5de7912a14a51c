"""Decisions of `run()`, without I/O: which messages the handler may get now, and up to where all are finished.

A job is what one call of the handler gets: a message, or a batch. Jobs that share a key run one after the other, in the
order in which they were received, and a job that waits for its next attempt keeps its keys. So each key has a line of
jobs, and a job may start when it is the first in the lines of all its keys. Jobs without a key never wait for another.
Of the jobs that may start, the one that was received first does: so the finished ones are close to a prefix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from enum import Enum, auto
from heapq import heappop, heappush
from typing import Any


class JobState(Enum):
    """WAITING → READY → RUNNING → FINISHED; RUNNING → HELD → READY for another attempt."""

    WAITING = auto()  # for a job of the same key
    READY = auto()
    RUNNING = auto()
    HELD = auto()  # until its next attempt is due
    FINISHED = auto()


_MOVES = {
    JobState.WAITING: (JobState.READY,),
    JobState.READY: (JobState.RUNNING,),
    JobState.RUNNING: (JobState.HELD, JobState.FINISHED),
    JobState.HELD: (JobState.READY,),
    JobState.FINISHED: (),
}


class Job:
    """What one call of the handler gets. `attempts`: calls that have begun. `size`: bytes of keys and values."""

    __slots__ = ("attempts", "before", "item", "keys", "number", "size", "state")

    def __init__(self, item: Any, keys: Iterable[Hashable] = (), size: int = 0) -> None:
        self.item = item
        self.keys = frozenset(keys)
        self.size = size
        self.attempts = 0
        self.before = 0  # keys in whose lines another job comes first
        self.number = 0  # of the jobs that were received
        self.state = JobState.WAITING

    def move_to(self, state: JobState) -> None:
        """Change the state. Raises ValueError for a move that is not in the table."""
        if state not in _MOVES[self.state]:
            raise ValueError(f"a job cannot go from {self.state.name} to {state.name}")
        self.state = state

    def __repr__(self) -> str:
        return f"<Job {self.item!r} {self.state.name.lower()}, attempts={self.attempts}>"


class Schedule:
    """Which jobs may run. At most `concurrency` run at once; times are seconds of any steady clock."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._lines: dict[Hashable, deque[Job]] = {}
        self._ready: list[tuple[int, Job]] = []  # a heap: (number, job)
        self._held: list[tuple[float, int, Job]] = []  # a heap: (when due, number, job)
        self._received = 0
        self.running = 0
        self.unfinished = 0
        self.size = 0  # bytes of what is unfinished

    def add(self, job: Job) -> None:
        """A job was received, behind all others."""
        self._received += 1
        job.number = self._received
        self.unfinished += 1
        self.size += job.size
        for key in job.keys:
            line = self._lines.setdefault(key, deque())
            job.before += bool(line)
            line.append(job)
        if not job.before:
            self._may_run(job)

    def next(self) -> Job | None:
        """The job to start now, which counts as running; None: none may start."""
        if not self._ready or self.running >= self._concurrency:
            return None
        _, job = heappop(self._ready)
        job.move_to(JobState.RUNNING)
        job.attempts += 1
        self.running += 1
        return job

    def hold(self, job: Job, due: float) -> None:
        """Its call has failed, and the next one is due at `due`. Its keys stay taken, its slot is free."""
        job.move_to(JobState.HELD)
        self.running -= 1
        heappush(self._held, (due, job.number, job))

    def release(self, now: float) -> float | None:
        """Make ready the held jobs that are due; when the next one is due, None: no other is held."""
        while self._held and self._held[0][0] <= now:
            self._may_run(heappop(self._held)[2])
        return self._held[0][0] if self._held else None

    def finish(self, job: Job) -> None:
        """It is finished; the next jobs of its keys may run."""
        job.move_to(JobState.FINISHED)
        self.running -= 1
        self.unfinished -= 1
        self.size -= job.size
        for key in job.keys:
            line = self._lines[key]
            line.popleft()
            if not line:
                del self._lines[key]
                continue
            line[0].before -= 1
            if not line[0].before:
                self._may_run(line[0])

    def not_begun(self) -> list[Job]:
        """Jobs of which no call has begun, in the order in which they were received."""
        jobs = {job.number: job for _, job in self._ready}
        jobs |= {job.number: job for line in self._lines.values() for job in line}
        return [job for _, job in sorted(jobs.items()) if not job.attempts]

    def _may_run(self, job: Job) -> None:
        job.move_to(JobState.READY)
        heappush(self._ready, (job.number, job))


class Prefix:
    """What may be acknowledged cumulatively: the jobs in the order of delivery, up to the first unfinished one.

    After a lost connection, messages that are not acknowledged are delivered again, while their first deliveries are
    here. Such a delivery joins the job of the first one, so that the handler does not get the message twice.
    """

    def __init__(self) -> None:
        self._delivered: deque[tuple[Hashable, Job, Any]] = deque()
        self._jobs: dict[Hashable, tuple[Job, int]] = {}  # by place: the job, and how often it was delivered
        self.size = 0

    def __len__(self) -> int:
        """Deliveries that are not covered by advance() yet."""
        return len(self._delivered)

    def add(self, place: Hashable, job: Job) -> bool:
        """A job was delivered; `place` identifies its message, None: it is not recognised when it comes again.

        False: it came before and is not covered yet; then `job` is not to be run.
        """
        first, times = (job, 0) if place is None else self._jobs.get(place, (job, 0))
        if place is not None:
            self._jobs[place] = (first, times + 1)
        self._delivered.append((place, first, job.item))
        self.size += job.size
        return first is job

    def advance(self) -> Any:
        """Remove the finished jobs from the front; the item of the last of these deliveries, None: there is none."""
        last = None
        while self._delivered and self._delivered[0][1].state is JobState.FINISHED:
            place, job, last = self._delivered.popleft()
            self.size -= job.size
            if place is not None:
                _, times = self._jobs[place]
                if times == 1:
                    del self._jobs[place]
                else:
                    self._jobs[place] = (job, times - 1)
        return last
