"""What group commit needs of the segment whose appends it commits, and what it counts for the segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.errors import EngineError
from engine.storage.commit.groups import Group
from engine.storage.file.logfile import LogFile


class SegmentLog(Protocol):
    """What group commit needs of the segment whose appends it commits."""

    def plan_file(self, first_offset: int) -> LogFile:
        """A file to be created, with a new salt and the producers' state below the offset."""

    def snapshot(self, below: int) -> bytes:
        """The producers' state below an offset."""

    def file_created(self, file: LogFile) -> None:
        """The file is durable, and the active one from now on."""

    def group_durable(self, group: Group) -> None:
        """The group may be read."""

    def rolled_back(self, offset: int) -> None:
        """Nothing at or above the offset is in the log any more."""

    def gap_made(self, end: int, restart: int) -> None:
        """The log goes on at `restart` in a new file; messages between `end` and that were readable, and are lost."""

    def file_failed(self, error: EngineError) -> None:
        """What was durable is damaged; the segment cannot go on."""


@dataclass(slots=True)
class Counters:
    """Counted since the segment was opened."""

    commits: int = 0
    commit_bytes: int = 0
    syncs: int = 0
    rolls: int = 0
    write_failures: int = 0
    sync_failures: int = 0
