"""What stands in a log file besides entries: its header, its closing block, its footer.

    0      opening block, 64 bytes, written once      magic "ENLG" u32 | version u16 |
                                                      upper bits of the term of the file before u16 | segment id u64 |
                                                      first offset u64 | salt u32 | snapshot size u32 | created ms i64 |
                                                      snapshot crc u32 | name crc u32 | term u64 |
                                                      lower bits of the term of the file before u32 | crc u32
    64     closing block, 64 bytes, zeros while open  magic "ENLE" u32 | state u32 | end offset u64 | end position u64 |
                                                      footer size u32 | reserved u32 | last time ms i64 | reserved |
                                                      crc u32 (seeded with the salt)
    128    snapshot of duplicate detection as it was before this file, padded to 8
    …      entries, back to back
    end    footer                                     magic "ENFT" u32 | size u32 | crc u32 | state u32 |
                                                      end offset u64 | last time ms i64 | marks u32 |
                                                      snapshot size u32 |
                                                      marks: offset u64, position u64, time ms i64 | snapshot

All little-endian. See docs/formats/log.md for the rules.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from typing_extensions import Buffer

from engine._native.crc32c import crc32c
from engine.errors import CorruptionError, UnsupportedError
from engine.storage.index import MARK_SIZE, Index

# On disk: do not change.
VERSION = 1
OPENING_MAGIC = 0x474C4E45  # "ENLG"
CLOSING_MAGIC = 0x454C4E45  # "ENLE"
FOOTER_MAGIC = 0x54464E45  # "ENFT"
BLOCK_SIZE = 64
HEADER_SIZE = 2 * BLOCK_SIZE
_OPENING = struct.Struct("<IHHQQIIqIIQI")  # then the crc
_CLOSING = struct.Struct("<IIQQIIq20x")  # then the crc
_FOOTER = struct.Struct("<IIIIQqII")
_CRC = struct.Struct("<I")
assert _OPENING.size == _CLOSING.size == BLOCK_SIZE - _CRC.size
assert _FOOTER.size % 8 == 0


class State(enum.IntEnum):
    """How a file ended. On disk: do not change a number."""

    OPEN = 0  # no closing block: the file may grow, or the process died
    ROLLED = 1  # another file follows
    CLEAN = 2  # closed in order; the next append opens it again
    SEALED = 3  # the segment's last file, for ever


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
    # Where several brokers share the disk: the owner's term, and that of the file before; 0 elsewhere. Below 2**48.
    term: int = 0
    previous: int = 0

    @property
    def data_position(self) -> int:
        """Where the entries begin."""
        return HEADER_SIZE + pad8(self.snapshot_size)

    def pack(self) -> bytes:
        """64 bytes."""
        body = _OPENING.pack(
            OPENING_MAGIC,
            VERSION,
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
        if version != VERSION:
            raise UnsupportedError(f"{path}: log format {version}; this build reads format {VERSION}")
        return cls(segment, first, salt, created, name_crc, size, snapshot_crc, term, upper << 32 | lower)


@dataclass(frozen=True, slots=True)
class Closing:
    """The closing block: where the entries end and the footer begins."""

    state: State
    end_offset: int
    end_position: int
    footer_size: int
    last_time_ms: int

    def pack(self, salt: int) -> bytes:
        """64 bytes."""
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
        """Undo pack(); None for what is no closing block."""
        body, crc = block[:-4], block[-4:]
        if len(block) != BLOCK_SIZE or crc != _CRC.pack(crc32c(body, salt)):
            return None
        magic, state, offset, position, size, _, time_ms = _CLOSING.unpack(body)
        if magic != CLOSING_MAGIC or state not in (State.ROLLED, State.CLEAN, State.SEALED):
            return None
        return cls(State(state), offset, position, size, time_ms)


@dataclass(frozen=True, slots=True)
class Footer:
    """The index of a closed file, and what duplicate detection knew at its end."""

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
        """Undo pack() at the front of `image`; None for what is no footer of this file."""
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
    """The size that the first FOOTER_HEAD_SIZE bytes of a footer claim; 0 when they are none. Nothing is checked."""
    magic, size = struct.unpack_from("<II", head)
    return size if magic == FOOTER_MAGIC else 0
