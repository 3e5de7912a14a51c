"""The groups of appends of one segment, from the first append in each to its end. No input or output, no loop.

What repeats with each append and each commit is the native base (`_native/serve/groups.pyx`).

Appends that arrive together share a `Group`: it is written by one call and becomes durable, or fails, as a whole.
`Groups` knows where each of them is:

    append ──► open ──► queued ──┬── primary job: writes it and syncs ───────────┐
                                 │                                               ├──► durable
                                 └── ahead job: writes it ──► written ──► covered┘
                                                                    by the sync of a primary job

open      takes the next append, while it has room and the file has room
queued    complete, in order; the first of them is written next
ahead     being written while the primary job runs, so that the disk is never without work
written   in the file, not covered by a sync yet
covered   durable when the running primary job succeeds: what was written before, and the group that the job writes
handed    with a backing: written here, and not known to be stored there

Offsets and file positions are assigned when an append enters a group, long before it is written. So a failure of one
group fails all behind it, and the next append gets the offset of the first that failed: `cut()`.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine._native.serve.groups import Group, GroupQueue
from engine.errors import EngineError
from engine.limits import LOG_FILE_MESSAGES_MAX, MIB
from engine.storage.file.logfile import LogFile

GROUP_MAX = 8 * MIB  # a group of this size takes no more appends


class Groups(GroupQueue):
    """Where each group of a segment is, and where the next append goes."""

    __slots__ = ()

    def __init__(self, file: LogFile | None, next_offset: int, file_size_max: int) -> None:
        """`file`: takes the next append, at its end. None: the next append needs a new file, see go_on_in()."""
        super().__init__(file_size_max, LOG_FILE_MESSAGES_MAX, GROUP_MAX)
        # The place of the next append. The file may be one that is still to be created.
        self.file = file
        self.next_offset = next_offset
        self.position = 0 if file is None else file.end_position

    # The way through the jobs; the rest is native

    def give_back(self, groups: list[Group]) -> None:
        """These are in the file, and the sync that was to cover them was not tried."""
        self.written = groups + self.written

    # What there is

    @property
    def newest(self) -> Group | None:
        """The group that becomes durable last. None: everything that was appended is durable, or has failed."""
        if self.open is not None:
            return self.open
        if self.queued:
            return self.queued[-1]
        if self.ahead is not None:
            return self.ahead
        if self.written:
            return self.written[-1]
        if self.covered:
            return self.covered[-1]
        return self.handed[-1] if self.handed else None

    # Failure

    def cut(self, offset: int, lost: Iterable[Group]) -> list[Group]:
        """Nothing at or above `offset` was appended after all: the next append gets it. No job runs.

        Returns the groups that fail by this, `lost` among them, in order.
        """
        waiting = [*self.written, *self.queued, *([self.open] if self.open is not None else [])]
        failed = {*lost, *(group for group in waiting if group.first_offset >= offset)}
        self.written = [group for group in self.written if group.first_offset < offset]
        self.queued.clear()
        self.open = None
        self.next_offset = offset
        return sorted(failed, key=lambda group: group.first_offset)

    def drop_unwritten(self) -> list[Group]:
        """Write no more of what waits. Jobs that run keep their groups."""
        dropped = [*self.queued, *([self.open] if self.open is not None else [])]
        self.queued.clear()
        self.open = None
        return dropped


def fail_all(groups: Iterable[Group], error: EngineError) -> None:
    for group in groups:
        group.fail(error)
