"""`Segment`: one append-only log, open on one loop: append, read, wait, seal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from typing_extensions import Buffer

from engine._native.serve import log
from engine._native.serve.log import Claim
from engine.aio.turns import Turns
from engine.clock import Ages
from engine.errors import (
    AlreadyClosedError,
    EngineError,
    FencedError,
    InvalidArgumentError,
    NotOwnerError,
    SegmentSealedError,
)
from engine.limits import LOG_FILE_MESSAGES_MAX, READ_BLOCK_SIZE
from engine.model.identity import Identity
from engine.model.names import SegmentName
from engine.storage.commit.commit import Committer
from engine.storage.commit.group import Appended, Group, join_fresh
from engine.storage.dedup.dedup import producer_id
from engine.storage.file.context import Context, SegmentStatistics
from engine.storage.file.continuation import Gaps
from engine.storage.file.format import State
from engine.storage.file.inherited import hand_over
from engine.storage.file.logfile import Block, LogFile, new_file
from engine.storage.file.owners import Lease, Succession
from engine.storage.file.recovery import Recovered, file_facts
from engine.storage.file.retention import ages_of, delete_files, files_to_delete
from engine.storage.file.tail import Piece
from engine.storage.reader import Reader, Stretch
from engine.storage.waiting import Waiters

_log = logging.getLogger("engine.storage")

Membership = tuple[int, int]  # in a transaction: its number, and that of the attempt


class Segment:
    """One segment's log. Loop thread only.

    `durable_offset` is as far as readers see and acknowledgements go: with durability "fsync" it is on the medium, with
    "interval" and "os" it has been handed to the operating system.
    """

    def __init__(
        self, name: SegmentName, context: Context, found: Recovered, durability: str, term: int, lease: Lease | None
    ) -> None:
        """`lease`: nothing is written or confirmed once it may be over; None: nobody else can own the segment."""
        # Fixed after open.
        self.lease = lease
        self.name = name
        self.durability = durability
        self.directory = found.files[-1].directory
        self._context = context
        # How it stands.
        self.sealed = found.sealed
        self.failed: EngineError | None = None
        self.term = max(term, found.term)
        self._seals = 0  # under way: no append gets in
        self._seal_confirmed = False  # by this process
        self._turns = Turns()  # sealing, closing and inheriting never overlap
        self._closed = False
        # What is in it.
        self._files = found.files
        self._dedup = found.dedup
        self._reader = Reader(context, self._files, name.segment_id)
        self._time_ms = max(f.last_time_ms for f in self._files)
        last = self._files[-1]
        # Where the log ended, and where it goes on; not the same when a gap was made that a file has still to say.
        self._continuation = (found.end, found.restart)
        self.gaps = Gaps(self._files, self._continuation)
        self.on_gap: Callable[[], None] = lambda: None  # `gaps` has one more
        self._succession = Succession(last.opening, lease)
        goes_on = self.sealed or (self._succession.continues and self._may_go_on_in(last))
        self._commit = Committer(self, context, durability, last, lease, found.restart, continues=goes_on)
        self.marks = self._commit.marks
        self._waiters = Waiters()
        self._wake = self._waiters.wake
        # Counted.
        self._appended = [0, 0, 0]
        self._duplicates = 0

    # Where it stands

    @property
    def sealing(self) -> bool:
        """Whether it is being sealed right now."""
        return self._seals > 0

    @property
    def first_offset(self) -> int:
        """The oldest offset that is still there."""
        return self._files[0].first_offset

    @property
    def next_offset(self) -> int:
        """The offset the next message gets."""
        return self._commit.next_offset

    @property
    def durable_offset(self) -> int:
        """Readers see everything below it."""
        return self._commit.durable_offset

    @property
    def messages_end(self) -> int:
        """Right behind the last message; below `next_offset` when the log ends with a gap."""
        return self.gaps.before(self._commit.next_offset)

    @property
    def size_bytes(self) -> int:
        """Of all files, without what is on its way."""
        return sum(f.size_bytes for f in self._files)

    @property
    def interval_ms(self) -> int:
        """With durability "interval": the time between syncs."""
        return self._commit.interval_ms

    @interval_ms.setter
    def interval_ms(self, value: int) -> None:
        self._commit.interval_ms = value

    @property
    def identity(self) -> Identity | None:
        """Of the newest metadata that a file of it was written under; None: no file says it."""
        found = [identity for file in self._files if (identity := file.identity) is not None]
        return max(found, key=lambda identity: identity.generation, default=None)

    def _may_go_on_in(self, last: LogFile) -> bool:
        """Whether appends may go to the last file: it says what a new one would say, and nothing is left out behind."""
        same = last.origin is not None and last.origin.durability == self.durability
        return same and self._continuation[1] == last.end_offset

    def statistics(self) -> SegmentStatistics:
        """What was done here."""
        c = self._commit.counters
        messages, entries, size = self._appended
        reader = self._reader
        return SegmentStatistics(
            messages, entries, size, self._duplicates, reader.blocks, reader.read_bytes, reader.from_memory,
            c.commits, c.commit_bytes, c.syncs, c.rolls, c.write_failures, c.sync_failures,
            len(self._files), self.size_bytes, self.first_offset, self.durable_offset, self._time_ms,
        )  # fmt: skip

    # Append

    def append(
        self, entries: Buffer, producer: str = "", *, term: int | None = None, transaction: Membership | None = None
    ) -> asyncio.Future[list[Appended]]:
        """Append whole entries, back to back; the future holds the place of each once they are durable.

        All of them get a place or none; they say that they are in the `transaction`, or in none, and that they are of
        `producer` ("": of any). The buffer belongs to the segment from now on: when it is writable the stamps are
        written into it. The future may fail with CorruptionError, MessageTooLargeError or InvalidArgumentError (nothing
        was done), SegmentSealedError, FencedError (a newer term is known), StorageError or DiskFullError (nothing of it
        is in the log), UnknownOutcomeError (a sync failed), AlreadyClosedError.
        """
        future: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        try:
            self._check_open(term)
            self._append(memoryview(entries).cast("B"), future, producer, transaction)
        except EngineError as e:
            future.set_exception(e)
        return future

    def _check_open(self, term: int | None) -> None:
        if self.sealed or self._seals:
            raise SegmentSealedError(f"{self.name} is sealed")
        if self._closed:
            raise AlreadyClosedError(f"{self.name} is closed")
        self.check_lease()
        if self.failed is not None:
            raise type(self.failed)(*self.failed.args)
        if term is not None and term != self.term:
            self.fence(term)

    def check_lease(self) -> None:
        """Raise NotOwnerError when it may be over."""
        if self.lease is not None:
            self.lease.check()

    def fence(self, term: int) -> None:
        """Take a newer term over. Raises FencedError for an older one."""
        if term < self.term:
            raise FencedError(f"{self.name} is owned under term {self.term}; term {term} is over")
        self.term = term

    def _append(
        self, data: memoryview, future: asyncio.Future[list[Appended]], producer: str, transaction: Membership | None
    ) -> None:
        claims = log.entries(data, True, transaction, producer_id(producer) if producer else None)
        if sum(claim.count for claim in claims) > LOG_FILE_MESSAGES_MAX:
            raise InvalidArgumentError(f"an append must have at most {LOG_FILE_MESSAGES_MAX} messages")
        places, fresh = self._place(claims)
        if not fresh:
            self._acknowledge_duplicates(future, places)
            return
        if len(fresh) < len(claims):
            data, fresh = join_fresh(data, fresh)
        time_ms = self._time_ms = max(self._time_ms, self._context.clock.time_ms())
        start = self._commit.next_offset
        group = self._commit.add(data, fresh, self.term, time_ms)
        group.waiters.append((future, places))
        self._commit.schedule()
        appended = self._appended
        appended[0] += self._commit.next_offset - start
        appended[1] += len(fresh)
        appended[2] += len(data)

    def _place(self, claims: list[Claim]) -> tuple[list[Appended], list[Claim]]:
        """Where each entry goes or is, and which of them are new; the new ones are recorded as appended."""
        dedup, durable = self._dedup, self._commit.durable_offset
        start = offset = self._commit.next_offset
        places, fresh = [], []
        try:
            for claim in claims:
                known = dedup.find(claim)
                first, last, count = claim.first_sequence, claim.last_sequence, claim.count
                if known is not None:
                    self._duplicates += 1
                    places.append(Appended(first, last, known, count, True))
                    continue
                dedup.record(claim, offset, durable)
                places.append(Appended(first, last, offset, count, False))
                fresh.append(claim)
                offset += count
        except EngineError:
            dedup.undo(start)
            raise
        return places, fresh

    def _acknowledge_duplicates(self, future: asyncio.Future[list[Appended]], places: list[Appended]) -> None:
        """The originals may still be on their way: wait for everything that is."""
        newest = self._commit.newest()
        if newest is None:
            future.set_result(places)
        else:
            newest.waiters.append((future, places))

    # Read

    def read(
        self, offset: int, max_bytes: int = READ_BLOCK_SIZE, *, at_once: bool = False
    ) -> Awaitable[Block] | Block | None:
        """A block of whole entries for a reader at `offset`; None at the durable end.

        Its first entry holds `offset` (or is the first one left after retention). It has at least one entry and
        otherwise at most `max_bytes`. What is in memory comes at once; the rest as an awaitable, which may raise
        CorruptionError or StorageError. `at_once`: what the system has in its cache comes at once as well, which keeps
        the loop for as long as copying and checking it takes.
        """
        if self._closed:
            raise AlreadyClosedError(f"{self.name} is closed")
        offset = self.gaps.skip(max(offset, self.first_offset))
        return self._reader.read(offset, max_bytes, at_once) if offset < self.durable_offset else None

    async def stretches(self, start: int, stop: int) -> list[Stretch]:
        """Where a reader of [start, stop) finds what is durable by himself; empty if he has to ask. StorageError."""
        if self._closed or self.failed is not None or start < self.first_offset:
            return []
        start = self.gaps.skip(start)
        return await self._reader.stretches(start, min(stop, self.durable_offset))

    async def offset_at(self, time_ms: int) -> int:
        """The first offset whose publish time is at or after a time; the durable end when there is none."""
        found = await self._reader.offset_at(time_ms, self.read)
        return self.durable_offset if found is None else found

    def when_durable(self, offset: int) -> asyncio.Future[None]:
        """Done when `offset` may be read, or when it never will: the segment is sealed, failed or closed."""
        ended = self.sealed or self._closed or self.failed is not None
        return self._waiters.add(offset, done=ended or offset < self.durable_offset)

    # Producers

    def last_sequence(self, producer: str) -> int:
        """The highest sequence id known of a producer, also if it is not durable yet; -1 for none."""
        return self._dedup.last_sequence(producer_id(producer))

    def floor(self, producer: str) -> int:
        """Every message of a producer with a lower sequence id is durable, as it said itself; 0 for nothing known."""
        return self._dedup.floor(producer_id(producer))

    def producer_attached(self, producer: str) -> None:
        """A new session of a producer: what failed in an earlier one does not have to be sent again first."""
        self._dedup.forget_refused(producer_id(producer))

    def dedup_snapshot(self) -> bytes:
        """What is known of producers, for the segments that follow this one in the layout."""
        return self._dedup.bequest(self.durable_offset)

    async def inherit(self, snapshots: Sequence[bytes]) -> None:
        """Take over what parents know of producers, durably; before the first append. Idempotent. NotOwnerError."""
        for snapshot in snapshots:
            self._dedup.load(snapshot, from_parent=True)
        await self._turns.take(self._save_inherited)

    async def _save_inherited(self) -> None:
        await hand_over(self._context, self.directory, self._dedup.inherited_snapshot(), self.lease)

    # The end

    async def seal(self, term: int | None = None) -> int:
        """Take no more appends, for ever; the end offset. Idempotent. Durable when it returns.

        Raises FencedError, StorageError (call it again).
        """
        if term is not None and term != self.term:
            self.fence(term)
        if self._seal_confirmed:
            return self.durable_offset
        if self._closed:
            raise AlreadyClosedError(f"{self.name} is closed")
        self._seals += 1  # from this moment on, not from that in which its turn comes
        await self._turns.take(self._seal)
        return self.durable_offset

    async def _seal(self) -> None:
        try:
            if not self._seal_confirmed:
                await (self._commit.confirm() if self.sealed else self._commit.finish(State.SEALED))
                self.check_lease()
                self.sealed = self._seal_confirmed = True
        finally:
            self._seals -= 1
        self._wake()

    async def begin_file(self) -> None:
        """A new owner fixes where the files before it end. Raises StorageError."""
        if self._commit.file is None:
            await self._commit.replace()

    async def close(self) -> None:
        """Finish what was appended, close the files in order. Idempotent. Never raises: what is durable stays so."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._turns.take(self._close_file)
        except (EngineError, OSError) as e:
            _log.warning("%s: not closed in order (%s); the next open reads its last file", self.name, e)
        self.release()

    async def _close_file(self) -> None:
        file, lease = self._commit.file, self.lease
        if self.sealed or self.failed is not None or (lease is not None and (file is None or not lease.held)):
            return
        if file is not None and file.closing is not None and self._commit.newest() is None:
            return
        await self._commit.finish(State.CLEAN)

    def release(self) -> None:
        """Let go of files and memory without another word to the disk."""
        self._closed = True
        self._commit.stop()
        if self.lease is not None and not self.lease.held:
            self._commit.lapse(NotOwnerError(f"{self.name} is owned here no more"))
        for file in self._files:
            self._context.handles.retire(file)
        self._context.cache.clear(self._reader.tail)
        self._wake()

    async def retain(
        self,
        min_offset: int,
        now_ms: int | None = None,
        *,
        retention_ms: int | None = -1,
        retention_bytes: int | None = -1,
        ages: Ages[int] | None = None,
    ) -> int:
        """Delete files that are acknowledged (all below `min_offset`) and past the retention time or size; how many.

        `retention_ms`, `retention_bytes`: None keeps for ever, -1 takes the configuration's. The last file stays.
        """
        doomed = files_to_delete(
            self._files,
            min_offset=min_offset,
            ages_s=ages_of(self._files, self._context.clock.time_ms() if now_ms is None else now_ms, ages),
            retention_ms=self._context.config.retention_ms if retention_ms == -1 else retention_ms,
            retention_bytes=self._context.config.retention_bytes if retention_bytes == -1 else retention_bytes,
        )
        try:
            await delete_files(self._context, self._files, doomed, self.lease)
        finally:
            self.gaps = Gaps(self._files, self._continuation)
        return len(doomed)

    # What group commit asks and tells (commit.Owner)

    def plan_file(self, first_offset: int) -> LogFile:
        """A file to be created."""
        snapshot = self._dedup.snapshot(first_offset)
        terms = self._succession.plan(first_offset)
        end, restart = self._continuation
        before = end if first_offset == restart else first_offset
        facts = file_facts(self._context, self.name, self.durability)
        return new_file(self.directory, facts, first_offset, previous_end=before, snapshot=snapshot, terms=terms)

    def gap_made(self, end: int, restart: int) -> None:
        """A sync failed: what was acknowledged in a relaxed mode from `end` on may be lost; see continuation.py."""
        self._continuation = (end, restart)
        self.gaps = Gaps(self._files, self._continuation)
        self._context.measures.gaps += 1
        self.on_gap()

    def snapshot(self, below: int) -> bytes:
        """What duplicate detection knows below an offset."""
        return self._dedup.snapshot(below)

    def file_created(self, file: LogFile) -> None:
        """It is the active one now."""
        if self._files[-1].first_offset == file.first_offset:
            self._context.handles.retire(self._files.pop())
        self._files.append(file)
        self.gaps = Gaps(self._files, self._continuation)

    def group_durable(self, group: Group) -> None:
        """Keep its bytes for tailing readers, and wake who waits for them."""
        cache, tail = self._context.cache, self._reader.tail
        for chunk in group.chunks:
            cache.push(tail, Piece(group.file, chunk.first_offset, chunk.next_offset, chunk.data))
        self._wake(group.next_offset)

    def rolled_back(self, offset: int) -> None:
        """Appends failed."""
        self._dedup.rollback(offset, self.durable_offset)
        if offset < self.durable_offset:
            self._context.cache.clear(self._reader.tail)

    def file_failed(self, error: EngineError) -> None:
        """What was durable is damaged."""
        self.failed = error
        _log.critical("%s: %s", self.name, error)
        self._wake()


__all__ = ["Appended", "Block", "Context", "Segment", "SegmentStatistics"]
