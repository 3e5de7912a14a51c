"""`NamedFiles`: the rolled files of a segment that its record names, read from their objects.

    record   the newest files; before them, those of an index object
    file     its header and its footer are read first, by a request each; then pieces of it, through the cache
    piece    the footer's index says where an offset lies; entries are checked as those of local files are

A file of a former owner was never on this machine's disk; a file of its own may have gone from the cache.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from engine._native.serve import log
from engine._native.serve.blocks import Block
from engine.errors import CorruptionError
from engine.limits import LOG_INDEX_BYTES_STEP
from engine.storage.file.format import HEADER_SIZE_MAX, Footer, Header, Opening
from engine.storage.file.index import Index
from engine.storage.objects.cache import ObjectCache
from engine.storage.objects.names import read_index, shared_of
from engine.storage.objects.ports import ObjectMissingError
from engine.storage.objects.references import RolledFile, SegmentObjects

if TYPE_CHECKING:
    from typing_extensions import Buffer

FILES_MAX = 64  # that a client is told of at a time
OPENED_MAX = 16  # files of one segment whose indexes are kept


class _Opened(NamedTuple):
    opening: Opening
    end_position: int
    marks: Index


class NamedFiles:
    """Loop thread only. `objects`: the record as this broker has read or written it last."""

    def __init__(self, objects: SegmentObjects, cache: ObjectCache, segment_id: int) -> None:
        self.objects = objects
        self.cache = cache
        self._segment_id = segment_id
        self._older: tuple[str, list[RolledFile]] = "", []  # by the name of the index
        self._opened: OrderedDict[tuple[str, int], _Opened] = OrderedDict()

    @property
    def end_offset(self) -> int:
        """What lies below is in named files, or was deleted."""
        return self.objects.named_end

    @property
    def first_offset(self) -> int | None:
        """Of the oldest file; None: there is none."""
        older, files = self.objects.older, self.objects.files
        if older is not None:
            return older.first
        return files[0].first if files else None

    async def all(self) -> list[RolledFile]:
        """Every file, oldest first. Raises CorruptionError, and what the store raises."""
        older = self.objects.older
        if older is None:
            return list(self.objects.files)
        if self._older[0] != older.key:
            try:
                self._older = older.key, await read_index(self.cache.store, older)
            except ObjectMissingError:
                raise CorruptionError(f"the index {older.key} is missing") from None
        return [*(file for file in self._older[1] if file.end > older.first), *self.objects.files]

    async def file_of(self, offset: int) -> RolledFile:
        """The file with an offset, or the oldest one. Raises CorruptionError where there is none."""
        newest = self.objects.files
        files = newest if newest and newest[0].first <= offset else await self.all()
        if not files or offset >= files[-1].end:
            raise CorruptionError(f"offset {offset} is in none of {len(files)} named files")
        return files[max(0, bisect_right(files, offset, key=lambda file: file.first) - 1)]

    async def between(self, start: int, stop: int) -> list[RolledFile]:
        """The files with offsets of [start, stop), FILES_MAX at most, without a gap from `start` on; none where that is
        not in a file of its own object. Raises as all() does.
        """
        newest = self.objects.files
        files = newest if newest and newest[0].first <= start else await self.all()
        found: list[RolledFile] = []
        at = start
        for file in files:
            if file.first < file.end and file.first < stop and start < file.end:
                if file.first > at or len(found) == FILES_MAX or shared_of(file.key) is not None:
                    break
                found.append(file)
                at = file.end
        return found

    async def read(self, offset: int, bytes_max: int) -> Block:
        """The block for a reader at an offset. Raises CorruptionError, and what the store raises."""
        file = await self.file_of(offset)
        offset = max(offset, file.first)
        opened = await self._open(file)
        position = opened.marks.position_before(offset, opened.opening.data_position)
        want = bytes_max + LOG_INDEX_BYTES_STEP
        while position < opened.end_position:
            data = await self._bytes(file, position, min(position + want, opened.end_position))
            start, stop, first, after, messages, missing = self._cut(file, opened, position, data, offset, bytes_max)
            if messages:
                return Block([memoryview(data)[start:stop]], opened.opening.salt, first, after, messages)
            position += start
            want = max(missing, bytes_max)
            if missing > opened.end_position - position:
                break
        raise CorruptionError(f"{file.key}, position {position}: offset {offset} is missing")

    def _cut(
        self, file: RolledFile, opened: _Opened, position: int, data: bytes, offset: int, bytes_max: int
    ) -> tuple[int, int, int, int, int, int]:
        try:
            return log.cut(data, opened.opening.salt, self._segment_id, offset, bytes_max)
        except CorruptionError as e:
            raise CorruptionError(f"{file.key}, position {position}: {e}") from None

    async def offset_before(self, time_ms: int) -> int | None:
        """Where the search for the first message of a time begins; None: all are older. Raises as read() does."""
        file = next((file for file in await self.all() if file.last_ms >= time_ms), None)
        return None if file is None else (await self._open(file)).marks.offset_before_time(time_ms, file.first)

    async def _open(self, file: RolledFile) -> _Opened:
        key = file.key, file.at
        opened = self._opened.get(key)
        if opened is not None:
            self._opened.move_to_end(key)
            return opened
        try:
            header = Header.unpack(bytes(await self._range(file, 0, min(HEADER_SIZE_MAX, file.size))), file.key)
            closing, opening = header.closing, header.opening
            facts = opening.segment_id, opening.first_offset, closing and closing.end_offset
            if closing is None or facts != (self._segment_id, file.first, file.end):
                raise CorruptionError(f"{file.key} is not the file of offsets {file.first} to {file.end}")
            image = await self._range(file, closing.end_position, file.size)
        except ObjectMissingError:
            raise self._missing(file) from None
        footer = Footer.unpack(image, opening.salt)
        if footer is None or footer.end_offset != file.end:
            raise CorruptionError(f"{file.key}, position {closing.end_position}: the footer fails its checksum")
        opened = self._opened[key] = _Opened(opening, closing.end_position, footer.index)
        while len(self._opened) > OPENED_MAX:
            self._opened.popitem(last=False)
        return opened

    async def _range(self, file: RolledFile, start: int, end: int) -> Buffer:
        """Bytes of a file. One that shares its object is fetched whole, and no other's bytes with it."""
        if shared_of(file.key) is not None:
            return await self.cache.read_of(file.key, file.at, file.size, start, end)
        return await self.cache.store.get_range(file.key, start, end)

    async def _bytes(self, file: RolledFile, start: int, end: int) -> bytes:
        try:
            if shared_of(file.key) is not None:
                data = await self.cache.read_of(file.key, file.at, file.size, start, end)
            else:
                data = await self.cache.read(file.key, start, end)
        except ObjectMissingError:
            raise self._missing(file) from None
        if len(data) < end - start:
            raise CorruptionError(f"{file.key} ends before position {end}")
        return data

    def _missing(self, file: RolledFile) -> CorruptionError:
        return CorruptionError(f"the object {file.key}, offsets {file.first} to {file.end}, is missing")
