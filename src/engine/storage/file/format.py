"""The parts of a log file besides its entries: header, closing block, footer.

    0      opening block, 64 bytes, written once      magic "ENLG" u32 | version u16 |
                                                      upper bits of the previous file's term u16 | segment id u64 |
                                                      first offset u64 | salt u32 | snapshot size u32 | created ms i64 |
                                                      snapshot crc u32 | name crc u32 | term u64 |
                                                      lower bits of the previous file's term u32 | crc u32
    64     closing block, 64 bytes, zeros while open  magic "ENLE" u32 | state u32 | end offset u64 | end position u64 |
                                                      footer size u32 | reserved u32 | last time ms i64 | reserved |
                                                      crc u32 (seeded with the salt)
    128    origin block, 64 bytes, written once       magic "ENLO" u32 | durability u32 | end of the previous file u64 |
                                                      store u64 | reserved | crc u32 (seeded with the salt)
    192    two witnesses of 64 bytes, written in turn   magic "ENLW" u32 | number u32 | durable offset u64 |
                                                      generation u64 | reserved | crc u32 (seeded with the salt)
    320    producer snapshot: duplicate detection as it was before this file, padded to 8
    …      entries, back to back
    end    footer                                     magic "ENFT" u32 | size u32 | crc u32 | state u32 |
                                                      end offset u64 | last time ms i64 | marks u32 |
                                                      snapshot size u32 |
                                                      marks: offset u64, position u64, time ms i64 | snapshot

All little-endian. Files of version 1 have neither origin nor witnesses: their snapshot begins at 128. See
docs/formats/log.md for the rules.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine._native.format.crc32c import crc32c
from engine.errors import CorruptionError, UnsupportedError
from engine.model.identity import Identity
from engine.storage.disk.config import MODES
from engine.storage.file.index import MARK_SIZE, Index

if TYPE_CHECKING:
    from typing_extensions import Buffer

# On disk: do not change.
VERSION = 2
VERSION_PLAIN = 1  # read, never written
OPENING_MAGIC = 0x474C4E45  # "ENLG"
CLOSING_MAGIC = 0x454C4E45  # "ENLE"
FOOTER_MAGIC = 0x54464E45  # "ENFT"
ORIGIN_MAGIC = 0x4F4C4E45  # "ENLO"
WITNESS_MAGIC = 0x574C4E45  # "ENLW"
BLOCK_SIZE = 64
WITNESSES = 2
ORIGIN_AT = 2 * BLOCK_SIZE
WITNESSES_AT = ORIGIN_AT + BLOCK_SIZE
HEADER_SIZES = {VERSION_PLAIN: 2 * BLOCK_SIZE, VERSION: WITNESSES_AT + WITNESSES * BLOCK_SIZE}
HEADER_SIZE_MAX = max(HEADER_SIZES.values())
_OPENING = struct.Struct("<IHHQQIIqIIQI")  # then the crc
_CLOSING = struct.Struct("<IIQQIIq20x")  # then the crc
_FOOTER = struct.Struct("<IIIIQqII")
_ORIGIN = struct.Struct("<IIQQ36x")  # then the crc
_WITNESS = struct.Struct("<IIQQ36x")  # then the crc
_CRC = struct.Struct("<I")
assert {s.size for s in (_OPENING, _CLOSING, _ORIGIN, _WITNESS)} == {BLOCK_SIZE - _CRC.size}
assert all(size % 8 == 0 for size in HEADER_SIZES.values())
assert _FOOTER.size % 8 == 0


class State(enum.IntEnum):
    """How a file ended. On disk: do not change a number."""

    OPEN = 0  # no closing block: the file may grow, or the process died
    ROLLED = 1  # another file follows
    CLEAN = 2  # closed in order; the next append reopens it
    SEALED = 3  # the segment's last file, forever


def pad8(n: int) -> int:
    """The next multiple of 8."""
    return (n + 7) & ~7


@dataclass(frozen=True, slots=True)
class Opening:
    """The opening block."""

    segment_id: int
    first_offset: int
    salt: int
    created_ms: int
    name_crc: int  # of the segment's name, so that a file of another segment is recognised
    snapshot_size: int = 0
    snapshot_crc: int = 0
    # Where several brokers share the disk: the owner's term, and the previous file's; 0 elsewhere. Below 2**48.
    term: int = 0
    previous: int = 0
    version: int = VERSION

    @property
    def witnessed(self) -> bool:
        """Whether the file has an origin block and witnesses."""
        return self.version != VERSION_PLAIN

    @property
    def header_size(self) -> int:  # where the snapshot begins
        return HEADER_SIZES[self.version]

    @property
    def data_position(self) -> int:  # where the entries begin
        return self.header_size + pad8(self.snapshot_size)

    def pack(self) -> bytes:
        body = _OPENING.pack(
            OPENING_MAGIC,
            self.version,
            self.previous >> 32,
            self.segment_id,
            self.first_offset,
            self.salt,
            self.snapshot_size,
            self.created_ms,
            self.snapshot_crc,
            self.name_crc,
            self.term,
            self.previous & 0xFFFF_FFFF,
        )
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def unpack(cls, block: bytes, path: str) -> Opening:
        """Undo pack(). Raises CorruptionError, or UnsupportedError for a version of the future."""
        body, crc = block[:-4], block[-4:]
        if len(block) != BLOCK_SIZE or crc != _CRC.pack(crc32c(body)) or body[:4] != _CRC.pack(OPENING_MAGIC):
            raise CorruptionError(f"{path}, position 0: the file header fails its checksum")
        _, version, upper, segment, first, salt, size, created, snapshot_crc, name_crc, term, lower = _OPENING.unpack(
            body
        )
        if version not in HEADER_SIZES:
            raise UnsupportedError(f"{path}: log format {version}; this build reads formats up to {VERSION}")
        return cls(segment, first, salt, created, name_crc, size, snapshot_crc, term, upper << 32 | lower, version)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin block: the durability of the file, where the log ended before it, the metadata it belongs to."""

    durability: str
    previous_end: int  # below the first offset if the offsets between were given up; see docs/formats/log.md
    store: int = 0  # the id of the metadata that know the segment; 0: not stated

    def pack(self, salt: int) -> bytes:
        body = _ORIGIN.pack(ORIGIN_MAGIC, MODES.index(self.durability), self.previous_end, self.store)
        return body + _CRC.pack(crc32c(body, salt))

    @classmethod
    def unpack(cls, block: bytes, opening: Opening, path: str) -> Origin:
        """Undo pack(). Raises CorruptionError, or UnsupportedError for a durability of the future."""
        body = _checked(block, opening.salt, ORIGIN_MAGIC)
        if body is None:
            raise CorruptionError(f"{path}, position {ORIGIN_AT}: the origin block fails its checksum")
        _, mode, previous_end, store = _ORIGIN.unpack(body)
        if mode >= len(MODES):
            raise UnsupportedError(f"{path}: durability {mode}; this build knows {len(MODES)} kinds")
        if previous_end > opening.first_offset:
            raise CorruptionError(f"{path}, position {ORIGIN_AT}: the file begins before the end of the previous one")
        return cls(MODES[mode], previous_end, store)


