"""What one producer has in flight: which futures wait for it, until when, and how much room it takes.

An entry enters when it is sealed and leaves exactly once: acknowledged, failed, or out of time. One that was re-split
keeps its place until the last of its pieces has left.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from engine._native.produce.batcher import Batcher
from engine._native.produce.sealed import SealedEntry
from engine.client.base.html import HtmlRecord
from engine.client.base.memory import ClientMemory
from engine.client.base.options import Batching
from engine.client.produce.batching_quality import BucketStatistics, bucket_statistics
from engine.client.produce.window import Window
from engine.errors import TimeoutError
from engine.model.positions import MessageId
from engine.model.transactions import TRANSACTION_OVER

log = logging.getLogger(__name__)

# There is room again when no more than this share of the limit is in use: enough to send a burst without checking.
ROOM_SHARE = 0.75

# Where something late still waits for credit, or was sent late for want of it, deadlines are looked at so often in one
# `send_timeout`.
LATE_SWEEPS = 16


@dataclass(frozen=True, slots=True)
class ProducerStatistics(HtmlRecord):
    """Totals since the producer was made; `pending…` are current values. `messages_duplicate`: of those acknowledged,
    what the topic had when the producer came, under the same name and sequence ids; it is stored once.

    Bytes are what messages count for against the pending limit: key, value and a constant for each message.
    `buckets`: how well entries are filled, by (segment id, bucket) of the segments that messages go to now.
    """

    messages_sent: int
    messages_acknowledged: int
    messages_failed: int
    messages_duplicate: int
    entries_sent: int
    entries_resent: int
    bytes_sent: int
    pending_messages: int
    pending_bytes: int
    buckets: Mapping[tuple[int, int], BucketStatistics] = field(default_factory=dict)


class Report(enum.Enum):
    """Where the failure of an entry is reported, beside the futures of its messages."""

    FUTURES = "each message has a future"
    FLUSH = "flush() raises it, on_error is called"
    COMMIT = "the commit of its transaction raises it"
    COMMIT_AND_CALLBACK = "so does the commit, and on_error is called"


def report_of(entry: SealedEntry) -> Report:
    """Decided by the entry alone: messages without futures, and a transaction that is not being aborted."""
    silent = len(entry.waiters or ()) < entry.count
    if entry.scope is None:
        return Report.FLUSH if silent else Report.FUTURES
    return Report.COMMIT_AND_CALLBACK if silent and not entry.scope.abandoned else Report.COMMIT


class _Flight:
    """Entries that were sent together; `left` of them are outstanding."""

    __slots__ = ("deadline", "left", "ordinal")

    def __init__(self, ordinal: int, deadline: float, left: int) -> None:
        self.ordinal = ordinal
        self.deadline = deadline
        self.left = left


class InFlight:
    """Loop thread only. Waiters are futures of either kind (asyncio's or concurrent.futures')."""

    def __init__(
        self,
        batcher: Batcher,
        topic: str,
        *,
        send_timeout: float,
        pending_bytes_max: int,
        memory: ClientMemory | None = None,
        batching: Batching,
        on_error: Callable[[Exception], object] | None,
        on_failed: Callable[[Exception], object] = lambda error: None,
        on_expired: Callable[[], object] = lambda: None,
        asked: Callable[[], str] = lambda: "",
        slowed: Callable[[], Iterable[SealedEntry]] = lambda: (),
    ) -> None:
        self._batcher = batcher
        self._make_id = partial(MessageId, topic=topic)
        self._send_timeout = send_timeout
        self._batching = batching
        self._room_bytes = int(pending_bytes_max * ROOM_SHARE)
        self._memory = memory or ClientMemory(pending_bytes_max)
        self.window = Window()
        self._on_error = on_error
        self._on_failed = on_failed
        self._on_expired = on_expired
        self._asked = asked  # " by the broker", in texts
        self._slowed = slowed  # what waits for credit: its time does not run
        self._renewed: dict[SealedEntry, float] = {}  # deadlines of what has waited for credit
        self._loop = asyncio.get_running_loop()
        # In the order of the flights, whose ordinals and deadlines never fall.
        self._outstanding: dict[SealedEntry, _Flight] = {}
        # Of entries that were re-split: piece -> entry, entry -> the pieces that are still on their way.
        self._origins: dict[SealedEntry, SealedEntry] = {}
        self._pieces: dict[SealedEntry, dict[SealedEntry, None]] = {}
        self._ordinal = 0
        self.flights = 0  # of which something is outstanding
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._room: deque[asyncio.Future[None]] = deque()
        # (flight, sequence): when this flight and those before it have left, everything below the sequence is stored,
        # unless something has failed.
        self._stable: deque[tuple[int, int]] = deque()
        self._complete = True  # nothing has failed, except with its transaction
        self._sweep: asyncio.TimerHandle | None = None
        self._error: Exception | None = None  # of a message without a future; flush() raises it
        # Totals.
        self.entries_sent = 0
        self.entries_resent = 0
        self.messages_sent = 0
        self.bytes_sent = 0
        self.messages_acknowledged = 0
        self.messages_failed = 0
        self.messages_duplicate = 0

    def __len__(self) -> int:
        return len(self._outstanding)

    def __contains__(self, entry: SealedEntry) -> bool:
        return entry in self._outstanding or entry in self._origins

    def enter(self, entries: Sequence[SealedEntry]) -> None:
        """Add entries that are sent together, with the deadline that they share."""
        window = self.window
        deadline = self._loop.time() + self._send_timeout
        self._ordinal += 1
        self.flights += 1
        flight = _Flight(self._ordinal, deadline, len(entries))
        for entry in entries:
            self._outstanding[entry] = flight
            if entry.scope is not None:
                entry.scope.entry_entered(bool(entry.waiters))
            self.entries_sent += 1
            self.messages_sent += entry.count
            self.bytes_sent += entry.pending
            window.used += entry.pending
        if self._sweep is None and self._outstanding:
            self._sweep = self._loop.call_at(deadline, self._expire)

    def replace(self, entry: SealedEntry, pieces: Sequence[SealedEntry]) -> None:
        """Put the pieces of an entry in its place; its order and its deadline are theirs."""
        if entry.scope is not None:
            entry.scope.scattered()
        self.window.drop()
        origin = self._origins.pop(entry, entry)
        group = self._pieces.setdefault(origin, {})
        group.pop(entry, None)
        for piece in pieces:
            group[piece] = None
            self._origins[piece] = origin
        self.entries_resent += len(pieces)

    def renew(self, entries: Iterable[SealedEntry]) -> None:
        """These wait for credit no longer: from now on they have the whole time to be acknowledged."""
        deadline = self._loop.time() + self._send_timeout
        self._renewed.update((entry, deadline) for entry in entries if entry in self)

    def all_entered(self, upto: int) -> None:
        """Every message with a sequence below `upto` has entered: what is stable follows once these have left."""
        if not self._complete or not self._ordinal:
            return
        if not self._outstanding:
            self._stable.clear()
            self._batcher.floor = upto
        elif self._stable and self._stable[-1][0] == self._ordinal:
            self._stable[-1] = self._ordinal, upto
        else:
            self._stable.append((self._ordinal, upto))

    # -- leaving ---------------------------------------------------------------------------------------------

    def _take_out(self, entry: SealedEntry) -> bool:
        """False: it was out of time before, and its futures have ended."""
        if self._renewed:
            self._renewed.pop(entry, None)
        flight = self._outstanding.pop(entry, None)
        if flight is None:
            return self._piece_left(entry)
        flight.left -= 1
        self.flights -= not flight.left
        if entry.scope is not None:
            entry.scope.entry_left(bool(entry.waiters))
        return True

    def acknowledge(self, entries: Sequence[SealedEntry], offsets: Sequence[int], end: int = -1) -> None:
        """The broker has these durable at these first offsets (-1: a duplicate whose offset it no longer knows). `end`:
        of the segment when the producer came to it; what has a lower offset was there. -1: that is not known.
        """
        freed = messages = 0
        measured, ended = self.window.measured, False
        for entry, first_offset in zip(entries, offsets, strict=True):
            if not self._take_out(entry):
                continue
            freed += entry.pending
            if entry is measured:
                ended = True
            messages += entry.count
            if first_offset < end:
                self.messages_duplicate += entry.count
            if entry.waiters:
                self._resolve(entry, first_offset)
        self.messages_acknowledged += messages
        self.window.acknowledged += freed
        if ended:
            self.window.end(self._loop.time())
        self._left(freed, messages)

    def _resolve(self, entry: SealedEntry, first_offset: int) -> None:
        segment_id, make_id = entry.segment_id, self._make_id
        for future, index in entry.waiters or ():
            if not future.done():
                future.set_result(make_id(segment_id, first_offset + index if first_offset >= 0 else -1))

    def fail(self, entries: Iterable[SealedEntry], error: Exception) -> None:
        """These will not be acknowledged: fail their futures, and report the error for messages without one.

        An entry that a transaction was committed behind is stored, whatever became of its receipt.
        """
        stored, failed = self._partition(entries)
        if stored:
            self.acknowledge(stored, [-1] * len(stored))
        if not failed:
            return
        reports = {report_of(entry) for entry in failed}
        self.window.drop()
        for entry in failed:
            self._take_out(entry)
            self._reject(entry, error)
        messages = sum(entry.count for entry in failed)
        self.messages_failed += messages
        self._complete = self._complete and isinstance(error, TRANSACTION_OVER)
        if Report.FLUSH in reports:
            self._error = self._error or error
        calls_back = bool(reports & {Report.FLUSH, Report.COMMIT_AND_CALLBACK})
        self._left(sum(entry.pending for entry in failed), messages, error if calls_back else None)
        self._on_failed(error)

    def _partition(self, entries: Iterable[SealedEntry]) -> tuple[list[SealedEntry], list[SealedEntry]]:
        """Those that are stored after all, and those that have failed; what is out of time is in neither."""
        stored: list[SealedEntry] = []
        failed: list[SealedEntry] = []
        for entry in entries:
            if entry.scope is not None and entry.scope.stored:
                stored.append(entry)
            elif entry in self:
                failed.append(entry)
        return stored, failed

    def _reject(self, entry: SealedEntry, error: Exception) -> None:
        scope, cause = entry.scope, error
        if scope is not None:
            scope.fail(error)
            cause = scope.explained(error)
        for future, _ in entry.waiters or ():
            if not future.done():
                future.set_exception(cause)

    def _piece_left(self, piece: SealedEntry) -> bool:
        """Whether it was a piece in flight; with the last one the whole entry leaves."""
        origin = self._origins.pop(piece, None)
        if origin is None:
            return False
        group = self._pieces[origin]
        del group[piece]
        if not group:
            del self._pieces[origin]
            self._take_out(origin)
        return True

    def _left(self, freed: int, messages: int, failure: Exception | None = None) -> None:
        """Entries have left. `failure`: for on_error."""
        self.window.used = self.window.used - freed if self._outstanding else 0
        if messages:
            self._batcher.release(freed, messages)
            if self._memory.waiting:
                self._memory.room_came()
        self.room_came()
        if self._flushes:
            self._wake_flushes()
        if self._stable:
            self._raise_stable()
        if failure is not None and self._on_error is not None:
            try:
                self._on_error(failure)
            except Exception:  # the user's own; the rest must not suffer from it
                log.exception("on_error of a producer failed")

    def _expire(self) -> None:
        """One timer per producer: fail what is past its deadline, and set the timer to the next deadline.

        What a limit slows is not late: time does not run while an entry waits for credit.
        """
        now = self._loop.time()
        self._sweep = None
        late: list[SealedEntry] = []
        for entry, flight in self._outstanding.items():
            if flight.deadline > now:
                self._sweep = self._loop.call_at(flight.deadline, self._expire)
                break
            late += self._pieces.get(entry, (entry,))
        if late:
            late = self._out_of_time(late, now)
        if late:
            waited = f"not acknowledged{self._asked()} within {self._send_timeout:g} s"
            self.fail(late, TimeoutError(f"{waited}; the outcome is unknown"))
            self._on_expired()

    def _out_of_time(self, late: list[SealedEntry], now: float) -> list[SealedEntry]:
        """Those that neither wait for credit nor have a renewed deadline; the others are looked at again soon."""
        slowed = set(self._slowed())
        ended = [entry for entry in late if entry not in slowed and self._renewed.get(entry, 0.0) <= now]
        if len(ended) < len(late):
            if self._sweep is not None:
                self._sweep.cancel()
            self._sweep = self._loop.call_at(now + self._send_timeout / LATE_SWEEPS, self._expire)
        return ended

    def stop(self) -> None:
        """Cancel the timer; what waits for room is woken, to be refused."""
        self._memory.waiting.pop(self, None)
        self._wake_room()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    # -- waiting ---------------------------------------------------------------------------------------------

    def flushed(self, failure: Exception | None = None) -> asyncio.Future[None]:
        """A future that ends when everything in flight now has left (not what comes after).

        It ends with the first failure that was not reported yet, else with `failure` if there is one.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if self._outstanding:
            self._flushes.append((self._ordinal, future))
        else:
            self._end_flush(future, failure)
        return future

    def _end_flush(self, future: asyncio.Future[None], failure: Exception | None = None) -> None:
        if future.done():
            return
        failed, self._error = self._error or failure, None
        if failed is None:
            future.set_result(None)
        else:
            future.set_exception(failed)

    @property
    def _oldest(self) -> int:
        """The first flight of which something is outstanding."""
        return next(iter(self._outstanding.values())).ordinal if self._outstanding else self._ordinal + 1

    def _raise_stable(self) -> None:
        """Entries sealed from now on carry how far everything is stored; after a failure that is raised no more."""
        oldest = self._oldest
        while self._stable and self._stable[0][0] < oldest:
            upto = self._stable.popleft()[1]
            if self._complete:
                self._batcher.floor = upto

    def _wake_flushes(self) -> None:
        oldest = self._oldest
        while self._flushes and self._flushes[0][0] < oldest:
            self._end_flush(self._flushes.popleft()[1])

    @property
    def has_room(self) -> bool:
        """Whether the producer takes a burst of messages: a quarter of the limit is free, and of the client's, and
        what is in flight will be acknowledged soon (window.py).
        """
        return not self.window.is_full and self.has_memory

    @property
    def has_memory(self) -> bool:
        """Whether a quarter of the limit is free, and of the client's."""
        pending = self._batcher.pending_bytes
        memory = self._memory
        return pending <= self._room_bytes and (memory.has_room or (not pending and memory.has_little_room))

    async def wait_room(self) -> None:
        """Wait until there is room again; first come, first served."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._room.append(future)
        self._memory.waiting[self] = None
        await future

    def room_came(self) -> None:
        """See memory.Waiter."""
        if self._room and self.window.has_drained and self.has_memory:
            self._wake_room()
        elif self._room:
            self._memory.waiting[self] = None

    def _wake_room(self) -> None:
        waiting, self._room = self._room, deque()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def statistics(self) -> ProducerStatistics:
        """A frozen record of the totals."""
        return ProducerStatistics(
            messages_sent=self.messages_sent,
            messages_acknowledged=self.messages_acknowledged,
            messages_failed=self.messages_failed,
            messages_duplicate=self.messages_duplicate,
            entries_sent=self.entries_sent,
            entries_resent=self.entries_resent,
            bytes_sent=self.bytes_sent,
            pending_messages=self._batcher.pending_messages,
            pending_bytes=self._batcher.pending_bytes,
            buckets=bucket_statistics(self._batcher.counters, self._batching),
        )
