"""What one producer has in flight: which futures wait for it, until when, and how much room it takes.

An entry enters when it is sealed and leaves exactly once: acknowledged, failed, or out of time. One that was re-split
keeps its place until the last of its pieces has left.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from engine._native.produce.batcher import Batcher
from engine._native.produce.outstanding import Outstanding
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


class InFlight(Outstanding):
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
        super().__init__(
            batcher,
            memory or ClientMemory(pending_bytes_max),
            Window(),
            asyncio.get_running_loop(),
            send_timeout,
            partial(MessageId, topic=topic),
        )
        self._batching = batching
        self._room_bytes = int(pending_bytes_max * ROOM_SHARE)
        self._on_error = on_error
        self._on_failed = on_failed
        self._on_expired = on_expired
        self._asked = asked  # " by the broker", in texts
        self._slowed = slowed  # what waits for credit: its time does not run
        self._error: Exception | None = None  # of a message without a future; flush() raises it

    def replace(self, entry: SealedEntry, pieces: Sequence[SealedEntry]) -> None:
        """Put the pieces of an entry in its place; its order and its deadline are theirs."""
        if entry.scope is not None:
            entry.scope.scattered()
        self.window.drop()
        origin = self.origins.pop(entry, entry)
        group = self.pieces.setdefault(origin, {})
        group.pop(entry, None)
        for piece in pieces:
            group[piece] = None
            self.origins[piece] = origin
        self.entries_resent += len(pieces)

    def renew(self, entries: Iterable[SealedEntry]) -> None:
        """These wait for credit no longer: from now on they have the whole time to be acknowledged."""
        deadline = self.loop.time() + self.send_timeout
        self.renewed.update((entry, deadline) for entry in entries if entry in self)

    # -- leaving ---------------------------------------------------------------------------------------------

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
            self.take_out(entry)
            self._reject(entry, error)
        messages = sum(entry.count for entry in failed)
        self.messages_failed += messages
        self.complete = self.complete and isinstance(error, TRANSACTION_OVER)
        if Report.FLUSH in reports:
            self._error = self._error or error
        calls_back = bool(reports & {Report.FLUSH, Report.COMMIT_AND_CALLBACK})
        self.left(sum(entry.pending for entry in failed), messages)
        if calls_back and self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:  # the user's own; the rest must not suffer from it
                log.exception("on_error of a producer failed")
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

    def expire(self) -> None:
        """One timer per producer: fail what is past its deadline, and set the timer to the next deadline.

        What a limit slows is not late: time does not run while an entry waits for credit.
        """
        now = self.loop.time()
        self.sweep = None
        late: list[SealedEntry] = []
        for entry, flight in self.outstanding.items():
            if flight.deadline > now:
                self.sweep = self.loop.call_at(flight.deadline, self.expire)
                break
            late += self.pieces.get(entry, (entry,))
        if late:
            late = self._out_of_time(late, now)
        if late:
            waited = f"not acknowledged{self._asked()} within {self.send_timeout:g} s"
            self.fail(late, TimeoutError(f"{waited}; the outcome is unknown"))
            self._on_expired()

    def _out_of_time(self, late: list[SealedEntry], now: float) -> list[SealedEntry]:
        """Those that neither wait for credit nor have a renewed deadline; the others are looked at again soon."""
        slowed = set(self._slowed())
        ended = [entry for entry in late if entry not in slowed and self.renewed.get(entry, 0.0) <= now]
        if len(ended) < len(late):
            if self.sweep is not None:
                self.sweep.cancel()
            self.sweep = self.loop.call_at(now + self.send_timeout / LATE_SWEEPS, self.expire)
        return ended

    def stop(self) -> None:
        """Cancel the timer; what waits for room is woken, to be refused."""
        self.memory.waiting.pop(self, None)
        self._wake_room()
        if self.sweep is not None:
            self.sweep.cancel()
            self.sweep = None

    # -- waiting ---------------------------------------------------------------------------------------------

    def flushed(self, failure: Exception | None = None) -> asyncio.Future[None]:
        """A future that ends when everything in flight now has left (not what comes after).

        It ends with the first failure that was not reported yet, else with `failure` if there is one.
        """
        future: asyncio.Future[None] = self.loop.create_future()
        if self.outstanding:
            self.flushes.append((self.ordinal, future))
        else:
            self.end_flush(future, failure)
        return future

    def end_flush(self, future: asyncio.Future[None], failure: Exception | None = None) -> None:
        if future.done():
            return
        failed, self._error = self._error or failure, None
        if failed is None:
            future.set_result(None)
        else:
            future.set_exception(failed)

    @property
    def has_room(self) -> bool:
        """Whether the producer takes a burst of messages: a quarter of the limit is free, and of the client's, and
        what is in flight will be acknowledged soon (window.py).
        """
        return not self.window.is_full and self.has_memory

    @property
    def has_memory(self) -> bool:
        """Whether a quarter of the limit is free, and of the client's."""
        pending = self.batcher.pending_bytes
        memory = self.memory
        return pending <= self._room_bytes and (memory.has_room or (not pending and memory.has_little_room))

    async def wait_room(self) -> None:
        """Wait until there is room again; first come, first served."""
        future: asyncio.Future[None] = self.loop.create_future()
        self.room.append(future)
        self.memory.waiting[self] = None
        await future

    def room_came(self) -> None:
        """See memory.Waiter."""
        if self.room and self.window.has_drained and self.has_memory:
            self._wake_room()
        elif self.room:
            self.memory.waiting[self] = None

    def _wake_room(self) -> None:
        waiting = list(self.room)
        self.room.clear()
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
            pending_messages=self.batcher.pending_messages,
            pending_bytes=self.batcher.pending_bytes,
            buckets=bucket_statistics(self.batcher.counters, self._batching),
        )
