"""What storage measures: the duration of syncs, the size of commits."""

from __future__ import annotations

from dataclasses import dataclass

from engine.aio.histogram import COUNT, SIZE_BYTES, Histogram, HistogramStatistics


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
