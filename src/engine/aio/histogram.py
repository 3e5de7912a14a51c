"""Histograms of durations and sizes: counts by bucket, cheap enough to be updated for every frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine._native.serve.meters import Buckets

# Upper ends of buckets, inclusive.
LATENCY_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
WAIT_MS = (1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 25_000.0)
SIZE_BYTES = tuple(float(4**power) for power in range(4, 14))  # 256 bytes to 64 MiB
COUNT = tuple(float(2**power) for power in range(13))  # 1 to 4,096


@dataclass(frozen=True, slots=True)
class HistogramStatistics:
    """Values observed so far. `counts`: for each bound, the values at or below it. `count`: all values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    count: int
    total: float


class Histogram(Buckets):
    """Counts values by bucket. Loop thread only. observe() costs one bisection."""

    __slots__ = ()

    def __init__(self, bounds: Sequence[float] = LATENCY_S) -> None:
        """`bounds` rise. Values above the last bound are only in the total count."""
        super().__init__(bounds)

    def statistics(self) -> HistogramStatistics:
        sums = self.sums()
        return HistogramStatistics(self.bounds, sums[:-1], sums[-1], self.total)
