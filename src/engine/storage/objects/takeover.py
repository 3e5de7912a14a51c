"""A segment changes its owner: former owners are fenced (R3, R10), and what they acknowledged is read (R11).

    close()      before: a reference may be open     after: all have ends, which are the same for every successor
    recovered()  the groups of the closed references, in order of offsets

The caller claims before, and ends with one compare-and-set of the record (R1, R2).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from engine.errors import CorruptionError
from engine.storage.objects.format import StoredGroup
from engine.storage.objects.references import SegmentObjects
from engine.storage.objects.together import together
from engine.storage.objects.wal import Wal


class OwnWal(Wal, Protocol):
    """A log with a session of its own."""

    @property
    def session(self) -> str:
        """The own session's name."""

    async def drain(self) -> int:
        """Wait until all that was appended is acknowledged; the first n that was not. UnknownOutcomeError."""


async def close(wal: OwnWal, objects: SegmentObjects) -> SegmentObjects:
    """The references with their ends. Idempotent.

    R3: every session with an open reference is fenced, whichever broker owned the segment last. R10: the own session
    goes on; its range ends where all its objects are stored. Raises UnknownOutcomeError, FencedError: the own session
    is over, so that the caller has to do this with another one (R8); and what the stores raise.
    """
    sessions = objects.open_sessions()
    ends = await together(wal.drain() if each == wal.session else wal.fence(each) for each in sessions)
    return objects.closed(dict(zip(sessions, ends, strict=True)))


async def recovered(wal: Wal, objects: SegmentObjects, segment: str) -> AsyncIterator[tuple[StoredGroup, memoryview]]:
    """The groups behind the named files, in order, without gaps; of a file's last group, if it ends within, all of it.

    R11: from the references alone, each with groups of its own term. Raises HoleError (R12: read the record again),
    CorruptionError.
    """
    offset = objects.named_end
    for reference in objects.wal:
        if reference.end is None:
            raise CorruptionError(f"{segment}: a reference to session {reference.session} is open")
        async for group, data in wal.read(reference.session, reference.start, reference.end, segment):
            where = f"{segment}: object {group.n} of session {reference.session}"
            if group.term != reference.term:
                raise CorruptionError(f"{where} has a group of term {group.term}, not {reference.term}")
            if group.next_offset < offset or group.first_offset < group.next_offset == offset:
                continue  # in a file; what has no entry, as the header of a log file, belongs to the offset behind it
            if group.first_offset > offset:
                raise CorruptionError(f"{where} begins at offset {group.first_offset}, the log ends at {offset}")
            offset = group.next_offset
            yield group, data
