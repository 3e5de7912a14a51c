"""Names of the objects of rolled files, and of the indexes of older files.

log/{cluster}/{segment}/{first:020d}-{term}-{session}-{try}.log      R13: no name is uploaded twice
log/{cluster}/{segment}/{first:020d}-{term}-{session}-{try}.index
log/{cluster}/shared/{number:012d}-{session}.logs                    R18: files of several segments, numbered by session

A session counts its tries over all segments; so a name is never drawn twice, even where two segments share a folder,
as those with very long names may. Which object a segment's record names is all that counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from engine.errors import CorruptionError
from engine.storage.objects.ports import ObjectStore
from engine.storage.objects.references import OlderFiles, RolledFile

PART_SIZE_MAX = 160  # characters of one component of a segment's path
FILE, INDEX = "log", "index"

_OTHER = re.compile(r"[^A-Za-z0-9_.-]")
_SHARED = re.compile(r"log/[^/]+/shared/(\d{12})-([a-z0-9-]+)\.logs")
_NAME = re.compile(rf"\d{{20}}-\d+-([a-z0-9-]+)-\d+\.(?:{FILE}|{INDEX})")


def folder(cluster: str) -> str:
    """Of all files of a cluster."""
    return f"log/{cluster}"


def session_of(name: str) -> str | None:
    """The session that uploaded an object; None: it is no name of this module."""
    shared = shared_of(name)
    if shared is not None:
        return shared.session
    found = _NAME.fullmatch(name.rpartition("/")[2])
    return None if found is None else found[1]


class Shared(NamedTuple):
    """Which object that segments share: `number` of a session."""

    session: str
    number: int


def shared_of(name: str) -> Shared | None:
    """None: it is not the name of an object that segments share."""
    found = _SHARED.fullmatch(name)
    return None if found is None else Shared(found[2], int(found[1]))


class FileNames:
    """The names that one session gives."""

    def __init__(self, cluster: str, session: str) -> None:
        self._cluster = cluster
        self.session = session
        self._tries = 0
        self._shared = 0
        self._unsettled: set[int] = set()

    @property
    def settled(self) -> int:
        """R18: shared objects of lower numbers are named in no further record."""
        return min(self._unsettled, default=self._shared)

    def next_shared(self) -> str:
        """A name for an object of several segments that was never given; unsettled until settle()."""
        number, self._shared = self._shared, self._shared + 1
        self._unsettled.add(number)
        return f"{folder(self._cluster)}/shared/{number:012d}-{self.session}.logs"

    def settle(self, name: str) -> None:
        """R18: every naming of a shared object has ended, and its outcome is known."""
        shared = shared_of(name)
        assert shared is not None
        self._unsettled.discard(shared.number)

    def next(self, segment: str, first: int, term: int, kind: str = FILE) -> str:
        """A name that was never given. `segment`: the path of its record."""
        self._tries += 1
        parts = "/".join(_plain(part) for part in segment.split("/") if part)
        return f"{folder(self._cluster)}/{parts}/{first:020d}-{term}-{self.session}-{self._tries}.{kind}"


def _plain(part: str) -> str:
    """Characters that a store may refuse, or a library rewrite, are spelled as =XX."""
    if part in (".", ".."):
        return part.replace(".", "=2E")
    return _OTHER.sub(lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), part)[:PART_SIZE_MAX]


async def write_index(store: ObjectStore, name: str, files: Sequence[RolledFile]) -> OlderFiles:
    """Store the list of these files. Raises UnknownOutcomeError, and what the store raises."""
    image = msgspec.json.encode(files)
    await store.put_multipart(name, [image], len(image))
    return OlderFiles(name, files[0].first, files[-1].end, len(files), sum(file.size for file in files))


async def read_index(store: ObjectStore, older: OlderFiles) -> list[RolledFile]:
    """The files that are there of an index. Raises ObjectMissingError, CorruptionError, and what the store raises."""
    try:
        files = msgspec.json.decode(await store.get(older.key), type=list[RolledFile])
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise CorruptionError(f"{older.key}: {e}") from e
    if not files or files[-1].end != older.end:
        raise CorruptionError(f"{older.key}: the index does not end at offset {older.end}")
    return [file for file in files if file.end > older.first]
