"""`Progress`: how far one segment was delivered to a consumer and acknowledged by it, over several attachments.

Without I/O: the attachment records what happened, and queries what follows from it.

What is acknowledged is only ever what the broker has said is durable (semantics 12). After an attachment is lost,
delivery begins again at the broker's cursor: what comes below `again_upto` may have been delivered before. An
acknowledgement that was confirmed meanwhile has to be taken out of what is queued a second time. When the cursor was
moved back on purpose (a seek, an aborted transaction), what comes is another *reading*: what was delivered in the one
before neither counts nor may be acknowledged in a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from engine._native.consume.bucket_marks import BucketMarks
from engine._native.consume.receiving import Reached
from engine.errors import TransactionConflictError
from engine.model.positions import bucket_position

Buckets = Sequence[tuple[int, int]]  # (bucket, the first offset of it that is not acknowledged)


class Progress(Reached):
    """Loop thread only.

    `position`: where delivery began, the first unacknowledged offset. `expected`: the next offset to arrive.
    `arrived`: behind everything that ever arrived. `confirmed`: the broker's durable cursor, as far as it has told.
    `marks`: the same of single buckets, and which of them arrived since the segment was attached; None where it is not
    needed. `again_upto`: what arrives below it may have been delivered before. `readings`: how often delivery has begun
    again at a cursor that was moved back.
    """

    def __init__(self, segment_id: int, name: str, start: int) -> None:
        self.segment_id = segment_id
        self.name = name
        self.position = self.expected = start
        self.confirmed = -1
        self.marks: BucketMarks | None = None
        self.again_upto = 0
        self.readings = 0
        # Bad entries that were skipped: by bucket (None: of the whole segment), {first offset: offset behind it}.
        self.skipped: dict[int | None, dict[int, int]] = {}

    # -- what happened ---------------------------------------------------------------------------------------

    def begin(self, position: int, expected: int, marks: BucketMarks | None) -> None:
        """Attached: delivery begins at the cursor; `expected` is behind the gaps there."""
        self.position = self.confirmed = position
        self.expected = expected
        self.marks = marks

    def lost(self) -> None:
        """The attachment has ended: what arrived so far may arrive again."""
        self.again_upto = self.arrived

    def moved_back(self) -> None:
        """The cursor was moved back: what arrives is another reading, of which nothing was delivered yet."""
        self.again_upto = 0
        self.readings += 1

    def note(self, position: int | None, ranges: Any, buckets: Buckets, ends: Sequence[int]) -> Any:
        """This is durable, and acknowledged. The ranges of it that may be queued a second time, None: none of it.

        `ends`: those of the segment's buckets, for the first bucket of a segment that is read exclusively.
        """
        if position is not None:
            self.confirmed = max(self.confirmed, position)
            ranges = [[0, position - 1]]
        for bucket, upto in buckets:
            if self.marks is None and ends:  # exclusive: ids from a time when the segment was shared are rare
                self.marks = BucketMarks(self.segment_id, ends, False)
            if self.marks is not None:
                self.marks.acknowledge(bucket, upto)
        return ranges if self._may_wait(ranges, buckets) else None

    # -- what follows ----------------------------------------------------------------------------------------

    def confirmed_upto(self, bucket: int | None) -> int:
        """The offset below which everything is acknowledged, of one bucket or (None) of all."""
        if bucket is None or self.marks is None:
            return self.confirmed
        return max(self.confirmed, self.marks.acknowledged(bucket))

    def confirmed_places(self) -> dict[int, int]:
        """{place: offset below which all is acknowledged} of the segment, and of buckets that are ahead of it."""
        places = {self.segment_id: self.confirmed}
        for bucket in range(0 if self.marks is None else len(self.marks)):
            if (upto := self.confirmed_upto(bucket)) > self.confirmed:
                places[bucket_position(self.segment_id, bucket)] = upto
        return places

    def past_skipped(self, bucket: int | None, position: int) -> int:
        """The position behind the skipped entries that begin at this one."""
        runs = self.skipped.get(bucket)
        while runs and position in runs:
            position = runs[position]
        return position

    def skipped_next(self) -> dict[int | None, int]:
        """By bucket, the position behind skipped entries before which all is acknowledged; drops what is done."""
        due = {}
        for bucket, runs in self.skipped.items():
            confirmed = self.confirmed_upto(bucket)
            self.skipped[bucket] = {first: stop for first, stop in runs.items() if stop > confirmed}
            if begun := [first for first in self.skipped[bucket] if first <= confirmed]:
                due[bucket] = self.past_skipped(bucket, min(begun))
        return due

    def awaits(self, bucket: int | None, position: int) -> bool:
        """Whether something below `position` was delivered since the segment was attached, and is not acknowledged.

        A position of the other mode, or in a bucket of which nothing arrived, is from an earlier attachment.
        """
        if self.marks is None or not self.marks.keyed:
            return bucket is None and self.confirmed < position
        return bucket is not None and self.marks.arrived(bucket) and self.confirmed_upto(bucket) < position

    def check_once(self, buckets: Buckets) -> None:
        """Raise TransactionConflictError where some of what is to be acknowledged may have been delivered twice."""
        if self._may_wait([[0, -1]], buckets):
            raise TransactionConflictError(
                f"{self.name}: the connection was lost, and some messages may have been delivered twice; abort the "
                "transaction to have them delivered once more"
            )

    def check_came(self, position: int, delivered: int) -> None:
        """Raise TransactionConflictError where the cursor was moved back, and less was delivered from there since.

        A position from before covers messages that are due again, and were not delivered again yet.
        """
        if self.readings and position > min(delivered, self.expected):
            raise self.conflict()

    def conflict(self) -> TransactionConflictError:
        """The error of an acknowledgement in a transaction that is from an earlier reading."""
        return TransactionConflictError(
            f"{self.name}: messages before these are due again; abort the transaction, and these come behind them"
        )

    def _may_wait(self, ranges: Iterable[Any], buckets: Buckets) -> bool:
        """Whether some of what was acknowledged may be queued a second time."""
        if bool(buckets) is not (self.marks is not None and self.marks.keyed):
            return True  # the id is from a time when the segment was read in the other way
        below = 0 if buckets else min((first for first, _ in ranges), default=self.again_upto)
        return self.position < self.again_upto and below < self.again_upto
