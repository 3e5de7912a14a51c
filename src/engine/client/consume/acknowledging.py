"""Acknowledgements over one attachment of a consumer: sent, confirmed, and sent again after a loss."""

from __future__ import annotations

import asyncio
import builtins
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from engine._native.consume.bucket_marks import BucketMarks
from engine._native.format.offsets import pack
from engine.client.net.connection import Connection, ignore_outcome
from engine.client.transact.scope import Scope
from engine.errors import ConnectError, EngineError, TimeoutError, TransactionConflictError
from engine.model.positions import bucket_position
from engine.wire import commands

if TYPE_CHECKING:
    from engine.client.consume.attachment import AttachmentOwner

Buckets = Sequence[tuple[int, int]]  # (bucket, the first offset of it that is not acknowledged)


class Acknowledging(ABC):
    """What of an attachment has to do with acknowledging. Loop thread only.

    `position`: where delivery began, the first unacknowledged offset. `expected`: the next offset to arrive.
    `confirmed`: the broker's durable cursor, as far as it has told (semantics 12: never more than that); `marks`: the
    same of single buckets, and which of them came, since the segment was attached; None where nobody needs it.
    `again_upto`: what arrives below it may have been delivered before the attachment was lost. `readings`: how often
    delivery has begun again at the cursor.
    """

    def __init__(self, owner: AttachmentOwner, segment_id: int, name: str, start: int) -> None:
        self.segment_id = segment_id
        self.name = name
        self.position = self.expected = start
        self.confirmed = -1
        self.marks: BucketMarks | None = None
        self.again_upto = 0
        self.readings = 0
        self.transactions: set[str] = set()  # those that are open, as far as known, in which this acknowledges
        # Bad entries that were passed by: by bucket (None: of the whole segment), {first offset: offset behind it}.
        self.skipped: dict[int | None, dict[int, int]] = {}
        self.closed = False
        self._owner = owner
        self._connection: Connection | None = None
        self._consumer_id = 0
        self._attached_again: asyncio.Event = asyncio.Event()
        # Acknowledgements that were lost with an attachment; nothing is asked for before they are through.
        self._owed = 0

    @property
    @abstractmethod
    def draining(self) -> bool:
        """Whether it delivers no more for now; acknowledgements still go through."""

    def confirmed_upto(self, bucket: int | None) -> int:
        """Below which offset everything is acknowledged, of one bucket or (None) of all, as far as the broker told."""
        if bucket is None or self.marks is None:
            return self.confirmed
        return max(self.confirmed, self.marks.acknowledged(bucket))

    def confirmed_places(self) -> dict[int, int]:
        """Of the segment, and of buckets of which more is known, below which offset everything is acknowledged."""
        places = {self.segment_id: self.confirmed}
        for bucket in range(0 if self.marks is None else len(self.marks)):
            if (upto := self.confirmed_upto(bucket)) > self.confirmed:
                places[bucket_position(self.segment_id, bucket)] = upto
        return places

    def past_skipped(self, bucket: int | None, position: int) -> int:
        """The position behind the bad entries that were passed by and begin at this one."""
        runs = self.skipped.get(bucket)
        while runs and position in runs:
            position = runs[position]
        return position

    def skipped_next(self) -> dict[int | None, int]:
        """By bucket, the position behind bad entries before which everything is acknowledged; forgets the others."""
        due = {}
        for bucket, runs in self.skipped.items():
            confirmed = self.confirmed_upto(bucket)
            self.skipped[bucket] = {first: stop for first, stop in runs.items() if stop > confirmed}
            if begun := [first for first in self.skipped[bucket] if first <= confirmed]:
                due[bucket] = self.past_skipped(bucket, min(begun))
        return due

    def awaits(self, bucket: int | None, position: int) -> bool:
        """Whether this attachment delivered something below `position` that is not acknowledged.

        A position of the other mode, or in a bucket of which nothing came, was left by an attachment before it.
        """
        if self.marks is None or not self.marks.keyed:
            return bucket is None and self.confirmed < position
        return bucket is not None and self.marks.arrived(bucket) and self.confirmed_upto(bucket) < position

    def start_ack(
        self,
        ack_type: str,
        *,
        position: int | None = None,
        ranges: Any = None,
        buckets: Buckets | None = None,
        scope: Scope | None = None,
    ) -> asyncio.Future[Any] | None:
        """Send an ACK; its future ends when the acknowledgement is durable. None while the connection is lost."""
        if self._connection is None:
            return None
        ack = commands.Ack(
            consumer_id=self._consumer_id,
            ack_type=ack_type,
            position=position,
            ranges=None if ranges is None else pack(ranges),
            buckets=None if buckets is None else [list(pair) for pair in buckets],
            transaction=None if scope is None else scope.id,
            attempt=None if scope is None else scope.attempt,
        )
        sent = self._connection.start_request(ack)
        sent.add_done_callback(ignore_outcome)  # whoever asked may have given up by then
        return sent

    async def acknowledged(
        self,
        sent: asyncio.Future[Any] | None,
        ack_type: str,
        *,
        position: int | None = None,
        ranges: Any = None,
        buckets: Buckets | None = None,
        scope: Scope | None = None,
    ) -> bool:
        """Wait for an ACK that start_ack() has sent; send it again after a loss. True when it is durable.

        In a transaction it is recorded by then, and nothing is acknowledged before note() says so.

        False when the attachment was given up first: it takes the acknowledgement with it, its messages are someone
        else's by now. Raises what the broker answers, TimeoutError.
        """
        timeout = self._owner.pool.options.operation_timeout
        again = {"position": position, "ranges": ranges, "buckets": buckets, "scope": scope}
        try:
            async with asyncio.timeout(timeout):
                durable = sent is not None and await self._confirmed(sent)
                if not durable and not await self._send_again(ack_type, again):
                    return False
        except builtins.TimeoutError as e:
            if isinstance(e, EngineError):
                raise
            raise TimeoutError(f"{self.name}: an acknowledgement was not confirmed within {timeout:g} s") from e
        if scope is None:
            self.note(position, ranges or (), buckets or ())
        return True

    def check_once(self, buckets: Buckets) -> None:
        """Raise TransactionConflictError where some of what is to be acknowledged may have been delivered twice."""
        if self._may_wait([[0, -1]], buckets):
            raise TransactionConflictError(
                f"{self.name}: the connection was lost, and some messages may have been delivered twice; abort the "
                "transaction, and they come once more"
            )

    def check_came(self, position: int, delivered: int) -> None:
        """Raise TransactionConflictError where the cursor was moved back, and less was delivered from there since.

        What was delivered before that covers messages that are due now, and that nobody has taken.
        """
        if self.readings and position > min(delivered, self.expected):
            raise self._moved_back()

    def _moved_back(self) -> TransactionConflictError:
        return TransactionConflictError(
            f"{self.name}: what is before these messages is due again; abort the transaction, and they come behind it"
        )

    def note(self, position: int | None, ranges: Any, buckets: Buckets) -> None:
        """So much is durable now, and acknowledged."""
        if position is not None:
            self.confirmed = max(self.confirmed, position)
            ranges = [[0, position - 1]]
        for bucket, upto in buckets:
            self._mark(bucket, upto)
        if self._may_wait(ranges, buckets):
            self._acknowledged_again(ranges)

    def _may_wait(self, ranges: Iterable[Any], buckets: Buckets) -> bool:
        """Whether some of what was acknowledged may wait here to be delivered again."""
        if bool(buckets) is not (self.marks is not None and self.marks.keyed):
            return True  # the id is of a time when the segment was read in the other way
        below = 0 if buckets else min((first for first, _ in ranges), default=self.again_upto)
        return self.position < self.again_upto and below < self.again_upto

    def _mark(self, bucket: int, upto: int) -> None:
        if self.marks is None:  # exclusive: ids of a time when the segment was shared are rare
            view = self._owner.session.layout.segments.get(self.segment_id)
            if view is None:
                return
            self.marks = BucketMarks(self.segment_id, view.bucket_ends, False)
        self.marks.acknowledge(bucket, upto)

    async def _send_again(self, ack_type: str, again: dict[str, Any]) -> bool:
        """Over the next attachment, before that one asks for messages: they would come again (C2, O2).

        False when there is none any more. Raises TransactionConflictError when that begins before what this would
        acknowledge in a transaction.
        """
        self._owed += 1
        readings = self.readings
        backoff = self._owner.pool.retry_delays()
        try:
            while not (self.closed or self.draining):
                await self._attached_again.wait()
                if again["scope"] is not None and self.readings != readings:
                    raise self._moved_back()
                sent = self.start_ack(ack_type, **again)
                if sent is not None and await self._confirmed(sent):
                    return True
                if self._attached_again.is_set():  # refused by who still serves it: not at once again
                    await asyncio.sleep(backoff.next())
            return False
        finally:
            self._owed -= 1
            if not self._owed and self._connection is not None:
                self._begin_delivery()

    @abstractmethod
    def _begin_delivery(self) -> None:
        """Attached, and nothing is owed to the segment: ask for messages."""

    @abstractmethod
    def _acknowledged_again(self, ranges: Any) -> None:
        """These, and what is below the marks, are acknowledged now, and may be queued from before."""

    async def _confirmed(self, sent: asyncio.Future[Any]) -> bool:
        """Whether it was confirmed; False when it was lost with its attachment."""
        connection = self._connection
        try:
            await sent
            return True
        except EngineError as e:
            if (
                isinstance(e, ConnectError)
                or e.layout_stale
                or connection is None
                or self._connection is not connection
            ):
                self._owner.pool.check_open()
                return False
            raise


async def all_acknowledged(waits: list[Coroutine[Any, Any, bool]]) -> list[bool]:
    """The outcome of each; without a task where there is but one."""
    if len(waits) == 1:
        return [await waits[0]]
    return await asyncio.gather(*waits)
