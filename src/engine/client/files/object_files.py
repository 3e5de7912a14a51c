"""`ObjectFiles`: a segment's messages from the objects of its rolled files, read with the client's own rights.

    ask      The owner answers SEGMENT_FILES with objects: key, offsets, size; and with the offsets that no reader gets
             (aborted transactions). `upto` ends what is readable.
    open     The header at the front has to be that of the segment's file with these offsets. A range that is not the
             whole file needs the footer, too: its index says where the range lies.
    read     In order, in pieces, of which some are requested ahead; every entry is checked.
    go on    Behind `upto` the owner is asked again. What the objects do not have, or the store does not give, the
             owner sends over a connection.

No name is given to two objects (R13 of docs/formats/objects.md): what lies at a key is what the owner named, or it was
deleted, after the grace, and the owner is asked (R17).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from msgspec import UnsetType

from engine._native.format.crc32c import crc32c
from engine._native.serve import log
from engine.client.base.object_access import ReadAhead
from engine.client.files.local_files import Block, Hidden
from engine.errors import CorruptionError, NotFoundError, ProtocolError
from engine.limits import READ_BLOCK_SIZE
from engine.storage.file.format import HEADER_SIZE_MAX, Footer, Header, Opening
from engine.storage.objects.ports import ObjectMissingError, ObjectStore
from engine.wire import commands


class _File(NamedTuple):
    """As in SEGMENT_FILES."""

    key: str
    first: int
    end: int
    size: int


class ObjectFiles:
    """Loop thread only. `upto`: the offset behind the last one that can be read.

    All that reads raises NotFoundError where an object is gone, CorruptionError with its key and position, and what the
    store raises.
    """

    by_caller = False  # requests need the loop

    __slots__ = (
        "_ahead",
        "_at",
        "_buffer",
        "_hidden",
        "_left",
        "_name_crc",
        "_pieces",
        "_segment_id",
        "_store",
        "offset",
        "upto",
    )

    def __init__(
        self, name: str, segment_id: int, start: int, answer: commands.Files, store: ObjectStore, ahead: ReadAhead
    ) -> None:
        """`name`: of the segment. `answer`: to SEGMENT_FILES. Raises ProtocolError for a malformed one."""
        self._ahead = ahead
        self.offset = start  # the next one to be read
        self._segment_id = segment_id
        self._name_crc = crc32c(name.encode())
        self._store = store
        self._left, self.upto = _parsed(answer, start)
        self._hidden = Hidden(answer.hidden or [])
        self._pieces: _Pieces | None = None  # of the first file that is left
        self._buffer = memoryview(b"")  # of it, read and not cut yet
        self._at = 0  # the position of the buffer in the file

    async def open(self) -> None:
        """Open the next file."""
        file = self._left[-1]
        whole = self.offset <= file.first and self.upto >= file.end
        try:
            self._pieces = await (self._open_whole if whole else self._open_part)(file)
        except ObjectMissingError:
            raise _gone(file) from None

    async def _open_whole(self, file: _File) -> _Pieces:
        pieces = _Pieces(self._store, self._ahead, file.key, 0, file.size)
        try:
            front = await pieces.next()
            opening, end_position = self._header(file, front)
            while len(front) < opening.data_position:  # the snapshot of a file with many producers
                front = _joined(front, await pieces.next())
        except BaseException:
            pieces.close()
            raise
        pieces.salt, pieces.end = opening.salt, end_position
        self._at, self._buffer = opening.data_position, front[opening.data_position : end_position]
        return pieces

    async def _open_part(self, file: _File) -> _Pieces:
        opening, end_position = self._header(file, await self._store.get_range(file.key, 0, HEADER_SIZE_MAX))
        footer = Footer.unpack(await self._store.get_range(file.key, end_position, file.size), opening.salt)
        if footer is None or footer.end_offset != file.end:
            raise CorruptionError(f"{file.key}, position {end_position}: the footer fails its checksum")
        start = footer.index.position_before(self.offset, opening.data_position)
        end = footer.index.position_after(self.upto, end_position)
        pieces = _Pieces(self._store, self._ahead, file.key, start, end)
        pieces.salt, self._at, self._buffer = opening.salt, start, memoryview(b"")
        return pieces

    def _header(self, file: _File, image: memoryview) -> tuple[Opening, int]:
        """The opening, and where the entries end."""
        header = Header.unpack(bytes(image[:HEADER_SIZE_MAX]), file.key)
        opening, closing = header.opening, header.closing
        if closing is None:
            raise CorruptionError(f"{file.key}, position 64: the file was not closed")
        found = opening.segment_id, opening.name_crc, opening.first_offset, closing.end_offset
        size = closing.end_position + closing.footer_size
        if (*found, size) != (self._segment_id, self._name_crc, file.first, file.end, file.size):
            raise CorruptionError(f"{file.key}, position 0: it is not the file of offsets {file.first} to {file.end}")
        return opening, closing.end_position

    async def next(self) -> Block:
        """The block at `offset`, which is below `upto`."""
        block = None
        while block is None:
            if self._pieces is None:
                await self.open()
            assert self._pieces is not None
            block = self._cut(self._pieces)
            if block is None:
                await self._read_on(self._pieces)
        return block

    def _cut(self, pieces: _Pieces) -> Block | None:
        """The block at the front of the buffer; None when more has to be read."""
        file, data = self._left[-1], self._buffer
        try:
            start, stop, first, after, messages, _ = log.cut(
                data, pieces.salt, self._segment_id, self.offset, READ_BLOCK_SIZE, True, self.upto
            )
        except CorruptionError as e:
            raise CorruptionError(f"{file.key}, position {self._at}: {e}") from None
        if messages and first > self.offset:
            raise CorruptionError(f"{file.key}, position {self._at + start}: offset {self.offset} is missing")
        self._buffer, self._at = data[stop:], self._at + stop
        if not messages:
            return None
        self.offset = after
        if after >= file.end:
            self._left.pop()
            self.close()
        return self._hidden.block(data[start:stop], pieces.salt, messages, first, after)

    async def _read_on(self, pieces: _Pieces) -> None:
        file = self._left[-1]
        if pieces.over:
            raise CorruptionError(f"{file.key}, position {self._at}: offset {self.offset} is missing")
        try:
            self._buffer = _joined(self._buffer, await pieces.next())
        except ObjectMissingError:
            raise _gone(file) from None

    def close(self) -> None:
        """End the requests that are under way. Idempotent."""
        if self._pieces is not None:
            self._pieces.close()
            self._pieces = None
        self._buffer = memoryview(b"")


class _Request(NamedTuple):
    start: int
    stop: int
    data: asyncio.Future[memoryview]


class _Pieces:
    """Bytes [start, end) of an object, in order; some are requested before they are asked for.

    `end` may be lowered: what lies behind it is left out.
    """

    def __init__(self, store: ObjectStore, ahead: ReadAhead, key: str, start: int, end: int) -> None:
        self.salt = 0  # of the file
        self.end = end
        self._store = store
        self._ahead = ahead
        self._key = key
        self._at = start  # the first byte that was not requested
        self._requests: deque[_Request] = deque()
        self._counted = True
        ahead.readers += 1

    @property
    def over(self) -> bool:
        return not self._requests and self._at >= self.end

    async def next(self) -> memoryview:
        """The next piece, which must be there. Raises CorruptionError where the object ends before."""
        # The first tells where the entries end: nothing behind them is requested.
        ahead = self._ahead.pieces if self._at else 0
        while len(self._requests) <= ahead and self._at < self.end:
            stop = min(self._at + self._ahead.piece, self.end)
            reading = asyncio.ensure_future(self._store.get_range(self._key, self._at, stop))
            self._requests.append(_Request(self._at, stop, reading))
            self._at = stop
        request = self._requests.popleft()
        data = memoryview(await request.data)
        if len(data) != request.stop - request.start:
            raise CorruptionError(f"{self._key}, position {request.start + len(data)}: the object ends")
        return data[: max(0, self.end - request.start)]

    def close(self) -> None:
        if self._counted:
            self._counted = False
            self._ahead.readers -= 1
        for request in self._requests:
            if request.data.done() and not request.data.cancelled():
                request.data.exception()  # else it is logged
            request.data.cancel()
        self._requests.clear()


def _joined(front: memoryview, piece: memoryview) -> memoryview:
    return memoryview(b"".join((front, piece))) if len(front) else piece


def _gone(file: _File) -> NotFoundError:
    return NotFoundError(f"the object {file.key}, offsets {file.first} to {file.end}, is not there")


def _parsed(answer: commands.Files, start: int) -> tuple[list[_File], int]:
    """(Files, the first one last; upto)."""
    if isinstance(answer.objects, UnsetType) or answer.hidden is None:
        raise ProtocolError(f"SEGMENT_FILES: the answer {answer!r:.200} is malformed")
    files = [_File(*one) for one in answer.objects]
    at = start
    for file in files:
        if not file.first <= at < file.end or not file.size or not file.key.startswith("log/") or ".." in file.key:
            raise ProtocolError(f"SEGMENT_FILES: the object {tuple(file)!r:.200} is malformed")
        at = file.end
    return files[::-1], min(answer.upto, at)
