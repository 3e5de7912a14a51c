"""The bytes of an object of the log (docs/formats/objects.md).

0          uuid, 16 bytes
16         groups, one behind the other
f          footers, oldest first: the own one is the last
size - 32  trailer
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from engine._native.format.crc32c import crc32c
from engine.errors import CorruptionError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

UUID_SIZE = 16  # do not change
FENCE = b"ENGINE-WAL-FENCE"  # do not change: a whole object; no uuid has this value

# In the store: do not change. Each begins with its magic, and the CRC32C of all behind that.
_FOOTER = struct.Struct("<IIIHHQI")  # magic, crc, size, version, length of the session's name, n, number of groups
_GROUP = struct.Struct("<QQQQQIH")  # position, size, first offset, next offset, term, crc, length of the segment's name
_TRAILER = struct.Struct("<IIQQIHH")  # magic, crc, position of the first footer, size of all, their number, version, 0
_FOOTER_MAGIC = int.from_bytes(b"ENWF", "little")
_TRAILER_MAGIC = int.from_bytes(b"ENWT", "little")
_VERSION = 1
_CRC_END = 8
TRAILER_SIZE = _TRAILER.size


class LogName(NamedTuple):
    """The log of one session."""

    cluster: str
    session: str

    @property
    def folder(self) -> str:
        return f"wal/{self.cluster}/{self.session}"

    def object(self, n: int) -> str:
        """The name of object n."""
        return f"{self.folder}/{n:012d}"


class WalGroup(NamedTuple):
    """What one append brings: a group of one segment, as its log file has it. The buffers do not change any more."""

    segment: str  # the path of its record in the metadata store
    term: int
    first_offset: int
    next_offset: int
    buffers: Sequence[Buffer]


class StoredGroup(NamedTuple):
    """Where a group lies: `size` bytes at `position` in object n."""

    n: int
    segment: str
    term: int
    first_offset: int
    next_offset: int
    position: int
    size: int
    crc: int


class Footer(NamedTuple):
    """The groups of object n of a session, in the order of their positions."""

    session: str
    n: int
    groups: tuple[StoredGroup, ...]

    def pack(self) -> bytes:
        session = self.session.encode()
        parts = [session]
        for group in self.groups:
            name = group.segment.encode()
            offsets = group.position, group.size, group.first_offset, group.next_offset
            parts += _GROUP.pack(*offsets, group.term, group.crc, len(name)), name
        body = b"".join(parts)
        fields = _FOOTER.size + len(body), _VERSION, len(session), self.n, len(self.groups)
        return _sealed(_FOOTER.pack(_FOOTER_MAGIC, 0, *fields) + body)


def _sealed(image: bytes) -> bytes:
    return image[:4] + crc32c(image[_CRC_END:]).to_bytes(4, "little") + image[_CRC_END:]


def pack_object(
    log: LogName, n: int, uuid: bytes, groups: Sequence[WalGroup], before: Sequence[bytes] = ()
) -> tuple[list[Buffer], bytes]:
    """(the buffers of the object, its own footer). `before`: footers of earlier objects that it repeats."""
    buffers: list[Buffer] = [uuid]
    stored, position = [], UUID_SIZE
    for group in groups:
        crc = size = 0
        for buffer in group.buffers:
            crc = crc32c(buffer, crc)
            size += memoryview(buffer).nbytes
        buffers += group.buffers
        stored.append(StoredGroup(n, *group[:4], position, size, crc))
        position += size
    own = Footer(log.session, n, tuple(stored)).pack()
    size = sum(map(len, before)) + len(own)
    trailer = _sealed(_TRAILER.pack(_TRAILER_MAGIC, 0, position, size, len(before) + 1, _VERSION, 0))
    return [*buffers, *before, own, trailer], own


class Trailer(NamedTuple):
    """Where the footers of an object lie, and how many they are."""

    position: int
    size: int
    count: int  # type: ignore[assignment]

    @staticmethod
    def unpack(data: memoryview, where: str) -> Trailer:
        """Of the last TRAILER_SIZE bytes. Raises CorruptionError, UnsupportedError."""
        if len(data) != _TRAILER.size:
            raise CorruptionError(f"{where}: an object of {len(data)} bytes is too short for a trailer")
        magic, crc, position, size, count, version, _ = _TRAILER.unpack(data)
        if magic != _TRAILER_MAGIC or crc != crc32c(data[_CRC_END:]):
            raise CorruptionError(f"{where}: the trailer fails its checksum")
        _check_version(version, where)
        return Trailer(position, size, count)


def unpack_footers(data: memoryview, count: int, session: str, where: str) -> list[Footer]:
    """The footers of an object of a session. Raises CorruptionError, UnsupportedError."""
    footers, at = [], 0
    for _ in range(count):
        if len(data) - at < _FOOTER.size:
            raise CorruptionError(f"{where}: the footers are cut off")
        magic, crc, size, version, length, n, groups = _FOOTER.unpack_from(data, at)
        image = data[at : at + size]
        if magic != _FOOTER_MAGIC or not _FOOTER.size <= size == len(image) or crc != crc32c(image[_CRC_END:]):
            raise CorruptionError(f"{where}: a footer fails its checksum")
        _check_version(version, where)
        found = _text(image[_FOOTER.size : _FOOTER.size + length], length, where)
        if found != session:
            raise CorruptionError(f"{where}: the object is of session {found!r}")
        footers.append(Footer(found, n, _groups_in(image, _FOOTER.size + length, n, groups, where)))
        at += size
    if at != len(data):
        raise CorruptionError(f"{where}: {len(data) - at} bytes lie between the footers and the trailer")
    return footers


def _groups_in(image: memoryview, at: int, n: int, count: int, where: str) -> tuple[StoredGroup, ...]:
    groups = []
    for _ in range(count):
        if len(image) - at < _GROUP.size:
            raise CorruptionError(f"{where}: the groups of a footer are cut off")
        position, size, first, following, term, crc, length = _GROUP.unpack_from(image, at)
        at += _GROUP.size
        segment = _text(image[at : at + length], length, where)
        at += length
        if position < UUID_SIZE or following < first:
            raise CorruptionError(f"{where}: a group of {segment} lies at {position} and ends at offset {following}")
        groups.append(StoredGroup(n, segment, term, first, following, position, size, crc))
    if at != len(image):
        raise CorruptionError(f"{where}: a footer has {len(image) - at} bytes behind its groups")
    return tuple(groups)


def _text(data: memoryview, size: int, where: str) -> str:
    if len(data) != size:
        raise CorruptionError(f"{where}: a name is cut off")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise CorruptionError(f"{where}: a name is not UTF-8") from None


def _check_version(version: int, where: str) -> None:
    if version != _VERSION:
        raise UnsupportedError(f"{where}: an object of format {version}; this build reads format {_VERSION}")
