"""What storage measures: the duration of syncs, the size of commits, when the newest messages became durable."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.aio.histogram import COUNT, SIZE_BYTES, Histogram, HistogramStatistics

MARKS_MAX = 16  # newest commits of a segment whose time is known


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatistics:
    """All segments of a store since it was opened, except where stated otherwise."""

    sync_s: HistogramStatistics  # from posting a write with its sync to a thread until its outcome is on the loop
    commit_bytes: HistogramStatistics
    commit_appends: HistogramStatistics  # appends that became durable together
    cache_bytes: int  # now
    cache_limit: int  # now
    log_cache_bytes: int  # of log files that are counted as in the system's page cache, now; 0 without a bound
    log_cache_dropped_bytes: int
    open_files: int  # now
    segments: int  # open now
    trouble: tuple[float, str] | None  # the last failure of the disk: monotonic time, text; None: it has worked since
    torn_tails: int  # cut off when segments were opened
    torn_bytes: int  # in these tails
    gaps: int  # runs of offsets given up, because a power cut or a failed sync may have taken their messages


class StorageMetrics:
    """The measurements of one store, taken once per commit, not per message."""

    __slots__ = ("commit_appends", "commit_bytes", "gaps", "sync_s", "torn_bytes", "torn_tails", "trouble")

    def __init__(self) -> None:
        self.torn_tails = self.torn_bytes = self.gaps = 0
        self.trouble: tuple[float, str] | None = None
        self.sync_s = Histogram()
        self.commit_bytes = Histogram(SIZE_BYTES)
        self.commit_appends = Histogram(COUNT)


class Marks:
    """When the newest messages of a segment became durable, on the monotonic clock."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque(maxlen=MARKS_MAX)  # (first offset of a commit, time), rising

    def add(self, first_offset: int, now: float) -> None:
        """A commit that begins at the offset has just become durable."""
        self._marks.append((first_offset, now))

    def since(self, offset: int) -> float | None:
        """When the message at an offset became durable; None: before the commits that are remembered."""
        for first, at in reversed(self._marks):
            if first <= offset:
                return at
        return None
