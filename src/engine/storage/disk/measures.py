"""What storage measures of itself: how long syncs take, how much shares one, when the newest messages were durable."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.aio.histogram import COUNT, SIZE_BYTES, Histogram, HistogramStatistics

MARKS_MAX = 16  # newest commits of a segment whose time is known


@dataclass(frozen=True, slots=True)
class StorageStatistics:
    """Of all segments of a store since it was opened, except where it says otherwise."""

    sync_s: HistogramStatistics  # from handing a write and its sync to a thread until the loop hears of it
    commit_bytes: HistogramStatistics
    commit_appends: HistogramStatistics  # appends that became durable together
    cache_bytes: int  # now
    cache_limit: int  # now
    open_files: int  # now
    segments: int  # open now
    trouble: tuple[float, str] | None  # when the disk failed last, monotonic, and how; None: it has worked since
    torn_tails: int  # cut off when segments were opened
    torn_bytes: int  # in them
    gaps: int  # made when segments were opened: offsets given up behind what a power cut may have taken


class Measures:
    """One for all segments of a store. Loop thread only. Once per commit, not per message."""

    __slots__ = ("commit_appends", "commit_bytes", "gaps", "sync_s", "torn_bytes", "torn_tails", "trouble")

    def __init__(self) -> None:
        self.torn_tails = self.torn_bytes = self.gaps = 0
        self.trouble: tuple[float, str] | None = None
        self.sync_s = Histogram()
        self.commit_bytes = Histogram(SIZE_BYTES)
        self.commit_appends = Histogram(COUNT)


class Marks:
    """Since when the newest messages of a segment are durable, on the monotonic clock. Loop thread only."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque(maxlen=MARKS_MAX)  # (first offset of a commit, time), rising

    def add(self, first_offset: int, now: float) -> None:
        """What begins at the offset has just become durable."""
        self._marks.append((first_offset, now))

    def since(self, offset: int) -> float | None:
        """When a durable message became so; None for what is older than these commits."""
        for first, at in reversed(self._marks):
            if first <= offset:
                return at
        return None
