"""Where an opened log goes on: at its end, or above offsets that must not be assigned to other messages.

With the durabilities "interval" and "os" a power cut may take messages that were acknowledged, delivered, acknowledged
by a subscription or put into a checkpoint. Their offsets are still remembered elsewhere, so they are not used again:
the log goes on in a new file above all of them, and that file states where the log ended before. The run between is a
*gap*:

    0.log      offsets 0 … 57          what recovery found; 58, 59, … may have been assigned
    gap        58 … 16,777,215         never assigned again
    new file   16,777,216 …            states: the log ended at 58 before this file

Which offsets had been assigned is not recorded anywhere. But a file holds at most LOG_FILE_MESSAGES_MAX messages, and
is created only when everything before it is durable. So all that may be lost lies below that many offsets from the
last file's first one, which is where the new file begins.

The rule, by what is *known*: offsets that cursors, visibility records and others say were durable once (`Known`):

    the file was closed in order     it ends where it says; known offsets above its end mean damage
    durability "fsync" or "object"   likewise: nothing was acknowledged that is not in the file
    a relaxed durability             behind the limit above, and behind everything known
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from engine.errors import CorruptionError
from engine.limits import LOG_FILE_MESSAGES_MAX
from engine.storage.disk.config import FSYNC, OBJECT
from engine.storage.file.logfile import LogFile


class Known(NamedTuple):
    """Offsets below `offset` were durable once, according to a record outside of the log; `by` names it in errors."""

    offset: int
    by: str


NOTHING = Known(0, "nothing")


def continue_at(last: LogFile, known: Known, durability: str) -> int:
    """The offset at which the log goes on: the end of its last file, or the end of a gap behind it.

    `last`: as recovered. `durability`: of the segment now; it counts for files that do not state their own. Raises
    CorruptionError if the log ends below what was durable.
    """
    end = last.end_offset
    relaxed = (durability if last.origin is None else last.origin.durability) not in (FSYNC, OBJECT)
    if last.closing is None and relaxed:
        return max(end, known.offset, last.first_offset + LOG_FILE_MESSAGES_MAX)
    if known.offset <= end:
        return end
    if last.origin is None and relaxed and not last.sealed:
        return known.offset  # closed by a build that used offsets again
    raise CorruptionError(
        f"{last.path}, position {last.end_position}: segment {last.opening.segment_id} ends at offset {end}, and "
        f"{known.by} stands at {known.offset}: messages between that were durable are missing"
    )


class Gaps:
    """The runs [start, stop) of offsets inside a segment that name no message: rising, disjoint. Immutable.

    If nothing was appended between two crashes, the empty file between two gaps is passed over: they are one run.
    """

    __slots__ = ("runs",)

    def __init__(self, files: Iterable[LogFile] = (), next_file: tuple[int, int] = (0, 0)) -> None:
        """Of consecutive files; what lies before the first of them is retention's, and no gap.

        `next_file`: of a file to be created, where the log ended before it, and its first offset.
        """
        begins = [(f.previous_end, f.first_offset) for f in files][1:]
        if next_file not in begins:
            begins.append(next_file)
        self.runs = tuple(_joined((end, first) for end, first in sorted(begins) if end < first))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.runs)

    def skip(self, offset: int) -> int:
        """The offset itself, or the end of the gap that it lies in."""
        for start, stop in self.runs:
            if start <= offset < stop:
                return stop
        return offset

    def before(self, offset: int) -> int:
        """The offset itself, or the start of the gap that ends there: the end of the messages below it."""
        return next((start for start, stop in self.runs if stop == offset), offset)

    def count(self, start: int, stop: int) -> int:
        """The number of offsets of [start, stop) in gaps."""
        return sum(max(0, min(end, stop) - max(first, start)) for first, end in self.runs)

    def within(self, start: int, stop: int) -> BitMap64 | None:
        """The offsets of [start, stop) in gaps. None: there are none."""
        if not self.runs:
            return None
        found = BitMap64()
        for first, end in self.runs:
            if max(first, start) < min(end, stop):
                found.add_range(max(first, start), min(end, stop))
        return found or None


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Rising runs; those that touch become one."""
    joined: list[tuple[int, int]] = []
    for start, stop in runs:
        if joined and joined[-1][1] >= start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
