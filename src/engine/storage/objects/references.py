"""What a segment's record says of its objects: ranges of sessions' logs, and files of rolled entries. Pure.

A range is *open* while its session may append to it. Claims never change this part of the record (R1); these do:

    served()        the end of a takeover: all ranges are closed, and the new owner's is added (R2)
    handed_over()   the owner's own range is closed (R9)
    named()         a file takes the place of closed ranges, and of the beginning of the own one (R14)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from engine.errors import InvalidArgumentError


class Reference(msgspec.Struct, frozen=True, array_like=True):
    """Objects [start, end) of a session's log have groups of the segment, of one term; `end` None: it is open."""

    session: str
    start: int
    end: int | None
    term: int


class RolledFile(msgspec.Struct, frozen=True, array_like=True):
    """An uploaded log file with the offsets [first, end). `key`: its name in the object store."""

    first: int
    end: int
    size: int
    crc: int
    key: str


class Inherited(msgspec.Struct, frozen=True, array_like=True):
    """The producer snapshot of the parents, an object of its own. `term`: of the owner that wrote it."""

    term: int
    size: int
    crc: int
    key: str


class SegmentObjects(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of a segment, in order of offsets, and the references behind them, in the order of the owners."""

    wal: tuple[Reference, ...] = ()
    files: tuple[RolledFile, ...] = ()
    inherited: Inherited | None = None

    def __bool__(self) -> bool:
        """Whether there is anything: the segment was served, once."""
        return bool(self.wal or self.files)

    def open_sessions(self) -> list[str]:
        """R3: each has to be fenced, or closed by itself, before the segment may be served."""
        return list(dict.fromkeys(each.session for each in self.wal if each.end is None))

    def starts(self) -> dict[str, int]:
        """R15: for each session the first object that is needed of it."""
        found: dict[str, int] = {}
        for each in self.wal:
            found[each.session] = min(each.start, found.get(each.session, each.start))
        return found

    def closed(self, ends: Mapping[str, int]) -> SegmentObjects:
        """Open references end where their sessions do. A session that was fenced below its start has nothing."""
        missing = [session for session in self.open_sessions() if session not in ends]
        if missing:
            raise InvalidArgumentError(f"ends must have every open session, got none of {', '.join(missing)}")
        return self._replaced(
            msgspec.structs.replace(each, end=max(each.start, ends[each.session])) if each.end is None else each
            for each in self.wal
        )

    def served(self, session: str, next_n: int, term: int) -> SegmentObjects:
        """R2: the owner appends to its own session from `next_n` on. Everything else is closed before."""
        if self.open_sessions():
            raise InvalidArgumentError(f"every reference must be closed, got {self.wal!r}")
        return self._replaced((*self.wal, Reference(session, next_n, None, term)))

    def handed_over(self, session: str, end: int) -> SegmentObjects:
        """R9: the owner has appended nothing at or above `end`, and all below is stored."""
        return self.closed({each: end for each in self.open_sessions() if each == session})

    def named(self, file: RolledFile, session: str, upto: int) -> SegmentObjects:
        """R14: the file has all that lies before it in closed references, and in the own one below `upto`."""
        last = self.files[-1].end if self.files else 0
        if file.first != last or file.end <= file.first:
            raise InvalidArgumentError(f"a file must begin at offset {last} and have entries, got {file!r}")
        own = [each for each in self.wal if each.end is None]
        if [each.session for each in own] != [session]:
            raise InvalidArgumentError(f"the open reference must be that of {session!r}, got {self.wal!r}")
        if upto < own[0].start:
            raise InvalidArgumentError(f"upto must be at least {own[0].start}, got {upto}")
        wal = (msgspec.structs.replace(own[0], start=upto),)
        return msgspec.structs.replace(self, wal=wal, files=(*self.files, file))

    def _replaced(self, wal: Iterable[Reference]) -> SegmentObjects:
        return msgspec.structs.replace(self, wal=tuple(wal))
