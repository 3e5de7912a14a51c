"""`Writer`: does all writes of a store, one transaction at a time; those that arrive meanwhile form the next one.

    callers            put() put() write_all()       put() delete()
                            │                            │
    loop, one batch    evaluate on what is known     (queued: the next batch)
                            │ groups
    etcd               one transaction, each group: its keys are as known? write them : return them
                            │
    loop               groups that were done: answer callers
                       others: evaluate again on what was returned; a conflict is an answer, the rest is queued again

A group that is refused and, evaluated anew, changes nothing, has its outcome: one transaction has read all its keys.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from engine.aio.histogram import Histogram
from engine.clock import Clock
from engine.errors import AlreadyClosedError, EngineError, TimeoutError
from engine.metadata.etcd import messages as m
from engine.metadata.etcd.changes import Evaluated, Group, Unit, View, grouped
from engine.metadata.etcd.cluster import Cluster, LeaseNotFoundError
from engine.metadata.etcd.deletions import RangeDeletion
from engine.metadata.etcd.known import Known
from engine.metadata.etcd.layout import Layout, version_of
from engine.metadata.etcd.leases import EtcdSession
from engine.metadata.etcd.numbered import Numbered
from engine.metadata.etcd.requests import (
    GROUP_KEYS_MAX,
    GROUPS_MAX,
    READS_MAX,
    REQUEST_SIZE_MAX,
    GroupRequest,
    learn,
    read_op,
)
from engine.metadata.etcd.watching import WatchHub
from engine.metadata.store import OutcomeUnknownError

log = logging.getLogger(__name__)

BATCH_SIZE_MAX = 1024 * 1024  # bytes of a batch, about; one unit alone may have more
BATCH_UNITS_MAX = 256
_ATTEMPT_S_MIN = 1.0  # a transaction that is begun late is waited for so long at least
_FENCE_RETRY_S = 0.2

Job = list[Unit] | RangeDeletion


@dataclass(slots=True)
class WriterStatistics:
    """Counters since the store was opened."""

    writes: int = 0
    transactions: int = 0
    refused: int = 0  # groups whose keys were not as known
    conflicts: int = 0
    unknown: int = 0  # transactions that ended without an answer in time


class Writer:
    """Loop thread only. `seen`: called with the version of each transaction that changes something."""

    def __init__(
        self,
        cluster: Cluster,
        layout: Layout,
        known: Known,
        numbered: Numbered,
        hub: WatchHub,
        clock: Clock,
        version: Callable[[], int],
        seen: Callable[[int], object],
    ) -> None:
        self.statistics = WriterStatistics()
        self.took = Histogram()  # seconds of transactions
        self._cluster = cluster
        self._layout = layout
        self._known = known
        self._numbered = numbered
        self._hub = hub
        self._clock = clock
        self._version = version
        self._seen = seen
        self._queue: deque[Job] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._settled = asyncio.Event()
        self._settled.set()
        self._running = asyncio.get_running_loop().create_task(self._run(), name="etcd writer")

    # -- callers ---------------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        """Queue a job; its futures are resolved when it is done, or given up."""
        self._queue.append(job)
        self._idle.clear()
        self._wake.set()

    async def settled(self) -> None:
        """Wait until nothing that was given up can be done any more. Raises TimeoutError."""
        if not self._settled.is_set():
            try:
                async with asyncio.timeout(self._cluster.timeout):
                    await self._settled.wait()
            except builtins.TimeoutError as e:
                where = self._cluster.url.text
                raise TimeoutError(f"the metadata store at {where} did not settle an earlier write in time") from e

    async def close(self, seconds: float) -> None:
        """Finish what is queued, for some seconds at most; the rest fails."""
        await asyncio.wait([asyncio.ensure_future(self._idle.wait())], timeout=seconds)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._idle.set()
        for job in self._queue:
            _fail(job, AlreadyClosedError("the metadata store is closed"))
        self._queue.clear()

    # -- batches ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            while self._queue or self._numbered.unsure:
                if self._numbered.unsure:
                    await self._fence()
                    continue
                await self._next()
            self._idle.set()
            await self._wake.wait()

    async def _fence(self) -> None:
        """Nothing else is written, and nothing is read, before the outcome of what was given up is certain."""
        self._settled.clear()
        try:
            await self._numbered.fence()
        except (EngineError, OutcomeUnknownError, LeaseNotFoundError) as e:
            log.warning("the outcome of an earlier write to %s is still unknown: %s", self._cluster.url.text, e)
            await asyncio.sleep(_FENCE_RETRY_S)
        if not self._numbered.unsure:
            self._settled.set()

    async def _next(self) -> None:
        await self._hub.begun()
        job = self._queue[0]
        if isinstance(job, RangeDeletion):
            self._queue.popleft()
            await self._guarded([job], lambda due: self._delete_range(job, due))
            return
        units = self._take()
        if units:
            await self._guarded([units], lambda due: self._write(units, due))

    def _take(self) -> list[Unit]:
        """The units of the next batch."""
        units: list[Unit] = []
        size, now = 0, self._clock.monotonic()
        while self._queue and not isinstance(job := self._queue[0], RangeDeletion):
            size += sum(unit.size for unit in job)
            if units and (size > BATCH_SIZE_MAX or len(units) + len(job) > BATCH_UNITS_MAX):
                break
            self._queue.popleft()
            for unit in job:
                if unit.future.cancelled() and not unit.tries:
                    continue
                if unit.due <= now:
                    tried = f" in {unit.tries} attempts, as others changed its keys" if unit.tries else ""
                    unit.fail(TimeoutError(f"the metadata store did not write in time{tried}; nothing was done"))
                else:
                    units.append(unit)
        return units

    async def _guarded(self, jobs: list[Job], work: Callable[[float], Any]) -> None:
        """Do `work` by the time at which the first caller stops waiting. What concerns all of it fails all."""
        dues = [unit.due for job in jobs for unit in (job if isinstance(job, list) else [job])]
        due = max(min(dues), self._clock.monotonic() + _ATTEMPT_S_MIN)
        self._hub.hold()
        try:
            await work(due)
        except asyncio.CancelledError:
            error = OutcomeUnknownError("the metadata store was closed before it had answered")
            for job in jobs:
                _fail(job, error)
            raise
        except (EngineError, OutcomeUnknownError) as e:
            self._unsure(e)
            for job in jobs:
                _fail(job, e)
        except Exception as e:
            log.exception("a write to %s failed", self._cluster.url.text)
            self._numbered.unsure = True
            self._unsure(e)
            for job in jobs:
                _fail(job, OutcomeUnknownError(f"a write failed: {e!r}"))
        finally:
            self._hub.release()

    def _unsure(self, error: Exception) -> None:
        if self._numbered.unsure:
            self._settled.clear()
            self.statistics.unknown += isinstance(error, OutcomeUnknownError)

    async def _write(self, units: list[Unit], due: float) -> None:
        now_ms = self._clock.time_ms()
        while True:
            view = View(self._known, self._layout, now_ms, self._version(), _is_over)
            evaluated = [view.evaluate(unit) for unit in units]
            if view.missing:
                await self._read(sorted(view.missing), due)
                continue
            groups = grouped(evaluated, view)
            later = _too_much(groups)
            if later:
                self._queue.extendleft([[unit] for unit in reversed(units) if unit in later])
                units = [unit for unit in units if unit not in later]
                continue
            try:
                await self._do(groups, now_ms, due)
            except LeaseNotFoundError:
                await self._find_ended(units)
                continue
            return

    async def _read(self, keys: list[bytes], due: float) -> None:
        """Learn the states of keys."""
        for at in range(0, len(keys), READS_MAX):
            some = keys[at : at + READS_MAX]
            answer = await self._cluster.call("Txn", m.TxnRequest(success=map(read_op, some)), due=due)
            for key, response in zip(some, answer.responses, strict=True):
                learn(key, response.response_range, self._layout, self._known)

    async def _do(self, groups: list[Group], now_ms: int, due: float) -> None:
        """One transaction. Units that it has not done are queued again."""
        parts, position = [], 0
        for group in groups:
            parts.append(GroupRequest(group, self._layout, position))
            position = parts[-1].position
        begun = self._clock.monotonic()
        revision, answers = await self._numbered.do([part.op() for part in parts], due)
        self.took.observe(self._clock.monotonic() - begun)
        self.statistics.transactions += 1
        done, again = [], []
        last = -1
        for part, answer in zip(parts, answers, strict=True):
            if answer.succeeded:
                part.applied(revision, self._known)
                done.append(part)
                last = part.position - 1 if part.ops else last
            else:
                self.statistics.refused += 1
                part.refused(answer, self._layout, self._known)
                again.append(part.group)
        if last >= 0:
            self._seen(version_of(revision, last))
        await self._hub.reached(revision, done)
        for part in done:
            self._finish(part.group.units, revision)
        self._again(again, revision, now_ms)

    def _finish(self, units: Iterable[Evaluated], revision: int) -> None:
        for each in units:
            self.statistics.writes += len(each.outcomes)
            self.statistics.conflicts += sum(isinstance(one, Exception) for one in each.outcomes)
            each.finish(revision)

    def _again(self, groups: list[Group], revision: int, now_ms: int) -> None:
        """What was refused: those whose outcome is now certain are finished, others are queued, in order."""
        queued: list[Job] = []
        for group in groups:
            view = View(self._known, self._layout, now_ms, self._version(), _is_over)
            anew = [view.evaluate(each.unit) for each in group.units]
            changed = any(each.changes for each in anew)
            if changed or view.missing or not view.before.keys() <= group.before.keys():
                for each in anew:
                    each.unit.tries += 1
                    queued.append([each.unit])
            else:
                self._finish(anew, revision)
        self._queue.extendleft(reversed(queued))

    async def _find_ended(self, units: list[Unit]) -> None:
        """A lease has ended: find out which."""
        sessions = {session.id: session for unit in units for session in unit.sessions}
        for session in sessions.values():
            if isinstance(session, EtcdSession):
                await session.alive()

    async def _delete_range(self, job: RangeDeletion, due: float) -> None:
        count = await job.run(self._cluster, self._layout, self._numbered, self._known, due)
        self.statistics.transactions += 1
        if job.version:
            self._seen(job.version)
            await self._hub.reached_range(job.revision, job.start, job.end)
        if not job.future.done():
            job.future.set_result(count)


def _is_over(session: Any) -> bool:
    return not isinstance(session, EtcdSession) or session.over


def _too_much(groups: list[Group]) -> set[Unit]:
    """Units that do not fit into one transaction with those before them."""
    later: set[Unit] = set()
    for group in groups:
        if len(group.before) <= GROUP_KEYS_MAX:
            continue
        keys: set[bytes] = set()
        for at, each in enumerate(group.units):
            if at and len(keys | each.keys.keys()) > GROUP_KEYS_MAX:
                later.update(one.unit for one in group.units[at:])
                break
            keys |= each.keys.keys()
    if not later and len(groups) > GROUPS_MAX:
        later.update(each.unit for group in groups[GROUPS_MAX:] for each in group.units)
    return later


def _fail(job: Job, error: Exception) -> None:
    for unit in job if isinstance(job, list) else [job]:
        unit.fail(error)


def too_large(units: list[Unit]) -> int | None:
    """The size of the largest of some units, where etcd would not take it."""
    largest = max(unit.size for unit in units)
    return largest if largest > REQUEST_SIZE_MAX else None