@dataclass(frozen=True, slots=True)
class Witness:
    """Up to which offset an open file is durable, independent of what was appended behind it (commit/witness.py).

    Two blocks are written in turn, so that a torn write leaves the other. The larger number is the newer.
    """

    number: int
    durable_offset: int
    generation: int  # of the metadata when the file was last created or opened for writing; 0: not stated

    @property
    def position(self) -> int:
        return WITNESSES_AT + self.number % WITNESSES * BLOCK_SIZE

    def pack(self, salt: int) -> bytes:
        body = _WITNESS.pack(WITNESS_MAGIC, self.number, self.durable_offset, self.generation)
        return body + _CRC.pack(crc32c(body, salt))

    @classmethod
    def newest(cls, blocks: bytes, opening: Opening, path: str) -> Witness:
        """The newer of the two. CorruptionError if neither is good: a torn write leaves the other one."""
        found = []
        for at in range(0, WITNESSES * BLOCK_SIZE, BLOCK_SIZE):
            body = _checked(blocks[at : at + BLOCK_SIZE], opening.salt, WITNESS_MAGIC)
            if body is not None:
                found.append(cls(*_WITNESS.unpack(body)[1:]))
        if not found:
            raise CorruptionError(f"{path}, position {WITNESSES_AT}: neither of the two witnesses has a good checksum")
        return max(found, key=lambda one: one.number)


def _checked(block: bytes, salt: int, magic: int) -> bytes | None:
    """A block without its checksum; None if the checksum or the magic is wrong."""
    body, crc = block[:-4], block[-4:]
    good = len(block) == BLOCK_SIZE and crc == _CRC.pack(crc32c(body, salt)) and body[:4] == _CRC.pack(magic)
    return body if good else None


