"""Where a log that was opened goes on: at its end, or above offsets that must not be given to other messages.

What was acknowledged in a relaxed mode may be lost in a power cut, and with it what was delivered, acknowledged by a
subscription or put into a checkpoint. The offsets of what was lost name messages that others remember, so they are
given up: the log goes on in a new file above all of them, and that file says where the log ended before (a *gap*).

Nothing says which offsets were given out before a power cut. But a file holds at most LOG_FILE_MESSAGES_MAX messages,
and a file is made only when all before it is durable: so all of them lie below that many from its first offset on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from engine.errors import CorruptionError
from engine.limits import LOG_FILE_MESSAGES_MAX
from engine.storage.disk.config import FSYNC
from engine.storage.file.logfile import LogFile


class Known(NamedTuple):
    """Offsets below `offset` were durable once, as something outside of the log knows; `by` names it in errors."""

    offset: int
    by: str


NOTHING = Known(0, "nothing")


def continue_at(last: LogFile, known: Known, durability: str) -> int:
    """The offset from which on the log goes on: the end of its last file, or the end of a gap behind it.

    `last`: as it was recovered. `durability`: of the segment now; asked for files that do not say under which they were
    written. Raises CorruptionError: the log ends below what was durable.
    """
    end = last.end_offset
    relaxed = (durability if last.origin is None else last.origin.durability) != FSYNC
    if last.closing is None and relaxed:
        return max(end, known.offset, last.first_offset + LOG_FILE_MESSAGES_MAX)
    if known.offset <= end:
        return end
    if last.origin is None and relaxed and not last.sealed:
        return known.offset  # closed by a build that gave offsets again
    raise CorruptionError(
        f"{last.path}, position {last.end_position}: segment {last.opening.segment_id} ends at offset {end}, and "
        f"{known.by} stands at {known.offset}: what was durable between is missing"
    )


class Gaps:
    """The runs [start, stop) of offsets inside a segment that name no message: rising, apart. Immutable.

    A file that nothing was appended to before the next crash lies between two that are one run.
    """

    __slots__ = ("_runs",)

    def __init__(self, files: Iterable[LogFile] = (), next_file: tuple[int, int] = (0, 0)) -> None:
        """As the files say that follow each other; what lies before the first of them does not count.

        `next_file`: where the log ended before a file that is to be made, and its first offset.
        """
        begins = [(f.previous_end, f.first_offset) for f in files][1:]
        if next_file not in begins:
            begins.append(next_file)
        self._runs = tuple(_joined((end, first) for end, first in sorted(begins) if end < first))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._runs)

    def skip(self, offset: int) -> int:
        """The offset itself, or the end of the gap that it lies in."""
        for start, stop in self._runs:
            if start <= offset < stop:
                return stop
        return offset

    def before(self, offset: int) -> int:
        """The offset itself, or the start of the gap that ends there: right behind the last message below it."""
        return next((start for start, stop in self._runs if stop == offset), offset)

    def count(self, start: int, stop: int) -> int:
        """How many offsets of [start, stop) lie in gaps."""
        return sum(max(0, min(end, stop) - max(first, start)) for first, end in self._runs)

    def within(self, start: int, stop: int) -> BitMap64 | None:
        """The offsets of [start, stop) that lie in gaps. None: there are none."""
        if not self._runs:
            return None
        found = BitMap64()
        for first, end in self._runs:
            if max(first, start) < min(end, stop):
                found.add_range(max(first, start), min(end, stop))
        return found or None


def _joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Rising runs, those that touch made one."""
    joined: list[tuple[int, int]] = []
    for start, stop in runs:
        if joined and joined[-1][1] >= start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined
