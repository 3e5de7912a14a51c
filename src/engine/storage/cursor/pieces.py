"""Images that are larger than a record of the metadata store: cut into pieces, each a record below the key.

    {key}                     the image, or a head that names the pieces of the image in force
    {key}/pieces/{name}/{n}   n = 0, 1, …: its bytes, PIECE_SIZE each but the last

The pieces are written first; then one write of the key, under the condition of its writer, puts them in force, all of
them or none; then the writer deletes those of the images that this one replaced. A name is the digest of the image and
of the version that the write replaces, so no name is used for two images, nor again after its pieces were deleted; and
a writer deletes only names that it knows to be replaced, so never those that another owner is about to put in force.
A crash in between leaves pieces without a head. They are deleted with the record.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

from engine._native.format.crc32c import crc32c
from engine.errors import CorruptionError, EngineError, UnsupportedError
from engine.limits import KIB, METADATA_VALUE_SIZE_MAX
from engine.metadata import keys, unsure
from engine.metadata.store import MetadataStore, OutcomeUnknownError, Record

PIECE_SIZE = 512 * KIB
_FIELD = "pieces"

# In the metadata store: do not change. magic "ENPC", crc of the rest, version, size of the image, its crc, its name.
_HEAD = struct.Struct("<IIIQI16s")
_MAGIC = 0x43504E45
_VERSION = 1
_READS_MAX = 8


class WholeRecord(Record, frozen=True, gc=False):
    """A record with its whole image. `pieces`: the name of the pieces that it was read from; "" for none."""

    pieces: str = ""


class _Head(NamedTuple):
    size: int
    crc: int
    name: str

    def pack(self) -> bytes:
        image = bytearray(_HEAD.pack(_MAGIC, 0, _VERSION, self.size, self.crc, bytes.fromhex(self.name)))
        image[4:8] = crc32c(image[8:]).to_bytes(4, "little")
        return bytes(image)

    def keys(self, key: str) -> list[str]:
        """The keys of its pieces, in order."""
        return [f"{_prefix(key)}{self.name}/{n}" for n in range(-(-self.size // PIECE_SIZE))]


def _head_in(value: bytes, key: str) -> _Head | None:
    """None for a value that is its image."""
    if len(value) != _HEAD.size or int.from_bytes(value[:4], "little") != _MAGIC:
        return None
    _, crc, version, size, image_crc, name = _HEAD.unpack(value)
    if crc != crc32c(value[8:]):
        raise CorruptionError(f"{key}: the head of a record in pieces fails its checksum")
    if version != _VERSION:
        raise UnsupportedError(f"{key}: pieces of format {version}; this build reads format {_VERSION}")
    return _Head(size, image_crc, name.hex())


def name_in(value: bytes, key: str) -> str:
    """The name of the pieces that a record's value puts in force; "" for none. CorruptionError, UnsupportedError."""
    head = _head_in(value, key)
    return "" if head is None else head.name


async def write(metadata: MetadataStore, key: str, image: bytes, replaced: int | None) -> bytes:
    """Write the pieces of an image, if it needs any; the value with which the record puts it in force.

    `replaced`: the version on whose condition that is to be written; None: there is no record. Raises
    UnknownOutcomeError, and what the store raises.
    """
    if len(image) <= METADATA_VALUE_SIZE_MAX:
        return image
    name = hashlib.blake2b(image, digest_size=16, key=str(replaced).encode()).hexdigest()
    head = _Head(len(image), crc32c(image), name)
    for n, piece in enumerate(head.keys(key)):
        await unsure.put(metadata, piece, image[n * PIECE_SIZE : (n + 1) * PIECE_SIZE])
    return head.pack()


async def read(metadata: MetadataStore, key: str) -> WholeRecord | None:
    """The record with its whole image; None: there is none. Raises CorruptionError, UnsupportedError."""
    record = await metadata.newest.get(key)
    return None if record is None else await whole(metadata, record)


async def whole(metadata: MetadataStore, record: Record) -> WholeRecord | None:
    """A record that was read, with its whole image; None: it was deleted since. CorruptionError, UnsupportedError."""
    for _ in range(_READS_MAX):
        head = _head_in(record.value, record.key)
        if head is None:
            return WholeRecord(record.key, record.value, record.stat)
        found = [await metadata.newest.get(key) for key in head.keys(record.key)]
        image = b"".join(piece.value for piece in found if piece is not None)
        if len(image) == head.size and crc32c(image) == head.crc:
            return WholeRecord(record.key, image, record.stat, head.name)
        now = await metadata.newest.get(record.key)
        if now is None:
            return None
        if now.stat.version == record.stat.version:
            raise CorruptionError(f"{record.key}: the pieces of the record are damaged, or some are missing")
        record = now  # replaced since it was read
    raise EngineError(f"{record.key} keeps changing; try again")


async def delete(metadata: MetadataStore, key: str, names: Iterable[str]) -> None:
    """Delete pieces that are in force no more. What fails is left to the deletion of the record's topic."""
    for name in filter(None, names):
        prefix = f"{_prefix(key)}{name}/"
        with contextlib.suppress(EngineError, OutcomeUnknownError):
            await metadata.delete_range(prefix, keys.prefix_end(prefix))


async def names(metadata: MetadataStore, key: str) -> set[str]:
    """The names of all pieces that there are below a key. Read before its record is deleted, and to be deleted then."""
    start, end = _prefix(key), keys.prefix_end(_prefix(key))
    return {piece.split("/")[-2] for piece in await metadata.newest.list_keys(start, end)}


def _prefix(key: str) -> str:
    return f"{key}/{_FIELD}/"
