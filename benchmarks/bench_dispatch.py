"""What dispatch pays for each entry of a shared segment: finding its bucket's owner, and noting that it has it."""

from __future__ import annotations

import time
from array import array

from entry_samples import TINY, entry_of, stamped_at

from engine._native.serve.dispatch import BucketLedger

REPEATS = 1 if TINY else 9
MUCH = 1 << 60


class Route:
    """Nanoseconds an entry, for a block of small entries spread over the ring."""

    params = ([4, 1024], ["one owner", "two owners", "an owner a bucket"])
    param_names = ("buckets", "owners")
    unit = "ns/entry"

    def setup(self, buckets: int, owners: str) -> None:
        """A block, and the owner of each bucket."""
        width = 0x10000 // buckets
        self.ends = array("H", [width * (i + 1) - 1 for i in range(buckets)])
        self.sharers = {"one owner": 1, "two owners": 2, "an owner a bucket": buckets}[owners]
        self.owners = array("i", [i % self.sharers for i in range(buckets)])
        self.entries = 10 if TINY else 2000
        samples = [stamped_at(entry_of(2, 100, bucket=i * 9973 % 0x10000), 2 * i) for i in range(self.entries)]
        self.block = b"".join(samples)

    def _ledger(self) -> BucketLedger:
        ledger = BucketLedger(self.ends, 0)
        ledger.assign(self.owners)
        return ledger

    def track_route(self, buckets: int, owners: str) -> float:
        """Routed to sharers that all have credit, in pieces that are copied together."""
        return self._best(MUCH)

    def track_left_behind(self, buckets: int, owners: str) -> float:
        """Dispatch without credit: the whole block becomes due."""
        return self._best(0)

    def _best(self, credit: int) -> float:
        best = float("inf")
        for _ in range(REPEATS):
            ledger, room = self._ledger(), array("q", [credit]) * self.sharers
            start = time.perf_counter()
            ledger.route(self.block, room, room)
            best = min(best, time.perf_counter() - start)
        return best / self.entries * 1e9

    def track_acknowledge(self, buckets: int, owners: str) -> float:
        """Everything acknowledged by one position for all buckets, by each sharer."""
        best = float("inf")
        positions = [(bucket, 2 * self.entries) for bucket in range(buckets)]
        for _ in range(REPEATS):
            ledger, room = self._ledger(), array("q", [MUCH]) * self.sharers
            ledger.route(self.block, room, room)
            each = [[p for p in positions if self.owners[p[0]] == sharer] for sharer in range(self.sharers)]
            start = time.perf_counter()
            for sharer in range(self.sharers):
                ledger.acknowledge(sharer, each[sharer])
            best = min(best, time.perf_counter() - start)
            assert ledger.runs == 0
        return best / self.entries * 1e9