@dataclass(frozen=True, slots=True)
class Closing:
    """The closing block: where the entries end and the footer begins."""

    state: State
    end_offset: int
    end_position: int
    footer_size: int
    last_time_ms: int

    def pack(self, salt: int) -> bytes:
        body = _CLOSING.pack(
            CLOSING_MAGIC,
            self.state,
            self.end_offset,
            self.end_position,
            self.footer_size,
            0,
            self.last_time_ms,
        )
        return body + _CRC.pack(crc32c(body, salt))

    @classmethod
    def unpack(cls, block: bytes, salt: int) -> Closing | None:
        """Undo pack(); None for anything else."""
        body = _checked(block, salt, CLOSING_MAGIC)
        if body is None:
            return None
        _, state, offset, position, size, _, time_ms = _CLOSING.unpack(body)
        if state not in (State.ROLLED, State.CLEAN, State.SEALED):
            return None
        return cls(State(state), offset, position, size, time_ms)


def identity_of(origin: Origin | None, witness: Witness | None) -> Identity | None:
    """The identity of the metadata that a file names; None: it names none."""
    if origin is None or witness is None or not origin.store:
        return None
    return Identity(origin.store, witness.generation)


@dataclass(frozen=True, slots=True)
class Header:
    """The blocks at the front of a file. `closing_block`: 64 bytes, zeros while the file is open."""

    opening: Opening
    closing_block: bytes
    origin: Origin | None
    witness: Witness | None

    @property
    def identity(self) -> Identity | None:
        """Of the metadata under which the file was created or last opened for writing; None: not stated."""
        return identity_of(self.origin, self.witness)

    @property
    def closing(self) -> Closing | None:
        """None if the file was not closed, or its closing block is damaged."""
        return Closing.unpack(self.closing_block, self.opening.salt)

    @classmethod
    def unpack(cls, image: bytes, path: str) -> Header:
        """`image`: the first HEADER_SIZE_MAX bytes of a file, or all of a smaller one. Raises CorruptionError."""
        opening = Opening.unpack(image[:BLOCK_SIZE], path)
        if len(image) < opening.header_size:
            raise CorruptionError(f"{path}, position {len(image)}: the file ends inside its header")
        closing_block = image[BLOCK_SIZE:ORIGIN_AT]
        if not opening.witnessed:
            return cls(opening, closing_block, None, None)
        origin = Origin.unpack(image[ORIGIN_AT:WITNESSES_AT], opening, path)
        witness = Witness.newest(image[WITNESSES_AT : opening.header_size], opening, path)
        return cls(opening, closing_block, origin, witness)


@dataclass(frozen=True, slots=True)
class Footer:
    """The index of a closed file, and the producer snapshot at its end."""

    state: State
    end_offset: int
    last_time_ms: int
    index: Index
    snapshot: bytes

    def pack(self, salt: int) -> bytes:
        """A multiple of 8 bytes."""
        marks = self.index.pack()
        size = pad8(_FOOTER.size + len(marks) + len(self.snapshot))
        head = _FOOTER.pack(
            FOOTER_MAGIC,
            size,
            0,
            self.state,
            self.end_offset,
            self.last_time_ms,
            len(self.index),
            len(self.snapshot),
        )
        image = bytearray((head + marks + self.snapshot).ljust(size, b"\0"))
        image[8:12] = _CRC.pack(crc32c(image, salt))
        return bytes(image)

    @classmethod
    def unpack(cls, image: Buffer, salt: int) -> Footer | None:
        """Undo pack() at the front of `image`; None for anything but a footer of this file."""
        data = bytes(image)
        if len(data) < _FOOTER.size:
            return None
        magic, size, crc, state, end_offset, time_ms, marks, snapshot = _FOOTER.unpack_from(data)
        stop = _FOOTER.size + marks * MARK_SIZE
        if magic != FOOTER_MAGIC or not stop + snapshot <= size <= len(data) or state not in tuple(State):
            return None
        if crc32c(data[:8] + b"\0\0\0\0" + data[12:size], salt) != crc:
            return None
        index = Index.unpack(data[_FOOTER.size : stop])
        return cls(State(state), end_offset, time_ms, index, data[stop : stop + snapshot])


FOOTER_HEAD_SIZE = _FOOTER.size


def footer_size(head: Buffer) -> int:
    """The size stated in the first FOOTER_HEAD_SIZE bytes of a footer, unchecked; 0 if they are no footer's."""
    magic, size = struct.unpack_from("<II", head)
    return size if magic == FOOTER_MAGIC else 0
