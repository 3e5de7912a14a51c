"""`Mark`: a commit token beside a metadata file, written after each commit, that shows lost commits.

SQLite takes the first bad frame of its write-ahead log for the log's end, so it cannot notice lost commits behind it.
The mark is written when a commit is durable, never before: a file that is behind its mark has lost commits, or is an
older copy. The mark itself is not synced with each commit. A kill leaves it in the page cache; after a power cut it may
be behind the file, which proves nothing. It is synced when no commit has followed for a moment.

    0     a slot, 64 bytes     magic "ENMK" u32 | format u32 | id of the file i64 | version u64 | zeros | crc u32
    4096  the other slot

All little-endian, CRC-32 of the 60 bytes before it. The slots are written in turn and lie in different blocks: a torn
or damaged one leaves the other, which is one commit behind.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from engine.aio.files import sync_data
from engine.errors import CorruptionError, UnsupportedError

log = logging.getLogger(__name__)

# On disk: do not change.
MAGIC = 0x4B4D4E45  # "ENMK"
FORMAT = 1
SLOT_POSITIONS = (0, 4096)
_SLOT = struct.Struct("<IIqQ36x")
_CRC = struct.Struct("<I")
SLOT_SIZE = _SLOT.size + _CRC.size
assert SLOT_SIZE == 64

_MODE = 0o600

REPAIR = "`engine inspect --repair DIRECTORY` goes on with what is there"


class SlotWrite(NamedTuple):
    """The bytes to write after one commit, and their position."""

    descriptor: int
    position: int
    image: bytes


class Mark:
    """An open mark. One thread at a time."""

    def __init__(self, path: Path, descriptor: int, ident: int, version: int, newest: int) -> None:
        """Use create() or open(). `newest`: the slot that holds `version`."""
        self.path = path
        self.version = version
        self._descriptor = descriptor
        self._ident = ident
        self._newest = newest
        self._complained = False

    @classmethod
    def create(cls, path: Path, ident: int, version: int) -> Mark:
        """Create a mark, replacing any that exists; durable on return. Raises OSError."""
        fresh = path.with_name(path.name + ".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            for position in SLOT_POSITIONS:
                os.pwrite(descriptor, _pack(ident, version), position)
            os.fsync(descriptor)
            fresh.rename(path)
            sync_directory(path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, ident, version, 0)

    @classmethod
    def open(cls, path: Path, ident: int) -> Mark:
        """Open the mark of the metadata file with this id. Raises CorruptionError, UnsupportedError, OSError."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CorruptionError(
                f"{path} is missing: nothing says whether the metadata file beside it is the newest; put it back, or "
                f"{REPAIR}"
            ) from None
        try:
            newest, (found, version) = _newest(path, descriptor)
            if found != ident:
                raise CorruptionError(
                    f"{path} belongs to another metadata file than the one beside it; put back the right ones, or "
                    f"{REPAIR}"
                )
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, ident, version, newest)

    def following(self, version: int) -> SlotWrite:
        """The write for `version`. Call taken() after it was done or tried."""
        position = SLOT_POSITIONS[1 - self._newest]
        return SlotWrite(self._descriptor, position, _pack(self._ident, version))

    def taken(self, version: int) -> None:
        """The slot of following(version) was written, or its write was tried."""
        self.version = version
        self._newest = 1 - self._newest

    def write(self, slot: SlotWrite) -> None:
        """Write a slot. A failure is logged once: commits are durable without it."""
        try:
            if os.pwrite(slot.descriptor, slot.image, slot.position) != SLOT_SIZE:
                raise OSError("it was written in part")
        except OSError as e:
            self.complain(str(e))

    def complain(self, why: str) -> None:
        """Log once that the mark cannot be written."""
        if not self._complained:
            self._complained = True
            log.error("%s cannot be written: %s; a loss of later metadata commits would not be noticed", self.path, why)

    def sync(self) -> None:
        """Make the written slots durable. Any thread."""
        try:
            sync_data(self._descriptor)
        except OSError as e:
            self.complain(str(e))

    def close(self) -> None:
        """Sync and close the file. Call once."""
        self.sync()
        os.close(self._descriptor)


def read_version(path: Path) -> int | None:
    """The version in the mark at `path`; None when it has no readable one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _newest(path, descriptor)[1][1]
    except CorruptionError:
        return None
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _pack(ident: int, version: int) -> bytes:
    body = _SLOT.pack(MAGIC, FORMAT, ident, version)
    return body + _CRC.pack(zlib.crc32(body))


def _unpack(path: Path, image: bytes) -> tuple[int, int] | None:
    """(id, version); None for a damaged slot."""
    body = image[: _SLOT.size]
    if len(image) != SLOT_SIZE or _CRC.unpack(image[_SLOT.size :])[0] != zlib.crc32(body) or not any(image):
        return None
    magic, form, ident, version = _SLOT.unpack(body)
    if magic != MAGIC:
        return None
    if form > FORMAT:
        raise UnsupportedError(f"{path} has format {form}; this release of Engine reads up to format {FORMAT}")
    return ident, version


def _newest(path: Path, descriptor: int) -> tuple[int, tuple[int, int]]:
    """(slot, (id, version)) of the newest readable slot."""
    slots = [_unpack(path, os.pread(descriptor, SLOT_SIZE, position)) for position in SLOT_POSITIONS]
    good = [(found[1], number, found) for number, found in enumerate(slots) if found is not None]
    if not good:
        raise CorruptionError(
            f"{path} is damaged: neither of its slots can be read; put back the right one, or {REPAIR}"
        )
    _, number, newest = max(good)
    return number, newest
