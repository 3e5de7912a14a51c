"""One file of a segment's log: create it, write to it, close it, read blocks and the footer from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import NamedTuple

from engine._native.format.crc32c import crc32c
from engine._native.serve import log
from engine._native.serve.blocks import Block
from engine.errors import CorruptionError
from engine.limits import KIB, LOG_INDEX_BYTES_STEP, MIB
from engine.model.identity import Identity
from engine.storage.disk.buffers import ReadBuffers
from engine.storage.disk.disk import Disk, File
from engine.storage.file.format import (
    BLOCK_SIZE,
    HEADER_SIZE_MAX,
    Closing,
    Footer,
    Header,
    Opening,
    Origin,
    State,
    Witness,
    identity_of,
)
from engine.storage.file.index import Index
from engine.storage.file.page_cache import NEVER, Window

SUFFIX = ".log"
UNFINISHED = ".new"  # a file before its rename; a crash may leave it, the next open removes it

PAD_MIN = 4 * KIB
PAD_MAX = 256 * KIB


class SyncFailed(Exception):
    """A sync returned an error: the state of everything written since the last sync is unknown."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def sync(file: File) -> None:
    """Sync. Raises SyncFailed, so that it is not taken for a failed write and retried."""
    try:
        file.sync()
    except OSError as e:
        raise SyncFailed(e) from e


