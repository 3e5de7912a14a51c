"""What dispatch pays for each entry: routing a block to the owners of its buckets."""

from __future__ import annotations

import time
from array import array

from entry_samples import TINY, block_of, entry_of

from engine._native.dispatch import route

REPEATS = 1 if TINY else 9


class Route:
    """Nanoseconds an entry, for a block of small entries spread over the ring."""

    params = ([4, 1024], ["one owner", "two owners", "an owner a bucket"])
    param_names = ("buckets", "owners")
    unit = "ns/entry"

    def setup(self, buckets: int, owners: str) -> None:
        width = 0x10000 // buckets
        self.ends = array("H", [width * (i + 1) - 1 for i in range(buckets)])
        shares = {"one owner": 1, "two owners": 2, "an owner a bucket": buckets}[owners]
        self.owners = array("i", [i % shares for i in range(buckets)])
        samples = [block_of(entry_of(2, 100, bucket=i * 9973 % 0x10000), 1, 2) for i in range(10 if TINY else 2000)]
        self.block, self.entries = b"".join(samples), len(samples)

    def track_route(self, buckets: int, owners: str) -> float:
        best = float("inf")
        for _ in range(REPEATS):
            start = time.perf_counter()
            route(self.block, self.ends, self.owners)
            best = min(best, time.perf_counter() - start)
        return best / self.entries * 1e9
