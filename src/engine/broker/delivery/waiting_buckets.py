"""Buckets of a shared segment whose owners wait: others acknowledged some of them in transactions that are open.

Were they given what is behind that, their positions would cover what they never got, and what is due after an abort.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine.broker.delivery.bucket_assignment import NOBODY

if TYPE_CHECKING:
    from engine._native.serve.dispatch import BucketLedger
    from engine.broker.delivery.pending_acks import PendingAcks
    from engine.broker.delivery.transactional_acks import BucketAcks


class WaitingBuckets:
    """Tells the ledger of a shared segment whose its buckets are: nobody's while the owner waits. Loop thread only.

    What is new in such a bucket stays due.
    """

    __slots__ = ("_held", "_ledger", "_owners", "_pending")

    def __init__(self, ledger: BucketLedger, pending: PendingAcks) -> None:
        self._ledger = ledger
        self._pending = pending
        self._owners: list[int] = []
        self._held: dict[int, BitMap64] = {}  # by bucket, what its owner waits for

    def assign(self, owners: list[int]) -> None:
        """Who is a bucket's owner from now on waits for whatever is held of it."""
        before = self._owners or [NOBODY] * len(owners)
        self._owners = owners
        self._wait(bucket for bucket, owner in enumerate(owners) if owner != before[bucket])

    def renew(self, number: int) -> None:
        """The sharer of that number is another one now."""
        self._wait(bucket for bucket, owner in enumerate(self._owners) if owner == number)

    def _wait(self, buckets: Iterable[int]) -> None:
        known, held = self._pending.buckets, self._pending.offsets  # of all, where the buckets are not known
        for bucket in buckets:
            self._add(bucket, held if known is None else known[bucket])
        self._tell()

    def acknowledged(self, number: int, acks: Iterable[BucketAcks]) -> None:
        """A sharer is about to hold these; some of the buckets are perhaps to go to others then, who wait for it."""
        for bucket, offsets in acks:
            if self._owners[bucket] != number:
                self._add(bucket, offsets)
        self._tell()

    def _add(self, bucket: int, held: BitMap64) -> None:
        if held:
            self._held[bucket] = self._held.get(bucket, BitMap64()) | held

    def look(self) -> None:
        """Something is not held any more: perhaps owners have waited for it."""
        if self._held:
            held = self._pending.offsets
            self._held = {bucket: left for bucket, offsets in self._held.items() if (left := offsets & held)}
            self._tell()

    def _tell(self) -> None:
        owners = [NOBODY if bucket in self._held else owner for bucket, owner in enumerate(self._owners)]
        self._ledger.assign(array("i", owners))