class LogFile:
    """The state of one file. Fields are changed on the loop thread, except while a running job owns them."""

    __slots__ = (
        "allocated",
        "closing",
        "count_at",
        "created",
        "directory",
        "end_offset",
        "end_position",
        "first_offset",
        "handle",
        "index",
        "last_time_ms",
        "opening",
        "origin",
        "path",
        "pins",
        "salt",
        "snapshot",
        "window",
        "witness",
    )

    def __init__(
        self,
        directory: str,
        opening: Opening,
        origin: Origin | None,
        witness: Witness | None,
        snapshot: bytes = b"",
        *,
        created: bool = False,
    ) -> None:
        """`origin` and `witness` are None for a file of the version without them."""
        # Fixed.
        self.directory = directory
        self.path = f"{directory}/{file_name(opening)}"
        self.opening = opening
        self.salt = opening.salt
        self.first_offset = opening.first_offset  # of its first entry, or of the first that it will have
        self.origin = origin
        self.snapshot: bytes | None = snapshot  # dropped once it is in the file
        # Its end. Of the active file: the end of what readers may see.
        self.end_offset = opening.first_offset
        self.end_position = opening.data_position
        self.last_time_ms = 0
        self.closing: Closing | None = None
        self.witness = witness  # the newest that was written, or is being written
        self.index: Index | None = Index()  # None: not loaded from the footer
        # The open file; see handles.py. `allocated`: its length on the disk, as far as known.
        self.handle: File | None = None
        self.pins = 0
        self.created = created
        self.allocated = 0
        # What of it is in the page cache; see page_cache.py. `count_at`: once it has grown so far, it is counted again.
        self.window: Window | None = None
        self.count_at = NEVER

    @property
    def is_empty(self) -> bool:
        """Whether it holds no message that readers may see."""
        return self.end_offset == self.first_offset

    @property
    def sealed(self) -> bool:
        """Whether it ends its segment, forever."""
        return self.closing is not None and self.closing.state is State.SEALED

    @property
    def identity(self) -> Identity | None:
        """Of the metadata under which it was created or last opened for writing; None: not stated."""
        return identity_of(self.origin, self.witness)

    @property
    def previous_end(self) -> int:
        """Where the log ended before this file. Offsets between that and its first one were given up."""
        return self.first_offset if self.origin is None else self.origin.previous_end

    @property
    def size_bytes(self) -> int:
        return self.end_position

    def head(self) -> bytes:
        """All that a new file has before its entries."""
        assert self.origin is not None
        assert self.witness is not None
        blocks = self.opening.pack() + bytes(BLOCK_SIZE) + self.origin.pack(self.salt) + self.witness.pack(self.salt)
        head = blocks.ljust(self.opening.header_size, b"\0")
        return (head + (self.snapshot or b"")).ljust(self.opening.data_position, b"\0")

    # Jobs: blocking, on a worker. One of the writing ones at a time.

    def create(self, disk: Disk) -> File:
        """Create the file; its name, header and directory survive a crash. Raises OSError, SyncFailed.

        It gets its name once it is complete, so a file of that name with a bad header is damage.
        """
        image = self.head()
        unfinished = self.path + UNFINISHED
        file = disk.create(unfinished)
        try:
            file.write([image], 0)
            sync(file)
            disk.rename(unfinished, self.path)
            file.path = self.path
            try:
                disk.sync_directory(self.directory)
            except OSError as e:
                raise SyncFailed(e) from e
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                disk.unlink(unfinished)
            raise
        self.allocated = len(image)
        return file

    def reopen(self, file: File, generation: int = 0) -> None:
        """Undo an orderly close before the first new entry. Raises OSError, SyncFailed.

        The order: the witness takes over what the closing block stated, that the file is durable to its end; the
        closing block is cleared; both are synced; only then the footer is cut off.
        """
        if self.witness is not None:
            image = self.renew_witness(self.end_offset, generation)
            file.write([image], self.witness.position)
        file.write([bytes(BLOCK_SIZE)], BLOCK_SIZE)
        sync(file)
        file.truncate(self.end_position)
        self.allocated = self.end_position
        self.closing = None

    def renew_witness(self, durable_offset: int, generation: int = 0) -> bytes:
        """The image of a newer witness, to be written to its position."""
        before = self.witness
        assert before is not None
        number, generation = before.number + 1, max(before.generation, generation)
        self.witness = Witness(number, max(before.durable_offset, durable_offset), generation)
        return self.witness.pack(self.salt)

    def rollback(self, file: File, position: int) -> None:
        """Truncate a failed append, durably. Raises OSError, SyncFailed."""
        file.truncate(position)
        self.allocated = position
        sync(file)

    def close(self, file: File, state: State, end_offset: int, end_position: int, snapshot: bytes) -> Closing:
        """Write the footer, then, once that is durable, the closing block. Raises OSError, SyncFailed."""
        if self.closing is not None and self.closing.state == state:
            return self.closing
        index = self.index if self.index is not None else self.load_index(file)
        footer = Footer(state, end_offset, self.last_time_ms, index, snapshot).pack(self.salt)
        if self.closing is not None:
            self.reopen(file)
        file.truncate(end_position)
        file.write([footer], end_position)
        sync(file)
        closing = Closing(state, end_offset, end_position, len(footer), self.last_time_ms)
        file.write([closing.pack(self.salt)], BLOCK_SIZE)
        sync(file)
        return closing

    def delete(self, disk: Disk) -> None:
        """Remove the file, durably: files are removed one by one, so that a crash leaves no hole."""
        disk.unlink(self.path)
        disk.sync_directory(self.directory)

    def write_closing_again(self, file: File) -> None:
        """Write footer and closing block again as they were read, and sync: their first sync may have failed."""
        assert self.closing is not None
        image = bytearray(self.closing.footer_size)
        file.read_into(image, self.closing.end_position)
        file.write([image], self.closing.end_position)
        file.write([self.closing.pack(self.salt)], BLOCK_SIZE)
        sync(file)

    def load_index(self, file: File) -> Index:
        """The index in memory, or else the footer's."""
        if self.index is None:
            self.index = self.read_footer(file).index
        return self.index

    def read_footer(self, file: File) -> Footer:
        """The footer of a closed file. Raises CorruptionError."""
        assert self.closing is not None
        image = bytearray(self.closing.footer_size)
        file.read_into(image, self.closing.end_position)
        footer = Footer.unpack(image, self.salt)
        if footer is None or (footer.end_offset, footer.state) != (self.closing.end_offset, self.closing.state):
            raise CorruptionError(f"{self.path}, position {self.closing.end_position}: the footer fails its checksum")
        return footer

    def read(self, file: File, offset: int, bytes_max: int, end_offset: int, end_position: int) -> Block:
        """The block for a reader at `offset`, from what lies before the end. Raises CorruptionError, OSError."""
        position = self.load_index(file).position_before(offset, self.opening.data_position)
        want = bytes_max + LOG_INDEX_BYTES_STEP
        while position < end_position:
            data = self._read_exactly(file, position, min(want, end_position - position))
            start, stop, first, after, messages, missing = self._cut(data, offset, bytes_max)
            if messages and (after > end_offset or first >= end_offset):
                break
            if messages:
                view = memoryview(data)[start:stop].toreadonly()
                return Block([view], self.salt, first, after, messages)
            position += start
            want = max(missing, bytes_max)
            if missing > end_position - position:
                break
        raise CorruptionError(f"{self.path}, position {position}: offset {offset} is missing")

    def read_cached(self, file: File, offset: int, bytes_max: int, buffers: ReadBuffers) -> Block | None:
        """The block for a reader at `offset` if the system has it in its cache; else None, and read() has to be called.

        Runs on the loop. Readers may see everything up to the file's end.
        """
        if self.index is None:
            return None
        position = self.index.position_before(offset, self.opening.data_position)
        buffer = buffers.take(min(bytes_max + LOG_INDEX_BYTES_STEP, self.end_position - position))
        data = buffer[: file.read_cached(buffer, position)]
        try:
            start, stop, first, after, messages, _ = self._cut(data, offset, bytes_max)
        except CorruptionError:
            return None
        if not messages or after > self.end_offset or first >= self.end_offset:
            return None
        return Block([data[start:stop].toreadonly()], self.salt, first, after, messages)

    def _cut(self, data: bytearray | memoryview, offset: int, bytes_max: int) -> tuple[int, int, int, int, int, int]:
        try:
            return log.cut(data, self.salt, self.opening.segment_id, offset, bytes_max)
        except CorruptionError as e:
            raise CorruptionError(f"{self.path}: {e}") from None

    def _read_exactly(self, file: File, position: int, size: int) -> bytearray:
        data = bytearray(size)
        if file.read_into(data, position) < size:
            raise CorruptionError(f"{self.path} ends before position {position + size}; entries are missing")
        return data


