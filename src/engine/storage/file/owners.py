"""Fencing: the brokers that own a segment one after another on a shared disk, and which files are the log.

A new owner cannot know that the previous one has stopped: a write of it may still be under way, and a disk cannot
refuse it. So a new owner changes nothing that is there. It goes on in a file of its own, whose name and header carry
its *term*, and whose header names the term of the previous file. The log is the chain back from the file of the largest
term, and each file is read no further than the next one's start:

    0-3.log      0 ────────── 40 ── 45        term 3; entries 40 to 44 came after the takeover: not in the log
    40-5.log                  40 ─────── 60   term 5, previous 3
    41-3.log                  41 ──           term 3, rolled by the old owner after the takeover: a stray, removed
    60-5.log                             60 … term 5, previous 5

What happens in which order:

1. The new owner gets a lease with a larger term (outside of storage), and opens the segment. Recovery finds the chain
   and the end of the last file, and cuts or closes nothing: the old owner may still write there.
2. It creates its first file at that end. From then on the old file ends there, whatever is still written to it.
3. Entries that the old owner appends later are outside of the chain. It cannot have confirmed them: it checks its own
   lease after each sync and before it confirms anything, and leases do not overlap.

So at most one owner confirms at any time, and what was confirmed is below the end that the next owner found.

Terms never start again: when a topic is deleted and another one gets its name, the owners of the new segments have
larger terms than all before. A file that a former owner leaves behind late is recognised by its term (`Lease.born`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.storage.file.format import Opening
from engine.storage.file.logfile import LogFile


class Lease(Protocol):
    """The right of one broker to write a segment, for a limited time."""

    @property
    def term(self) -> int:
        """Larger than of every previous owner, also of earlier segments of that name. Below 2**48."""

    @property
    def born(self) -> int:
        """The term of the segment's first owner: files of smaller terms are an earlier segment's. 0: unknown.

        Files without a term always belong to the segment: they were written before the disk was shared.
        """

    @property
    def held(self) -> bool:
        """Whether no other broker can hold it yet. Once false, it stays false."""

    def check(self) -> None:
        """Raise NotOwnerError if it may be over."""


class FileTerms:
    """The terms in the headers of the files that one owner creates. Without a lease: the last file's term, or 0."""

    __slots__ = ("_base", "_planned", "term")

    def __init__(self, last: Opening, lease: Lease | None) -> None:
        self.term = last.term if lease is None else lease.term
        mine = last.term == self.term
        self._base = last.previous if mine else last.term
        # First offsets of the owner's own files, rising; the last ones may not be created yet.
        self._planned: list[int] = [last.first_offset] if mine else []

    @property
    def continues(self) -> bool:
        """Whether the last file is the owner's own: then it may be written."""
        return bool(self._planned)

    def plan(self, first_offset: int) -> tuple[int, int]:
        """The terms of a new file and of its previous one. Files planned at or above that offset are given up."""
        planned = self._planned
        while planned and planned[-1] >= first_offset:
            planned.pop()
        previous = self.term if planned else self._base
        planned.append(first_offset)
        return self.term, previous


def is_of(term: int, born: int) -> bool:
    """Whether a file of this term belongs to the segment whose first owner had the term `born`."""
    return term == 0 or term >= born


def chain(files: Sequence[LogFile]) -> tuple[list[LogFile], list[LogFile]]:
    """(the files that are the log, in order; the strays). `files`: at least one, all of one segment."""
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
