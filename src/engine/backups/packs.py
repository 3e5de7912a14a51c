"""Packs: many pieces of files in few objects of the destination, written on other threads while the next one fills."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING

from engine._native.format.crc32c import crc32c
from engine.backups.destination import Destination
from engine.backups.manifest import PACKS, Entry, Manifest, Part, check_part
from engine.errors import CorruptionError, NotFoundError
from engine.limits import MIB

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

PACK_SIZE = 32 * MIB
_UNDER_WAY = 2


class PackWriter:
    """Writes the packs of one generation. `packs`: name and size of each that the generation refers to."""

    def __init__(self, destination: Destination, generation: str) -> None:
        self.packs: list[tuple[str, int]] = []
        self.added = 0
        self._destination = destination
        self._generation = generation
        self._places: dict[str, int] = {}
        self._name = ""  # of the pack that fills
        self._written = 0
        self._filling: list[memoryview] = []
        self._size = 0
        self._pool = ThreadPoolExecutor(_UNDER_WAY, thread_name_prefix="engine-backup")
        self._under_way: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def refer(self, pack: tuple[str, int]) -> int:
        """The place of a pack in the list."""
        place = self._places.get(pack[0])
        if place is None:
            place = self._places[pack[0]] = len(self.packs)
            self.packs.append(pack)
        return place

    def add(self, parts: list[Part], data: Buffer) -> None:
        """Write these bytes behind others: `parts` gets their place, by growing its last part if that ends here.

        The buffer belongs to the writer from now on.
        """
        view = memoryview(data).cast("B")
        while len(view):
            some, at = view[: PACK_SIZE - self._size], self._size
            if at == 0:
                self._begin()
            place = self._places[self._name]
            last = parts[-1] if parts else None
            if last is not None and (last.pack, last.at + last.size) == (place, at):
                last.crc, last.size = crc32c(some, last.crc), last.size + len(some)
            else:
                parts.append(Part(place, at, len(some), crc32c(some)))
            self._filling.append(some)
            self._size += len(some)
            self.added += len(some)
            view = view[len(some) :]
            if self._size >= PACK_SIZE:
                self._end()

    def _begin(self) -> None:
        self._written += 1
        self._name = f"{PACKS}/{self._generation}-{self._written:05d}.pack"
        self.refer((self._name, 0))

    def _end(self) -> None:
        """Hand the pack over. At most _UNDER_WAY are in memory besides the one that fills."""
        self.packs[self._places[self._name]] = (self._name, self._size)
        buffers, self._filling, self._size = self._filling, [], 0
        while len(self._under_way) >= _UNDER_WAY:
            self._under_way.popleft().result()
        self._under_way.append(self._pool.submit(self._destination.put, self._name, buffers, large=True))

    def finish(self) -> None:
        """Return when all is stored."""
        if self._size:
            self._end()
        while self._under_way:
            self._under_way.popleft().result()


def read_part(destination: Destination, manifest: Manifest, entry: Entry, part: Part, position: int) -> memoryview:
    """The bytes of a part of a file, checked. `position`: of the part in its file. CorruptionError names the place."""
    name = manifest.packs[part.pack][0]
    try:
        data = destination.read(name, part.at, part.size)
    except NotFoundError as e:
        raise CorruptionError(f"{e}: it has {part.size} bytes of {entry.path}, from position {position} on") from None
    check_part(part, data, name, entry, position)
    return data


def present(packs: Mapping[str, int], pack: tuple[str, int]) -> bool:
    """Whether a pack is there in its size. `packs`: what is there."""
    return packs.get(pack[0]) == pack[1]
