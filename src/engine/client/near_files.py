"""`NearFiles`: a segment's messages from the broker's log files, where these are on this machine and may be read.

The broker says where they lie (SEGMENT_FILES); what is read is checked like what comes over a connection. Files are
opened when they are needed, and read in order. What retention deletes meanwhile is read on if it is open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine._native import log
from engine.aio.files import ReadFile
from engine.errors import CorruptionError, NotFoundError
from engine.limits import LOG_INDEX_BYTES_STEP, READ_BLOCK_SIZE
from engine.wire.chunks import ChunkPool

_WANTED = READ_BLOCK_SIZE + LOG_INDEX_BYTES_STEP  # what it takes to find a whole block behind a mark

OpenFile = Callable[[str], ReadFile]


class NearBlock(NamedTuple):
    """Whole entries, back to back. `messages`: those that are for readers; `skip`: inclusive ranges of the others."""

    data: memoryview
    salt: int
    messages: int
    skip: list[list[int]]


class _Stretch(NamedTuple):
    """As in SEGMENT_FILES."""

    path: str
    opening: bytes
    salt: int
    position: int
    end: int
    next_offset: int


class NearFiles:
    """Loop thread only. `upto`: what is at or above this offset is not here."""

    __slots__ = ("_chunks", "_file", "_hidden", "_left", "_open_file", "_position", "_segment_id", "offset", "upto")

    def __init__(self, segment_id: int, start: int, answer: dict[str, Any], open_file: OpenFile) -> None:
        """`answer`: to SEGMENT_FILES."""
        self.offset = start  # the next one to be read
        self.upto: int = answer["upto"]
        self._segment_id = segment_id
        self._open_file = open_file
        self._left = [_Stretch(*one) for one in answer["files"]][::-1]
        self._hidden: list[list[int]] = answer["hidden"][::-1]
        self._chunks = ChunkPool(_WANTED)
        self._file: ReadFile | None = None
        self._position = 0

    def open(self) -> None:
        """The next file. Raises OSError where that is not to be, NotFoundError for another one than was meant."""
        stretch = self._left[-1]
        file = self._open_file(stretch.path)
        if file.head(len(stretch.opening)) != stretch.opening:
            raise NotFoundError(f"{stretch.path} is another file than the broker's")
        self._file, self._position = file, stretch.position

    async def next(self) -> NearBlock:
        """The block at `offset`, which is below `upto`. Raises OSError, CorruptionError, NotFoundError."""
        if self._file is None:
            self.open()
        stretch, wanted = self._left[-1], _WANTED
        messages = 0
        while not messages:
            size = min(wanted, stretch.end - self._position)
            data = await self._read(size)
            start, stop, first, after, messages, missing = log.cut(
                data, stretch.salt, self._segment_id, self.offset, READ_BLOCK_SIZE, False, self.upto
            )
            self._position += stop
            wanted = max(missing, _WANTED)
            if not messages and (len(data) < size or missing > stretch.end - self._position):
                raise CorruptionError(f"{stretch.path}, position {self._position}: offset {self.offset} is not there")
        self.offset = after
        if after >= stretch.next_offset:
            self._left.pop()
            self.close()
        skip = self._skipped(first, after)
        return NearBlock(data[start:stop], stretch.salt, messages - sum(b + 1 - a for a, b in skip), skip)

    async def _read(self, size: int) -> memoryview:
        """At most so many bytes of the file, which nobody overwrites while there is a view of them."""
        file, chunk = self._file, self._chunks.take(size)
        assert file is not None
        assert chunk.view is not None
        view = chunk.view[:size]
        try:
            return view[: await file.read_into(view, self._position)].toreadonly()
        finally:
            self._chunks.give(chunk, chunk.size)

    def _skipped(self, first: int, after: int) -> list[list[int]]:
        found = []
        while self._hidden and self._hidden[-1][0] < after:
            low, high = self._hidden[-1]
            if high >= first:
                found.append([max(low, first), min(high, after - 1)])
            if high >= after:
                break
            self._hidden.pop()
        return found

    def close(self) -> None:
        """Idempotent."""
        self._file = None
