"""`ObjectCache`: what this machine keeps of objects that were read, and of files that were uploaded, up to a size.

Objects are read in pieces of CHUNK_SIZE, each by one ranged GET, however many readers wait for it. Pieces are files
below a directory of their own; which of them are there is known to the process alone, so that a start begins with an
empty directory. A log file of a segment that was uploaded is *held*: it counts like a piece, and stays readable where
it is until it was not read for the longest time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from engine.aio.shielded import shielded
from engine.aio.workers import Workers, run
from engine.limits import OBJECT_CHUNK_SIZE
from engine.storage.disk.config import storage_error
from engine.storage.disk.disk import Disk
from engine.storage.objects.ports import ObjectStore

Evict = Callable[[], None]


@dataclass(slots=True)
class CacheStatistics:
    """`size`, `limit`: bytes. `hits`, `misses`: pieces that were here, and that were fetched."""

    size: int = 0
    limit: int = 0
    hits: int = 0
    misses: int = 0


class _Piece(NamedTuple):
    """Bytes [base, base + size) of an object, fewer where it ends before."""

    name: str
    base: int
    size: int


class ObjectCache:
    """Loop thread only."""

    def __init__(
        self, store: ObjectStore, disk: Disk, workers: Workers, directory: str, bytes_max: int, chunk_size: int = 0
    ) -> None:
        self.store = store
        self._disk = disk
        self._workers = workers
        self._directory = directory
        self._chunk_size = chunk_size or OBJECT_CHUNK_SIZE
        self._kept: dict[Hashable, tuple[int, Evict]] = {}  # the one that was used last is the last
        self._fetching: dict[_Piece, asyncio.Task[bytes]] = {}
        self._paths: dict[_Piece, str] = {}
        self._written = 0
        self.statistics = CacheStatistics(limit=bytes_max)

    async def start(self) -> None:
        """Empty the directory. Raises StorageError."""

        def empty() -> None:
            self._disk.make_directories(self._directory)
            for name in self._disk.list(self._directory):
                self._disk.unlink(f"{self._directory}/{name}")

        try:
            await run(self._workers, empty)
        except OSError as e:
            raise storage_error(e, self._directory) from e

    async def read(self, name: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object, fewer where it ends before. Raises as ObjectStore.get_range()."""
        size = self._chunk_size
        numbers = range(start // size, -(-end // size))
        pieces = (_Piece(name, number * size, size) for number in numbers)
        parts = await asyncio.gather(*(self._part(piece, start, end) for piece in pieces))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_of(self, name: str, at: int, size: int, start: int, end: int) -> bytes:
        """Bytes [start, end) of the small file of `size` bytes that lies at `at` in an object, fetched as one piece.

        Raises as ObjectStore.get_range().
        """
        return await self._part(_Piece(name, at, size), at + start, at + min(end, size))

    async def _part(self, key: _Piece, start: int, end: int) -> bytes:
        """What a piece has of [start, end)."""
        low, high = max(0, start - key.base), min(key.size, end - key.base)
        path = self._paths.get(key)
        if path is not None:
            self.touch(key)
            try:
                data = await run(self._workers, partial(self._read, path, low, high))
            except OSError:  # the disk lost it, or refuses: the store has it
                self._forget(key, path)
            else:
                self.statistics.hits += 1
                return data
        fetching = self._fetching.get(key)
        if fetching is None:
            self.statistics.misses += 1
            fetching = self._fetching[key] = asyncio.ensure_future(self._fetch(key))
            fetching.add_done_callback(lambda _: self._fetching.pop(key, None))
        return (await shielded(fetching))[low:high]

    async def _fetch(self, key: _Piece) -> bytes:
        data = bytes(await self.store.get_range(key.name, key.base, key.base + key.size))
        self._written += 1
        path = f"{self._directory}/{self._written}"
        try:
            await run(self._workers, partial(self._write, path, data))
        except OSError:
            return data  # a full disk costs further requests, and no reader its data
        self._paths[key] = path
        self.hold(key, len(data), partial(self._forget, key, path))
        return data

    def _forget(self, key: _Piece, path: str) -> None:
        self.let_go(key)
        if self._paths.pop(key, None) is not None:
            self._workers.post(partial(self._disk.unlink, path), _ignore)

    def _read(self, path: str, low: int, high: int) -> bytes:
        file = self._disk.open(path)
        try:
            data = bytearray(high - low)
            return bytes(memoryview(data)[: file.read_into(data, low)])
        finally:
            file.close()

    def _write(self, path: str, data: bytes) -> None:
        file = self._disk.create(path)
        try:
            file.write([data], 0)
        finally:
            file.close()

    # -- what is kept ----------------------------------------------------------------------------------------------

    def hold(self, key: Hashable, size: int, evict: Evict) -> None:
        """Count something that is on the disk. `evict`: removes it; called when others were used later."""
        if key in self._kept:
            return
        self._kept[key] = size, evict
        self.statistics.size += size
        while self.statistics.size > self.statistics.limit and len(self._kept) > 1:
            self._evict(next(iter(self._kept)))

    def touch(self, key: Hashable) -> None:
        """It was used."""
        if key in self._kept:
            self._kept[key] = self._kept.pop(key)

    def let_go(self, key: Hashable) -> None:
        """It is not there any more."""
        if key in self._kept:
            self.statistics.size -= self._kept.pop(key)[0]

    def let_go_all(self, keys: Iterable[Hashable]) -> None:
        """These are not there any more."""
        for key in keys:
            self.let_go(key)

    def _evict(self, key: Hashable) -> None:
        evict = self._kept[key][1]
        self.let_go(key)
        evict()

    async def close(self) -> None:
        """End requests that are under way."""
        for fetching in list(self._fetching.values()):
            fetching.cancel()
        if self._fetching:
            await asyncio.wait(list(self._fetching.values()))


def _ignore(_: object, error: BaseException | None) -> None:
    """A piece that could not be removed is removed at the next start."""
