"""Which log files are open: opened at their first use, closed when too many others have been used since."""

from __future__ import annotations

from engine.storage.disk.disk import Disk, File
from engine.storage.file.logfile import LogFile


class Handles:
    """Open files in the order of their last use. A pinned file stays open."""

    def __init__(self, disk: Disk, open_max: int) -> None:
        self.disk = disk
        self._open_max = open_max
        self._open: dict[LogFile, None] = {}
        self._retired: set[LogFile] = set()

    def __len__(self) -> int:
        return len(self._open)

    def pin(self, log: LogFile) -> File:
        """The open file, until unpin(). Raises OSError."""
        if log.handle is None:
            self.adopt(log, self.disk.open(log.path))
        else:
            self._open[log] = self._open.pop(log)
        log.pins += 1
        assert log.handle is not None
        return log.handle

    def adopt(self, log: LogFile, file: File) -> None:
        """Take over a file that is open already."""
        log.handle = file
        self._open[log] = None

    def unpin(self, log: LogFile) -> None:
        log.pins -= 1
        if log.pins == 0 and log in self._retired:
            self.retire(log)
        elif len(self._open) > self._open_max:
            self._close_some()

    def _close_some(self) -> None:
        for log in [log for log in self._open if log.pins == 0]:
            if len(self._open) <= self._open_max:
                return
            self.retire(log)

    def retire(self, log: LogFile) -> None:
        """Close one file, once it is not pinned: a running job may use its descriptor."""
        if log.pins:
            self._retired.add(log)
            return
        self._retired.discard(log)
        if log in self._open:
            del self._open[log]
            handle, log.handle = log.handle, None
            assert handle is not None
            handle.close()