class FileFacts(NamedTuple):
    """What a new file states about its segment and its creation."""

    segment_id: int
    name_crc: int
    salt: int
    now_ms: int
    durability: str
    store: int  # the id of the metadata that know it, and how often these were started
    generation: int


def file_name(opening: Opening) -> str:
    """A file is named by its first offset, and under a lease by its owner's term too."""
    return f"{opening.first_offset}-{opening.term}{SUFFIX}" if opening.term else f"{opening.first_offset}{SUFFIX}"


def parse_file_name(name: str) -> tuple[int, int] | None:
    """(first offset, term) from a log file's name; None for any other name."""
    first, dash, term = name.removesuffix(SUFFIX).partition("-")
    digits = first + term
    if not name.endswith(SUFFIX) or not (digits.isascii() and digits.isdigit()) or not first or (dash and not term):
        return None
    return int(first), int(term or 0)


def zeros_ahead(end: int) -> int:
    """The number of zeros to write behind a file's end, so that the next syncs need not lengthen it."""
    return min(max(end, PAD_MIN), PAD_MAX)


def read_header(disk: Disk, directory: str, name: str) -> tuple[Header, int]:
    """The header of a file, and its size. Raises CorruptionError, UnsupportedError, OSError."""
    path = f"{directory}/{name}"
    file = disk.open(path)
    try:
        image = bytearray(HEADER_SIZE_MAX)
        n = file.read_into(image, 0)
        return Header.unpack(bytes(image[:n]), path), file.size()
    finally:
        file.close()


def holds_messages(disk: Disk, directory: str, names: Iterable[str]) -> bool:
    """Whether anything was ever appended to these files of a segment. Reads their headers only.

    Raises CorruptionError, OSError.
    """
    for name in names:
        header, size = read_header(disk, directory, name)
        opening, closing = header.opening, header.closing
        ends = opening.first_offset + (size > opening.data_position) if closing is None else closing.end_offset
        if ends > 0:
            return True
    return False


def read_snapshot(file: File, opening: Opening) -> bytes:
    """The producer snapshot at the head of a file. Raises CorruptionError."""
    image = bytearray(opening.snapshot_size)
    n = file.read_into(image, opening.header_size)
    if n < len(image) or crc32c(image) != opening.snapshot_crc:
        raise CorruptionError(f"{file.path}, position {opening.header_size}: the snapshot fails its checksum")
    return bytes(image)


def new_file(
    directory: str,
    facts: FileFacts,
    first_offset: int,
    *,
    previous_end: int | None = None,
    snapshot: bytes = b"",
    terms: tuple[int, int] = (0, 0),
) -> LogFile:
    """A file to be created. `previous_end`: where the log ends before it, None: at its first offset. `terms`: its
    owner's, and the previous file's.
    """
    opening = Opening(
        facts.segment_id,
        first_offset,
        facts.salt,
        facts.now_ms,
        facts.name_crc,
        len(snapshot),
        crc32c(snapshot),
        *terms,
    )
    origin = Origin(facts.durability, first_offset if previous_end is None else previous_end, facts.store)
    return LogFile(directory, opening, origin, Witness(0, first_offset, facts.generation), snapshot)


SCAN_CHUNK = 4 * MIB
assert SCAN_CHUNK % 8 == 0
