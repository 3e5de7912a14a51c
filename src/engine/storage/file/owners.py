"""Owners of one segment that follow each other on a disk they share: who may write, and which files are the log.

Nobody can be sure that the owner before has stopped: a write of its may be on its way. So whoever takes over changes
nothing that is there; it goes on in a file of its own, whose name and header carry its term, and whose header names the
term of the file before. The log is the chain of files back from the one of the largest term; a file is read no further
than the next one begins, and what is not in the chain was written by somebody whose time was over.

Terms never begin anew: when a topic is deleted and another gets its name, the owners of its segments have terms above
all that there were. What a former owner leaves of a segment that is no more is known by its term, whenever it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.storage.file.format import Opening
from engine.storage.file.logfile import LogFile


class Lease(Protocol):
    """The right to write a segment, for a while."""

    @property
    def term(self) -> int:
        """Larger than that of every owner before, also of earlier segments of that name. Below 2**48."""

    @property
    def born(self) -> int:
        """The term of the segment's first owner: files of smaller terms are an earlier segment's. 0: it is not known.

        Files without a term count always: they are older than the sharing.
        """

    @property
    def held(self) -> bool:
        """Whether nobody else can have it yet. Once false, false for ever."""

    def check(self) -> None:
        """Raise NotOwnerError when it may be over."""


class Succession:
    """The terms in the headers of the files one owner makes. Files under no lease have the term of the last, or 0."""

    __slots__ = ("_base", "_planned", "term")

    def __init__(self, last: Opening, lease: Lease | None) -> None:
        self.term = last.term if lease is None else lease.term
        mine = last.term == self.term
        self._base = last.previous if mine else last.term
        # First offsets of the owner's own files, rising; the last ones may not be there yet.
        self._planned: list[int] = [last.first_offset] if mine else []

    @property
    def continues(self) -> bool:
        """Whether the last file is the owner's own, so that it may be written to."""
        return bool(self._planned)

    def plan(self, first_offset: int) -> tuple[int, int]:
        """The terms of a new file and of the one before it. A file planned at or above that offset is given up."""
        planned = self._planned
        while planned and planned[-1] >= first_offset:
            planned.pop()
        previous = self.term if planned else self._base
        planned.append(first_offset)
        return self.term, previous


def is_of(term: int, born: int) -> bool:
    """Whether what bears this term is of the segment whose first owner had the term `born`."""
    return term == 0 or term >= born


def chain(files: Sequence[LogFile]) -> tuple[list[LogFile], list[LogFile]]:
    """The files that are the log, in order, and the others. At least one file is right, all of one segment."""
    last = max(files, key=lambda f: (f.opening.term, f.first_offset))
    linked, strays = [last], []
    for file in sorted(files, key=lambda f: (f.first_offset, f.opening.term), reverse=True):
        if file is last:
            continue
        before_last = (file.first_offset, file.opening.term) < (last.first_offset, last.opening.term)
        if before_last and file.opening.term == linked[-1].opening.previous:
            linked.append(file)
        else:
            strays.append(file)
    return linked[::-1], strays
