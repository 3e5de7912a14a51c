"""`SharedMoment`: segments kept as they were at one moment at which several processes stood still.

In the directory of the links there is, besides them:

    <process>.held      what that process had open at the moment. All of these are there before any process goes on
    <segment>.kept      what links of a segment say. The first that is stored counts, whichever process made it

A process that is about to change a segment stores that first. So what is made of files that another process changes
meanwhile comes second, and is dropped.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine.model.backups import KeptSegment
from engine.model.names import SegmentName
from engine.storage.disk.disk import Disk

_LINKS_MAX = 1 << 40  # numbers of one process


class Held(NamedTuple):
    """A segment at the moment: the names of its log files, its durable end, whether it was sealed. `end`: None where
    it is damaged.
    """

    logs: list[str]
    end: int | None
    sealed: bool


class SharedMoment:
    """Of one process. `number`: its own, from 0 on; `into`: the directory of the links."""

    def __init__(self, disk: Disk, into: str, number: int) -> None:
        self.number = number
        self.first_link = 1 + number * _LINKS_MAX
        self._disk = disk
        self._into = into
        self._drafts = itertools.count()
        self._all: dict[SegmentName, Held] | None = None

    def held_file(self, number: int) -> str:
        """Which a process writes at the moment."""
        return f"{self._into}/{number}.held"

    def write(self, held: Mapping[SegmentName, Held]) -> None:
        """What this process has open. At the moment. Raises OSError."""
        draft = self._draft(msgspec.json.encode({str(name): each for name, each in held.items()}))
        self._disk.rename(draft, self.held_file(self.number))

    def held(self) -> Mapping[SegmentName, Held]:
        """What all processes had open. Behind the moment. Raises OSError."""
        if self._all is None:
            found: dict[SegmentName, Held] = {}
            for file in self._disk.list(self._into):
                if file.endswith(".held"):
                    image = Path(f"{self._into}/{file}").read_bytes()
                    held = msgspec.json.decode(image, type=dict[str, Held])
                    found.update((SegmentName.parse(name), each) for name, each in held.items())
            self._all = found
        return self._all

    def find(self, name: SegmentName) -> tuple[KeptSegment | None] | None:
        """What is stored of a segment; None: nothing yet."""
        try:
            image = Path(self._kept_file(name)).read_bytes()
        except FileNotFoundError:
            return None
        return (msgspec.json.decode(image, type=KeptSegment | None),)

    def store(self, name: SegmentName, kept: KeptSegment | None) -> KeptSegment | None:
        """Store this, unless something is there; what is there then."""
        draft = self._draft(msgspec.json.encode(kept))
        try:
            self._disk.link(draft, self._kept_file(name))
        except FileExistsError:
            found = self.find(name)
            assert found is not None
            return found[0]
        finally:
            self._disk.unlink(draft)
        return kept

    def _draft(self, image: bytes) -> str:
        path = f"{self._into}/{self.number}-{next(self._drafts)}.draft"
        Path(path).write_bytes(image)
        return path

    def _kept_file(self, name: SegmentName) -> str:
        return f"{self._into}/{hashlib.blake2b(str(name).encode(), digest_size=16).hexdigest()}.kept"
