"""What a segment's record says of its objects: ranges of sessions' logs, and files of rolled entries. Pure.

A range is *open* while its session may append to it. Claims never change this part of the record (R1); these do:

    served()        the end of a takeover: all ranges are closed, and the new owner's is added (R2)
    handed_over()   the owner's own range is closed (R9)
    named()         a file takes the place of the ranges that it covers, and of the beginning of the own one (R14)
    moved()         of a silent segment, whose files hold all: the own range begins later, and the others go (R19)
    kept()          retention has deleted what lies below an offset
    folded()        the older files go to an index object, so that the record stays small
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
    """An uploaded log file with the offsets [first, end). `key`: the name of its object, where it begins at `at`.

    `size`: bytes. `crc`: CRC32C of all of them. `last_ms`: the publish time of its last entry. `at` is 0 but in an
    object that segments share.
    """

    first: int
    end: int
    size: int
    crc: int
    key: str
    last_ms: int = 0
    at: int = 0


class OlderFiles(msgspec.Struct, frozen=True, array_like=True):
    """The files before those of the record: they are listed in an index object of the name `key`.

    Those that end at or below `first` are not there any more. `end`: of the last one. `count`, `size`: of those that
    are there.
    """

    key: str
    first: int
    end: int
    count: int
    size: int


class Inherited(msgspec.Struct, frozen=True, array_like=True):
    """The producer snapshot of the parents, an object of its own. `term`: of the owner that wrote it."""

    term: int
    size: int
    crc: int
    key: str


class SegmentObjects(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of a segment, in order of offsets, and the references behind them, in the order of the owners.

    `floor`: what lies below was deleted.
    """

    wal: tuple[Reference, ...] = ()
    files: tuple[RolledFile, ...] = ()
    older: OlderFiles | None = None
    floor: int = 0
    inherited: Inherited | None = None

    def __bool__(self) -> bool:
        """Whether there is anything: the segment was served, once."""
        return bool(self.wal or self.files or self.older or self.floor)

    @property
    def named_end(self) -> int:
        """The end of the last named file."""
        if self.files:
            return self.files[-1].end
        return self.floor if self.older is None else self.older.end

    @property
    def first(self) -> int:
        """The first offset of the named files."""
        if self.older is not None:
            return self.older.first
        return self.files[0].first if self.files else self.floor

    @property
    def file_count(self) -> int:
        """Of all named files."""
        return len(self.files) + (self.older.count if self.older else 0)

    @property
    def file_bytes(self) -> int:
        """Of all named files."""
        return sum(file.size for file in self.files) + (self.older.size if self.older else 0)

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

    def named(self, file: RolledFile, session: str, follows: int | None, upto: int | None = None) -> SegmentObjects:
        """R14: the file is the next one of the log.

        `follows`: the term of the log file behind it; references of smaller terms are covered, and go. None: nothing
        follows, and nothing ever will under this owner, so that the own reference goes as well. `upto`: the own
        session's object in which the log file behind it begins; None: it is not one of the own session.
        """
        if file.first != self.named_end or file.end < file.first or (follows is not None and file.end == file.first):
            raise InvalidArgumentError(f"a file must begin at offset {self.named_end} and have entries, got {file!r}")
        own = [each for each in self.wal if each.end is None]
        if [each.session for each in own] != [session]:
            raise InvalidArgumentError(f"the open reference must be that of {session!r}, got {self.wal!r}")
        start = own[0].start if upto is None else upto
        if start < own[0].start or (upto is not None and follows != own[0].term):
            raise InvalidArgumentError(f"upto must be at least {own[0].start} of term {own[0].term}, got {upto}")
        wal: list[Reference] = []
        if follows is not None:
            wal = [each for each in self.wal if each.end is not None and each.term >= follows]
            wal.append(msgspec.structs.replace(own[0], start=start))
        return msgspec.structs.replace(self, wal=tuple(wal), files=(*self.files, file))

    def moved(self, end: int, session: str, start: int) -> SegmentObjects:
        """R19: the header of the last file, which begins at offset `end`, is in the own session's log once more, from
        object `start` on; files hold all before. Nothing changes where the segment has no log any more.
        """
        if self.named_end < end:
            raise InvalidArgumentError(f"files must hold all below offset {end}, got {self.named_end}")
        own = [each for each in self.wal if each.end is None]
        if not own:
            return self
        if [each.session for each in own] != [session]:
            raise InvalidArgumentError(f"the open reference must be that of {session!r}, got {self.wal!r}")
        return self._replaced([msgspec.structs.replace(own[0], start=max(own[0].start, start))])

    def kept(self, floor: int, listed: Iterable[RolledFile]) -> SegmentObjects:
        """Without the files that end at or below an offset. The empty end of a sealed segment stays.

        `listed`: those that the index object has, of which some may be gone before.
        """
        files = tuple(file for file in self.files if file.first >= floor or file.end > floor)
        gone = max((file.end for file in self.files if file.first < file.end <= floor), default=self.floor)
        older = self.older
        if older is not None and older.end <= floor:
            gone, older = max(gone, older.end), None
        elif older is not None:
            first = max(older.first, floor)
            left = [file.size for file in listed if first < file.end <= older.end]
            older = msgspec.structs.replace(older, first=first, count=len(left), size=sum(left))
            gone = max(gone, first)
        return msgspec.structs.replace(self, files=files, older=older, floor=max(self.floor, gone))

    def folded(self, older: OlderFiles, count: int) -> SegmentObjects:
        """The first `count` files are listed in the index object instead."""
        if not 0 < count < len(self.files) or older.end != self.files[count - 1].end:
            raise InvalidArgumentError(f"the index must end with a file of the record, got {older!r}")
        return msgspec.structs.replace(self, files=self.files[count:], older=older)

    def _replaced(self, wal: Iterable[Reference]) -> SegmentObjects:
        return msgspec.structs.replace(self, wal=tuple(wal))
