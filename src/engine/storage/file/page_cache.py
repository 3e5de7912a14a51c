"""`PageCache`: how much of the log files stays in the system's page cache, so that it does not grow without bound.

The system keeps every page that was written until it needs the memory: behind a log, that is all of the machine's. What
is in the cache costs other programs theirs, and each new page is one that was not used lately; on a virtual machine it
may have to come from the host first, which makes writing several times slower. So pages go again, oldest first:

    written   in the order of writing, over all segments     3/4 of the limit: readers of the tail find it in memory
    read      of what had gone, by readers that are behind   1/4: they have their own part, and take nothing of the tail

    position  0 ............ dropped ............ counted ...... the file's end
                  gone                in the cache          not counted yet: less than STEP

Only what a sync covers is dropped, as a clean page is nothing but a copy. With the modes that do not sync, the range is
written out first, and that is waited for on the worker: the memory is bounded there, too. It is done through a
descriptor of its own, since each descriptor is told of a failed write once: the log's own is left to its sync.

It is advice: nothing depends on whether the system takes it. All methods run on the loop, the system calls on a worker.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine.limits import KIB, LOG_INDEX_BYTES_STEP, MIB

if TYPE_CHECKING:
    from engine.aio.workers import Workers
    from engine.storage.disk.disk import Disk
    from engine.storage.file.logfile import LogFile

STEP = 64 * KIB  # what a file has to grow by before it is counted again
READ_PART = 4  # one of so many parts of the limit is for readers that are behind
SLACK_PART, SLACK_MAX = 16, 64 * MIB  # more than is needed goes at once, so that jobs are few
OVERLAP = 4 * MIB  # dropped once more: pages that were being written, or were one large piece with those behind them
NEVER = 2**62


class Window:
    """The pages of one file that were counted as written and have not been dropped."""

    __slots__ = ("counted", "dropped", "finished", "gone", "path", "writes")

    def __init__(self, path: str, position: int, writes: bool) -> None:
        self.path = path
        self.writes = writes  # nothing has synced them
        self.dropped = position
        self.counted = position
        self.finished = False  # nothing is written to it any more
        self.gone = False  # deleted, and its pages with it


class Span(NamedTuple):
    """What is to be dropped of a file. `end` 0: all from `start` on."""

    path: str
    start: int
    end: int
    writes: bool


def drop(disk: Disk, spans: Sequence[Span]) -> None:
    """Drop the pages. Blocks. A file that is gone, or that fails, is left."""
    for span in spans:
        with contextlib.suppress(OSError):
            file = disk.open(span.path)
            try:
                file.drop_cache(span.start, span.end, writes=span.writes)
            finally:
                file.close()


class PageCache:
    """Counts what is written and read, and drops the oldest above a limit. `bytes_max`: 0 leaves it to the system."""

    def __init__(self, disk: Disk, workers: Workers, bytes_max: int) -> None:
        self._disk = disk
        self._workers = workers
        self.limit = bytes_max
        self._read_max = bytes_max // READ_PART
        self._written_max = bytes_max - self._read_max
        self._written: deque[tuple[Window, int, int]] = deque()  # (file, counted up to, by so many bytes)
        self._read: deque[Span] = deque()
        self.written_bytes = 0
        self.read_bytes = 0
        self.dropped_bytes = 0  # counted since the start
        self._dropping = self._closed = False

    @property
    def size(self) -> int:
        """Bytes that are counted as in the cache."""
        return self.written_bytes + self.read_bytes

    def begin(self, file: LogFile, position: int, *, writes: bool) -> None:
        """Count the file from a position on. `writes`: no sync covers what is written."""
        if self.limit:
            file.window = Window(file.path, position, writes)
            file.count_at = position + STEP

    def written(self, file: LogFile) -> None:
        """The file is durable, as its mode calls it, to `end_position`, which has reached `count_at`."""
        window = file.window
        if window is None or window.gone:
            return
        size = file.end_position - window.counted
        if size > 0:
            window.counted = file.end_position
            self._written.append((window, window.counted, size))
            self.written_bytes += size
            self._drop_more()
        file.count_at = window.counted + STEP

    def finish(self, file: LogFile) -> None:
        """Nothing is written to the file any more: what it has grown by is counted, however little."""
        if file.window is not None:
            file.window.finished = True
            self.written(file)
        file.count_at = NEVER

    def forget(self, file: LogFile) -> None:
        """The file is deleted."""
        window, file.window, file.count_at = file.window, None, NEVER
        if window is not None and not window.gone:
            window.gone = True
            self.written_bytes -= window.counted - window.dropped

    def read(self, file: LogFile, position: int, size: int) -> None:
        """So much was read from the medium. What is counted as written is in the cache for others as well."""
        window = file.window
        if not self.limit or (window is not None and position >= window.dropped):
            return
        self._read.append(Span(file.path, position, position + size + LOG_INDEX_BYTES_STEP, False))
        self.read_bytes += size
        self._drop_more()

    def close(self) -> None:
        """Drop nothing any more. Idempotent."""
        self._closed = True

    # Dropping

    def _drop_more(self) -> None:
        """Drop what is above the limits, one job at a time."""
        if self._dropping or self._closed:
            return
        spans = self._oldest_written() + self._oldest_read()
        if not spans:
            return
        self._dropping = True
        self._workers.post(lambda: drop(self._disk, spans), self._dropped)

    def _dropped(self, _: object, error: BaseException | None) -> None:
        """Advice cannot fail in a way that matters."""
        self._dropping = False
        self._drop_more()

    def _oldest_written(self) -> list[Span]:
        starts: dict[Window, int] = {}
        if self.written_bytes > self._written_max:
            target = self._written_max - min(self._written_max // SLACK_PART, SLACK_MAX)
            while self.written_bytes > target:
                window, end, size = self._written.popleft()
                if not window.gone:
                    starts.setdefault(window, window.dropped)
                    window.dropped = end
                    self.written_bytes -= size
                    self.dropped_bytes += size
        return [
            Span(w.path, max(start - OVERLAP, 0), 0 if w.finished and w.dropped == w.counted else w.dropped, w.writes)
            for w, start in starts.items()
        ]

    def _oldest_read(self) -> list[Span]:
        spans: list[Span] = []
        if self.read_bytes > self._read_max:
            target = self._read_max - min(self._read_max // SLACK_PART, SLACK_MAX)
            while self.read_bytes > target:
                span = self._read.popleft()
                size = span.end - span.start - LOG_INDEX_BYTES_STEP
                self.read_bytes -= size
                self.dropped_bytes += size
                if spans and spans[-1].path == span.path and spans[-1].start <= span.start <= spans[-1].end:
                    span = span._replace(start=spans.pop().start)
                spans.append(span)
        return spans
