"""Buckets of a shared segment whose owners wait for open transactions.

Another consumer has acknowledged messages of the bucket in a transaction that is open. If the owner were sent later
messages, its positions would cover messages that it never got, and that are due again if the transaction is aborted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine.broker.delivery.bucket_assignment import UNASSIGNED

if TYPE_CHECKING:
    from engine._native.serve.dispatch import BucketLedger
    from engine.broker.delivery.pending_acks import PendingAcks
    from engine.broker.delivery.transactional_acks import BucketAcks


class WaitingBuckets:
    """Assigns buckets to owners in the ledger, and to none while the owner waits. Loop thread only.

    New messages of such a bucket stay due.
    """

    __slots__ = ("_held", "_ledger", "_owners", "_pending")

    def __init__(self, ledger: BucketLedger, pending: PendingAcks) -> None:
        self._ledger = ledger
        self._pending = pending
        self._owners: list[int] = []
        self._held: dict[int, BitMap64] = {}  # by bucket, what its owner waits for

    def assign(self, owners: list[int]) -> None:
        """Set the owners. A new owner waits for all messages of its bucket that are held."""
        before = self._owners or [UNASSIGNED] * len(owners)
        self._owners = owners
        self._wait(bucket for bucket, owner in enumerate(owners) if owner != before[bucket])

    def renew(self, number: int) -> None:
        """The number belongs to another consumer now, which waits like a new owner."""
        self._wait(bucket for bucket, owner in enumerate(self._owners) if owner == number)

    def _wait(self, buckets: Iterable[int]) -> None:
        known, held = self._pending.buckets, self._pending.offsets  # of all buckets, where they are not known
        for bucket in buckets:
            self._add(bucket, held if known is None else known[bucket])
        self._assign()

    def acknowledged(self, number: int, acks: Iterable[BucketAcks]) -> None:
        """A transaction of a consumer is about to hold messages. Other owners of their buckets wait for it."""
        for bucket, offsets in acks:
            if self._owners[bucket] != number:
                self._add(bucket, offsets)
        self._assign()

    def _add(self, bucket: int, held: BitMap64) -> None:
        if held:
            self._held[bucket] = self._held.get(bucket, BitMap64()) | held

    def recheck(self) -> None:
        """A transaction has ended: check which owners still wait."""
        if self._held:
            held = self._pending.offsets
            self._held = {bucket: left for bucket, offsets in self._held.items() if (left := offsets & held)}
            self._assign()

    def _assign(self) -> None:
        owners = [UNASSIGNED if bucket in self._held else owner for bucket, owner in enumerate(self._owners)]
        self._ledger.assign(array("i", owners))
