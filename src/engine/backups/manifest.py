"""The manifest of a generation: which files it has, and where their bytes lie in the packs (docs/formats/backup.md).

A file is parts of packs, one behind the other. Most parts of a generation lie in packs of earlier ones: the bytes of a
log never change, so a further backup writes only what was appended.
"""

from __future__ import annotations

import hashlib

import msgspec

from engine._native.format.crc32c import crc32c
from engine.errors import CorruptionError, UnsupportedError
from engine.storage.objects.location import Location

FORMAT = 1

MARK = "engine-backup.json"  # says that a directory, or a prefix, holds backups
GENERATIONS = "generations"
PACKS = "packs"
LOCKS = "locks"
SUFFIX = ".json"


class Part(msgspec.Struct, array_like=True):
    """Bytes of a file: `size` of them from `at` on in a pack. `pack`: its place in the manifest's list."""

    pack: int
    at: int
    size: int
    crc: int  # CRC32C


class Entry(msgspec.Struct, omit_defaults=True):
    """A file. `head`, `body`, `foot`: of a log file, what is before its entries, they, and its footer; others are body.

    `opening`: checksum of the opening block, which no two files share. `head_crc`: of the whole head as the source has
    it. `end`, `position`: where the entries end. `whole`: the source had closed it, so that it never changes. `tail`:
    size and checksum of the last bytes of the body, by which a later backup recognises the file.
    """

    path: str
    body: list[Part]
    head: list[Part] = []
    foot: list[Part] = []
    opening: int = 0
    head_crc: int = 0
    end: int = 0
    position: int = 0
    whole: bool = False
    tail: tuple[int, int] = (0, 0)

    @property
    def parts(self) -> list[Part]:
        """All, in order."""
        return [*self.head, *self.body, *self.foot]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


class Manifest(msgspec.Struct):
    """A generation. Times are milliseconds since 1970, sizes bytes. `added`: what it wrote, of its `size`. `damaged`:
    what of the source fails its checks, each with its place; such bytes are in the backup as they were.
    """

    format: int
    generation: str
    engine: str
    taken_ms: int
    finished_ms: int
    store: str
    starts: int
    version: int
    topics: int
    segments: int
    messages: int
    size: int
    added: int
    damaged: list[str]
    packs: list[tuple[str, int]]
    files: list[Entry]


class _Sealed(msgspec.Struct):
    format: int
    sha256: str
    manifest: msgspec.Raw


def pack(manifest: Manifest) -> bytes:
    """As it is stored: with a checksum of every byte of it."""
    raw = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(manifest.format, hashlib.sha256(raw).hexdigest(), msgspec.Raw(raw)))


def unpack(image: bytes, where: str) -> Manifest:
    """Undo pack(). Raises CorruptionError, UnsupportedError for a manifest of the future."""
    try:
        sealed = msgspec.json.decode(image, type=_Sealed)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CorruptionError(f"{where} is damaged: it is no manifest ({e})") from None
    raw = bytes(sealed.manifest)
    if hashlib.sha256(raw).hexdigest() != sealed.sha256:
        raise CorruptionError(f"{where} is damaged: it fails its checksum")
    if sealed.format > FORMAT:
        raise UnsupportedError(f"{where} has format {sealed.format}; this release of Engine reads up to {FORMAT}")
    try:
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as e:
        raise CorruptionError(f"{where} is damaged: {e}") from None


def check_part(part: Part, data: memoryview, pack_name: str, entry: Entry, position: int) -> None:
    """Raise CorruptionError, with the place, unless these are the part's bytes. `position`: of the part in its file."""
    place = f"{pack_name}, byte {part.at}: {part.size} bytes of {entry.path}, from position {position} on,"
    if len(data) != part.size:
        raise CorruptionError(f"{place} are missing: the pack ends after {part.at + len(data)} bytes")
    if crc32c(data) != part.crc:
        raise CorruptionError(f"{place} fail their checksum")


def manifest_name(generation: str) -> str:
    """The name of a generation's manifest at its destination."""
    return f"{GENERATIONS}/{generation}{SUFFIX}"


def is_url(destination: str) -> bool:
    """Whether it names an object store, and no directory."""
    return "://" in destination and bool(Location.parse(destination))
