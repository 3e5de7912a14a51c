"""Copies kept files into packs: of a log file that an earlier generation has, only what was appended since.

    ┌──────┬──────────────────────────┬────────┐
    │ head │ body: the entries        │ footer │    a file that is closed is copied as it is, and never again
    └──────┴──────────────────────────┴────────┘
    ┌──────┬───────────────────┐
    │ head │ body, up to `end` │····                a log that goes on ends at the moment of the backup
    └──────┴───────────────────┘

The head of a log that goes on is written anew: its closing block is zeros, and its witnesses say that all of it was
durable, so that a restored copy reports what it lacks as damage. Every entry is checked while it is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from engine._native.format.crc32c import crc32c
from engine._native.serve import log
from engine.backups.manifest import Entry, Manifest, Part
from engine.backups.packs import PackWriter, present
from engine.backups.source import Source
from engine.errors import CorruptionError
from engine.limits import ENTRY_SIZE_MAX, KIB, MIB
from engine.model.backups import KeptFile, KeptSegment
from engine.storage.file.format import (
    BLOCK_SIZE,
    HEADER_SIZE_MAX,
    WITNESSES,
    Header,
    Opening,
    Witness,
)

CHUNK = 4 * MIB
TAIL_SIZE = 64 * KIB
_TORN_READS_MAX = 3  # a witness may be written while the header is read


@dataclass
class Copied:
    """What copying has found. `messages`: in the segments so far; `damaged`: each with its place."""

    files: list[Entry] = field(default_factory=list)
    messages: int = 0
    damaged: list[str] = field(default_factory=list)


class Base:
    """The files of an earlier generation whose packs are all there, with their parts as of a new manifest."""

    def __init__(self, manifest: Manifest | None, there: Mapping[str, int], writer: PackWriter) -> None:
        self._manifest = manifest
        self._there = there
        self._writer = writer
        self._entries = {} if manifest is None else {entry.path: entry for entry in manifest.files}

    def find(self, path: str, opening: int) -> Entry | None:
        """The entry of a file that began so; None: there is none that can be used."""
        entry, manifest = self._entries.get(path), self._manifest
        if manifest is None or entry is None or entry.opening != opening:
            return None
        used = {part.pack for part in entry.parts}
        return entry if all(present(self._there, manifest.packs[place]) for place in used) else None

    def parts(self, parts: list[Part]) -> list[Part]:
        """The same parts, in the new manifest."""
        assert self._manifest is not None
        packs = self._manifest.packs
        return [Part(self._writer.refer(packs[p.pack]), p.at, p.size, p.crc) for p in parts]


class SegmentCopier:
    """Copies segments. `step`: called between pieces."""

    def __init__(
        self, source: Source, writer: PackWriter, base: Base, copied: Copied, step: Callable[[], None]
    ) -> None:
        self._source = source
        self._writer = writer
        self._base = base
        self._copied = copied
        self._step = step

    def copy(self, segment: KeptSegment) -> None:
        """All files of a segment. Raises CorruptionError for a header that fails its checks, StorageError."""
        for other in segment.others:
            self.copy_plain(f"{segment.directory}/{other.name}", other.link)
        for number, file in enumerate(segment.logs):
            last = number == len(segment.logs) - 1
            goes_on = last and segment.end is not None and not segment.sealed
            self._copy_log(f"{segment.directory}/{file.name}", file, segment.end if goes_on else None)

    def copy_plain(self, path: str, link: str) -> None:
        """A file that is no log."""
        entry, position = Entry(path, []), 0
        while piece := self._source.read(link, position, CHUNK):
            self._writer.add(entry.body, piece)
            position += len(piece)
            self._step()
        self._copied.files.append(entry)

    def _copy_log(self, path: str, file: KeptFile, end: int | None) -> None:
        header = self._header(path, file)
        opening = header.opening
        head = bytearray(self._source.read(file.link, 0, opening.data_position))
        if len(head) < opening.data_position:
            raise CorruptionError(f"{path}, position {len(head)}: the file ends inside its head")
        closing = header.closing if end is None else None
        if end is not None:
            _reopen(head, header, end)
        entry = Entry(path, [], opening=crc32c(opening.pack()), head_crc=crc32c(head), whole=closing is not None)
        before = self._base.find(path, entry.opening)
        if before is not None and self._is_same(before, entry, file, end):
            entry.head, entry.body, entry.foot = (self._base.parts(p) for p in (before.head, before.body, before.foot))
            entry.end, entry.position, entry.tail = before.end, before.position, before.tail
        else:
            self._writer.add(entry.head, head)
            stop = closing.end_position if closing is not None else None
            self._copy_body(entry, file, opening, before, end if closing is None else closing.end_offset, stop)
            if closing is not None:
                self._writer.add(entry.foot, self._source.read(file.link, closing.end_position, closing.footer_size))
        self._copied.messages += entry.end - opening.first_offset
        self._copied.files.append(entry)

    def _header(self, path: str, file: KeptFile) -> Header:
        for attempt in range(1, _TORN_READS_MAX + 1):
            try:
                return Header.unpack(bytes(self._source.read(file.link, 0, HEADER_SIZE_MAX)), path)
            except CorruptionError:
                if attempt == _TORN_READS_MAX:
                    raise
        raise AssertionError

    def _copy_body(
        self, entry: Entry, file: KeptFile, opening: Opening, before: Entry | None, end: int | None, stop: int | None
    ) -> None:
        """The entries up to the offset `end`; None: as far as they go. `stop`: where they end, by the closing block."""
        offset, position = opening.first_offset, opening.data_position
        if before is not None and self._goes_on(before, file, end):
            entry.body = self._base.parts(before.body)
            offset, position = before.end, before.position
        scan = log.Scan(opening.salt, opening.segment_id, offset, position, (0xFFFF,), end)
        last = b""
        for piece in self._entries(scan, file, stop):
            self._writer.add(entry.body, piece)
            last = _tail(last, piece)
            self._step()
        entry.end, entry.position = scan.next_offset, scan.position
        damaged = (end is not None and scan.next_offset != end) or (stop is not None and scan.position != stop)
        if damaged:
            self._copied.damaged.append(_damage(entry.path, scan))
        if damaged or (end is None and stop is None):
            self._copy_rest(entry, file, scan.position, stop)
        elif last or before is None or not entry.body:
            entry.tail = (len(last), crc32c(last))
        else:
            entry.tail = before.tail

    def _is_same(self, before: Entry, entry: Entry, file: KeptFile, end: int | None) -> bool:
        """Whether nothing has changed: the head of a closed file says so, of a log that goes on its end as well."""
        if before.head_crc != entry.head_crc or before.whole != entry.whole:
            return False
        return entry.whole or (before.end == end and self._goes_on(before, file, end))

    def _goes_on(self, before: Entry, file: KeptFile, end: int | None) -> bool:
        """Whether the file has what an earlier generation has of it, and perhaps more."""
        size, crc = before.tail
        if not size or (end is not None and before.end > end):
            return not before.body and before.end == end  # nothing, as before
        return crc32c(self._source.read(file.link, before.position - size, size)) == crc

    def _entries(self, scan: log.Scan, file: KeptFile, stop: int | None) -> Iterator[memoryview]:
        """Whole entries that pass their checks, in pieces."""
        size = CHUNK
        while not scan.finished and scan.fault == 0:
            want = size if stop is None else min(size, stop - scan.position)
            data = self._source.read(file.link, scan.position, want) if want > 0 else b""
            taken = scan.feed(data) if data else 0
            if taken:
                yield memoryview(data)[:taken]
            elif len(data) < size or size > ENTRY_SIZE_MAX:
                return
            if taken < len(data) // 2:
                size = min(2 * size, 4 * ENTRY_SIZE_MAX)

    def _copy_rest(self, entry: Entry, file: KeptFile, position: int, stop: int | None) -> None:
        """What is behind the good entries of a file that was not closed, or is damaged: it is copied unjudged."""
        while stop is None or position < stop:
            data = self._source.read(file.link, position, CHUNK if stop is None else min(CHUNK, stop - position))
            if not data:
                return
            self._writer.add(entry.body, data)
            position += len(data)
            self._step()


def _reopen(head: bytearray, header: Header, end: int) -> None:
    """Write the head of a log that goes on, and was durable up to `end`."""
    head[BLOCK_SIZE : 2 * BLOCK_SIZE] = bytes(BLOCK_SIZE)
    before = header.witness
    if before is not None:
        for number in range(before.number + 1, before.number + 1 + WITNESSES):
            witness = Witness(number, end, before.generation)
            head[witness.position : witness.position + BLOCK_SIZE] = witness.pack(header.opening.salt)


def _tail(last: bytes, piece: memoryview) -> bytes:
    return bytes(piece[-TAIL_SIZE:]) if len(piece) >= TAIL_SIZE else (last + bytes(piece))[-TAIL_SIZE:]


def _damage(path: str, scan: log.Scan) -> str:
    try:
        log.raise_fault(scan.fault or log.FAULT_SHORT, scan.segment_id, scan.next_offset)
    except CorruptionError as e:
        return f"{path}, position {scan.position}: {e}"
    return f"{path}, position {scan.position}: entries are missing"
