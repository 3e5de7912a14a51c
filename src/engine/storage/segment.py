"""`Segment`: one append-only log, open on one loop: append, read, wait, seal.

Its parts: `Committer` makes appends durable (commit/), `Dedup` recognises duplicates (dedup/), `Reader` and `Waiters`
serve readers, `FileTerms` and a `Lease` fence former owners (file/owners.py), `Gaps` are the offsets that were given up
(file/continuation.py). Recovery made the list of files (file/recovery.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from engine._native.serve.blocks import Block
from engine._native.serve.commits import LogEnd
from engine._native.serve.groups import Appended
from engine._native.serve.waiters import Waiters
from engine.aio.turns import Turns
from engine.clock import Ages
from engine.errors import (
    AlreadyClosedError,
    EngineError,
    FencedError,
    NotOwnerError,
    SegmentSealedError,
)
from engine.model.identity import Identity
from engine.model.names import SegmentName
from engine.storage.commit.committer import Committer
from engine.storage.commit.ports import Backing, Waiter
from engine.storage.dedup.dedup import Dedup, producer_id
from engine.storage.file.context import Context, SegmentStatistics
from engine.storage.file.continuation import Gaps
from engine.storage.file.format import State
from engine.storage.file.logfile import LogFile, new_file
from engine.storage.file.owners import FileTerms, Lease
from engine.storage.file.producer_snapshot import save_producer_snapshot
from engine.storage.file.recovery import Recovered, file_facts
from engine.storage.file.retention import OLDEST, Limits, Span, ages_of, delete_files, ends, files_to_delete, unlink
from engine.storage.reader import Reader, Stretch

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from engine.storage.consolidation import Consolidation, ObjectGarbage, ObjectsRecord
    from engine.storage.objects.cache import ObjectCache
    from engine.storage.objects.names import FileNames

_log = logging.getLogger("engine.storage")

Membership = tuple[int, int]  # in a transaction: its number, and the number of the attempt


class Segment(LogEnd):
    """One segment's log.

    `durable_offset` is the end of what readers see and producers get acknowledged: with durability "fsync" it is on the
    medium, with "interval" and "os" it is written to the operating system, with "object" in the segment's backing.
    """

    failed: EngineError | None
    lease: Lease | None
    dedup: Dedup
    gaps: Gaps

    def __init__(
        self,
        name: SegmentName,
        context: Context,
        found: Recovered,
        durability: str,
        term: int,
        lease: Lease | None,
        backing: Backing | None = None,
    ) -> None:
        """`lease`: nothing is written or confirmed once it may be over; None: no other broker can own the segment.

        `backing`: with durability "object". Then appends go to a file that this owner has begun, never to one found.
        """
        self._reader = Reader(context, found.files, name.segment_id)
        self._waiters = Waiters()
        super().__init__(found.dedup, context.cache, self._reader.tail, self._waiters, context.clock, producer_id)
        self.read_with(self._reader, found.files)
        # Fixed after open.
        self.lease = lease
        self._backing = backing
        self.name = name
        self.durability = durability
        self.directory = found.files[-1].directory
        self._context = context
        # Its state.
        self.sealed = found.sealed
        self.term = max(term, found.term)
        self._seal_confirmed = False  # by this process
        self._turns = Turns()  # sealing, closing and inheriting never overlap
        self._heir: str | None = None  # set by leave_to()
        # Its content.
        self._files = found.files
        self.newest_ms = max(f.last_time_ms for f in self._files)
        last = self._files[-1]
        # Where the log ended, and where it goes on; they differ if there is a gap that no file states yet.
        self._continuation = (found.end, found.restart)
        self.gaps = Gaps(self._files, self._continuation)
        self.on_gap: Callable[[], None] = lambda: None  # called when `gaps` has one more
        self._terms = FileTerms(last.opening, lease)
        goes_on = self.sealed or (backing is None and self._terms.continues and self._may_go_on_in(last))
        self._commit = Committer(
            self, context, durability, last, lease, found.restart, continues=goes_on, backing=backing
        )
        self.commit_with(self._commit)
        self._groups = self._commit.groups
        self.marks = self._commit.marks
        self._wake = self._waiters.wake
        self.retention_due_s: float | None = None  # after retain(): seconds until there is more to do; None: never
        self.consolidation: Consolidation | None = None  # with durability "object"

    # Its state

    def flush_within(self, seconds: float | None) -> None:
        """Of durability "object": how long an append may wait for others. None: as the broker's do."""
        if self._backing is not None:
            self._backing.flush_s = seconds

    @property
    def sealing(self) -> bool:
        """Whether a seal is under way."""
        return self.seals > 0

    @property
    def messages_end(self) -> int:
        """The end of the last message; below `next_offset` if the log ends with a gap."""
        return self.gaps.before(self._groups.next_offset)

    @property
    def size_bytes(self) -> int:
        """Bytes in all files, without appends under way."""
        named, size = self._reader.named, sum(f.size_bytes for f in self._files)
        if named is not None:  # those that are here as well count once
            size += named.objects.file_bytes - sum(f.size_bytes for f in self._files if self._is_named(f))
        return size

    @property
    def interval_ms(self) -> int:
        """With durability "interval": milliseconds between syncs."""
        return self._commit.interval_ms

    @interval_ms.setter
    def interval_ms(self, value: int) -> None:
        self._commit.interval_ms = value

    @property
    def identity(self) -> Identity | None:
        """Of the newest metadata under which one of its files was written; None: no file states it."""
        found = [identity for file in self._files if (identity := file.identity) is not None]
        return max(found, key=lambda identity: identity.generation, default=None)

    def _may_go_on_in(self, last: LogFile) -> bool:
        """Whether appends may go to the last file: its header states the present durability, and no gap follows."""
        same = last.origin is not None and last.origin.durability == self.durability
        return same and self._continuation[1] == last.end_offset

    def statistics(self) -> SegmentStatistics:
        appended, commits, reader = self.appended, self._commit.counters, self._reader
        return SegmentStatistics(
            appended_messages=appended.messages,
            appended_entries=appended.entries,
            appended_bytes=appended.size,
            duplicate_entries=appended.duplicates,
            read_blocks=reader.blocks + reader.tail.blocks,
            read_bytes=reader.read_bytes + reader.tail.bytes_read,
            read_from_memory=reader.tail.blocks,
            commits=commits.commits,
            commit_bytes=commits.commit_bytes,
            syncs=commits.syncs,
            rolls=commits.rolls,
            write_failures=commits.write_failures,
            sync_failures=commits.sync_failures,
            files=len(self._files),
            size_bytes=self.size_bytes,
            first_offset=self.first_offset,
            durable_offset=self.durable_offset,
            last_publish_ms=self.newest_ms,
        )

    # Append

    def append(
        self, entries: Buffer, producer: str = "", *, term: int | None = None, transaction: Membership | None = None
    ) -> asyncio.Future[list[Appended]]:
        """Append whole entries, back to back; the future's result is the place of each, once they are durable.

        All of them get a place or none. Their headers must name `transaction` (None: no transaction) and `producer`
        ("": any). The buffer belongs to the segment from now on: if it is writable, the stamps are written into it.

        The future may fail with CorruptionError, MessageTooLargeError or InvalidArgumentError (nothing was done),
        SegmentSealedError, FencedError (a newer term is known), StorageError or DiskFullError (nothing of it is in the
        log), UnknownOutcomeError (a sync failed, or the segment was closed), NotOwnerError (the lease is over; it may
        be in the log or not), AlreadyClosedError.
        """
        future: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        self.append_for(future, memoryview(entries).cast("B"), producer, term, transaction)
        return future

    def check_open(self, term: int | None) -> None:
        if self.sealed or self.seals:
            raise SegmentSealedError(f"{self.name} is sealed") if self._heir is None else self.gone()
        if self.closed:
            raise self.gone()
        self.check_lease()
        over = self._commit.stopped_by
        if isinstance(over, NotOwnerError):
            raise NotOwnerError(*over.args)
        if self.failed is not None:
            raise type(self.failed)(*self.failed.args)
        if term is not None and term != self.term:
            self.fence(term)

    def gone(self) -> EngineError:
        if self._heir is not None:
            return NotOwnerError(f"{self.name} moves to the broker {self._heir}; look the topic up again")
        return AlreadyClosedError(f"{self.name} is closed")

    def check_lease(self) -> None:
        """Raise NotOwnerError if the lease may be over."""
        if self.lease is not None:
            self.lease.check()

    def fence(self, term: int) -> None:
        """Accept a newer term. Raises FencedError for an older one."""
        if term < self.term:
            raise FencedError(f"{self.name}: the term must be at least {self.term}, got {term}")
        self.term = term

    def acknowledge_duplicates(self, waiter: Waiter, places: list[Appended]) -> None:
        """The originals may not be durable yet: wait for the newest group."""
        newest = self._commit.newest
        if newest is None:
            waiter.set_result(places)
        else:
            newest.waiters.append((waiter, places))

    # Read

    async def stretches(self, start: int, stop: int) -> list[Stretch]:
        """The file ranges that hold [start, stop), for local reads. Empty: read through the broker. StorageError."""
        if self.closed or self.failed is not None or start < self.first_offset:
            return []
        start = self.gaps.skip(start)
        return await self._reader.stretches(start, min(stop, self.durable_offset))

    async def offset_at(self, time_ms: int) -> int:
        """The first offset whose publish time is at or after a time; the durable end if there is none."""
        found = await self._reader.offset_at(time_ms, self.read)
        return self.durable_offset if found is None else found

    def when_durable(self, offset: int) -> asyncio.Future[None]:
        """Done once `offset` may be read, or never will be: the segment is sealed, failed or closed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.sealed or self.closed or self.failed is not None or offset < self.durable_offset:
            future.set_result(None)
        else:
            self.call_when_durable(offset, partial(_end, future))
        return future

    # Producers

    def last_sequence(self, producer: str) -> int:
        """The highest sequence id appended by a producer, durable or not; -1 for none."""
        return self.dedup.last_sequence(producer_id(producer))

    def floor(self, producer: str) -> int:
        """Every message of a producer with a lower sequence id is durable, as its entries state; 0: unknown."""
        return self.dedup.floor(producer_id(producer))

    @property
    def remembered_producers(self) -> int:
        """How many producers' sequences it remembers."""
        return self.dedup.producers

    def remembers(self, producer: str) -> bool:
        """Whether it remembers sequences of the producer of this name."""
        return self.dedup.remembers(producer_id(producer))

    def producer_attached(self, producer: str) -> None:
        """A new session of a producer begins: what failed in an earlier one need not be sent again first."""
        self.dedup.forget_refused(producer_id(producer))

    def dedup_snapshot(self) -> bytes:
        """The producer snapshot for the segments that follow this one in the layout."""
        return self.dedup.child_snapshot(self.durable_offset)

    async def inherit(self, snapshots: Sequence[bytes]) -> None:
        """Store the parents' producer snapshots durably, before the first append. Idempotent. NotOwnerError."""
        for snapshot in snapshots:
            self.dedup.load(snapshot, from_parent=True)
        await self._turns.take(self._save_inherited)

    async def _save_inherited(self) -> None:
        snapshot = self.dedup.parents_snapshot()
        await save_producer_snapshot(self._context, self.directory, snapshot, self.lease)
        if self._backing is not None:
            await self._backing.keep_inherited(snapshot)

    # The end

    async def seal(self, term: int | None = None) -> int:
        """Refuse appends from now on, forever; returns the end offset. Idempotent. Durable when it returns.

        Raises FencedError, StorageError (call it again).
        """
        if term is not None and term != self.term:
            self.fence(term)
        if self._seal_confirmed:
            return self.durable_offset
        if self.closed or self._heir is not None:
            raise self.gone()
        self.seals += 1  # appends are refused from now on, not only once its turn comes
        await self._turns.take(self._seal)
        return self.durable_offset

    async def _seal(self) -> None:
        try:
            if not self._seal_confirmed:
                await (self._commit.confirm() if self.sealed else self._commit.finish(State.SEALED))
                self.check_lease()
                self.sealed = self._seal_confirmed = True
        finally:
            self.seals -= 1
        self._wake()

    async def begin_file(self) -> None:
        """Create a file: by that a new owner fixes where the previous files end. Raises StorageError."""
        if self._commit.file is None:
            await self._commit.replace()

    def leave_to(self, heir: str) -> None:
        """Refuse appends, and a seal, from now on: another broker will own it. close() is next."""
        self._heir = heir
        self.seals += 1  # which appends look at

    async def close(self) -> None:
        """Finish all appends, and close the last file. Idempotent. Never raises: what is durable stays so."""
        if self.closed:
            return
        self.closed = True
        try:
            await self._turns.take(self._close_file)
        except (EngineError, OSError) as e:
            _log.warning("%s: not closed in order (%s); the next open scans its last file", self.name, e)
        self.release()

    async def _close_file(self) -> None:
        file, lease = self._commit.file, self.lease
        if self.sealed or self.failed is not None or (lease is not None and (file is None or not lease.held)):
            return
        if file is not None and file.closing is not None and self._groups.newest is None:
            return
        await self._commit.finish(State.CLEAN)

    def release(self) -> None:
        """Release files and memory, without writing to the disk."""
        self.closed = True
        if self._reader.named is not None:
            self._reader.named.cache.let_go_all(self._files)  # the next open empties the directory
        if self.lease is not None and not self.lease.held:
            self._commit.lapse(NotOwnerError(f"{self.name}: this broker's lease is over"))
        else:
            self._commit.stop()
        for file in self._files:
            self._context.handles.retire(file)
            self._context.pages.finish(file)
        self._context.cache.clear(self._reader.tail)
        self._wake()

    async def retain(
        self,
        min_offset: int,
        now_ms: int | None = None,
        *,
        retention_ms: int | None = -1,
        retention_bytes: int | None = -1,
        ttl_ms: int | None = None,
        round_s: float = 0.0,
        ages: Ages[int] | None = None,
    ) -> int:
        """Delete files that are acknowledged (all below `min_offset`) and past the retention time or size.

        Returns how many. `retention_ms`, `retention_bytes`: None for no limit, -1 for the configured one. `ttl_ms`:
        after which messages count as acknowledged; None: never. `round_s`: the time between two calls. A last file
        whose messages are old enough is followed by a new one, and can go. See file/retention.py. Raises StorageError,
        NotOwnerError.
        """
        files, config = self._files, self._context.config
        limits = Limits(
            config.retention_ms if retention_ms == -1 else retention_ms,
            config.retention_bytes if retention_bytes == -1 else retention_bytes,
            round_s,
            ttl_ms,
        )
        spans, now_ms = await self._spans(), self._context.clock.time_ms() if now_ms is None else now_ms
        ages_s = ages_of(spans, files[-1], now_ms, ages)
        if not self.sealed and ends(files[-1], ages_s, min_offset, limits):
            goes = files_to_delete(spans, min_offset=min_offset, ages_s=ages_s, limits=limits, last=True)
            last = files[-1]
            await self._turns.take(lambda: self._end_file(last, closes=last not in goes))
            spans = await self._spans()
        doomed = files_to_delete(spans, min_offset=min_offset, ages_s=ages_s, limits=limits)
        await self._context.will_change(self.name)
        try:
            if self.consolidation is None:
                await delete_files(self._context, files, [f for f in files if f in doomed], self.lease)
            else:
                await self.consolidation.retire(self, doomed)
        finally:
            self.gaps = Gaps(files, self._continuation)
        spans = await self._spans()
        ages_s = ages_of(spans, files[-1], now_ms, ages)
        newest_s = ages_s[spans[0].first_offset] if len(spans) > 1 else None
        self.retention_due_s = None if self.sealed else limits.due_s(newest_s, ages_s.get(OLDEST))
        return len(doomed)

    async def _spans(self) -> Sequence[Span]:
        return self._files if self.consolidation is None else await self.consolidation.spans(self._files)

    async def _end_file(self, last: LogFile, *, closes: bool) -> None:
        """Go on in a new file. `closes`: the last one stays for a while, and gets its footer."""
        if not self.sealed and not self.closed and self.failed is None and self._files[-1] is last:
            self.check_lease()
            await self._commit.end_file(closes=closes)

    # Objects (consolidation.py)

    def consolidate_by(self, consolidation: Consolidation) -> None:
        """From now on rolled files may be named, and named ones are read."""
        self.consolidation = consolidation
        self._reader.named = consolidation.named

    def consolidate_on(
        self, record: ObjectsRecord, names: FileNames, cache: ObjectCache, garbage: ObjectGarbage
    ) -> None:
        """consolidate_by() what its record says, with `names` for uploads. Idempotent."""
        from engine.storage.consolidation import Consolidation
        from engine.storage.file.named import NamedFiles

        if self.consolidation is None:
            named = NamedFiles(record.objects, cache, self.name.segment_id)
            self.consolidate_by(Consolidation(self._context, record, names, named, garbage))

    def _is_named(self, file: LogFile) -> bool:
        named = self._reader.named
        return named is not None and file.end_offset <= named.end_offset and file is not self._files[-1]

    @property
    def files(self) -> Sequence[LogFile]:
        """Those that are here, oldest first."""
        return self._files

    async def end_aged(self, age_ms: int) -> None:
        """Go on in a new file if the last one holds a message of that age, so that its log can be trimmed."""
        last = self._files[-1]
        first_ms = None if last.index is None or last.is_empty else last.index.first_time_ms
        if first_ms is not None and self._context.clock.time_ms() - first_ms >= age_ms:
            await self._turns.take(lambda: self._end_file(last, closes=True))

    def drop_local(self, file: LogFile) -> None:
        """Remove a named file and those before it from the disk: their objects are read."""
        assert self._reader.named is not None
        while file in self._files[:-1]:
            gone = self._files.pop(0)
            self._reader.named.cache.let_go(gone)
            unlink(self._context, gone)

    # What group commit needs (commit.ports.SegmentLog)

    def plan_file(self, first_offset: int) -> LogFile:
        snapshot, terms = self.dedup.snapshot(first_offset), self._terms.plan(first_offset)
        end, restart = self._continuation
        before = end if first_offset == restart else first_offset
        facts = file_facts(self._context, self.name, self.durability)
        return new_file(self.directory, facts, first_offset, previous_end=before, snapshot=snapshot, terms=terms)

    def gap_made(self, end: int, restart: int) -> None:
        """A sync failed in a relaxed mode: acknowledged messages from `end` on may be lost (file/continuation.py)."""
        self._continuation = (end, restart)
        self.gaps = Gaps(self._files, self._continuation)
        self._context.metrics.gaps += 1
        self.on_gap()

    def snapshot(self, below: int) -> bytes:
        return self.dedup.snapshot(below)

    def file_created(self, file: LogFile) -> None:
        if self._files[-1].first_offset == file.first_offset:
            self._context.handles.retire(self._files.pop())
        self._files.append(file)
        self.gaps = Gaps(self._files, self._continuation)

    def rolled_back(self, offset: int) -> None:
        self.dedup.rollback(offset, self.durable_offset)
        if offset < self.durable_offset:
            self._context.cache.clear(self._reader.tail)

    def file_failed(self, error: EngineError) -> None:
        self.failed = error
        _log.critical("%s: %s", self.name, error)
        self._wake()


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


__all__ = ["Appended", "Block", "Context", "Segment", "SegmentStatistics"]
