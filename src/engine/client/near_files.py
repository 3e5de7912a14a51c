"""`NearFiles`: a segment's messages from the broker's log files, where these are on this machine and may be read.

The broker says where they lie (SEGMENT_FILES); what is read is checked like what comes over a connection. Files are
opened when they are needed, and read in order. What retention deletes meanwhile is read on if it is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from engine._native import log
from engine.aio.files import ReadFile
from engine.errors import CorruptionError, NotFoundError, ProtocolError
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
    """As in SEGMENT_FILES. It comes from somebody else."""

    path: str
    opening: bytes
    salt: int
    position: int
    end: int
    next_offset: int

    def check(self) -> None:
        """Raise ProtocolError for what no broker should say."""
        numbers = (self.salt, self.position, self.end, self.next_offset)
        good = isinstance(self.path, str) and self.path.startswith("/") and "\0" not in self.path
        if not good or not isinstance(self.opening, bytes) or not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise ProtocolError(f"the broker says that messages lie in {tuple(self)!r:.200}")


class NearFiles:
    """Loop thread only. `upto`: what is at or above this offset is not here."""

    __slots__ = ("_chunks", "_file", "_hidden", "_left", "_open_file", "_position", "_segment_id", "offset", "upto")

    def __init__(self, segment_id: int, start: int, answer: dict[str, Any], open_file: OpenFile) -> None:
        """`answer`: to SEGMENT_FILES. Raises ProtocolError for one that makes no sense."""
        self.offset = start  # the next one to be read
        self._segment_id = segment_id
        self._open_file = open_file
        self._left, self._hidden, self.upto = _parsed(answer)
        self._chunks = ChunkPool(_WANTED)
        self._file: ReadFile | None = None
        self._position = 0

    async def open(self) -> None:
        """The next file. Raises OSError where that is not to be, NotFoundError for another one than was meant."""
        stretch = self._left[-1]
        self._file, self._position = await asyncio.to_thread(self._opened, stretch), stretch.position

    def _opened(self, stretch: _Stretch) -> ReadFile:
        file = self._open_file(stretch.path)
        if file.head(len(stretch.opening)) != stretch.opening:
            raise NotFoundError(f"{stretch.path} is another file than the broker's")
        return file

    async def next(self) -> NearBlock:
        """The block at `offset`, which is below `upto`. Raises OSError, CorruptionError, NotFoundError."""
        if self._file is None:
            await self.open()
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
            left = stretch.end - self._position
            if not messages and (len(data) < size or missing > left or not (stop or missing)):
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


def _parsed(answer: dict[str, Any]) -> tuple[list[_Stretch], list[list[int]], int]:
    """(Files, hidden ranges, both with the first one last; upto)."""
    try:
        stretches = [_Stretch(*one) for one in answer["files"]]
        hidden = [[int(first), int(last)] for first, last in answer["hidden"]]
        upto = min(int(answer["upto"]), stretches[-1].next_offset if stretches else 0)
    except (KeyError, TypeError, ValueError) as e:
        raise ProtocolError(f"the broker does not say where messages lie, but {answer!r:.200}") from e
    for stretch in stretches:
        stretch.check()
    return stretches[::-1], hidden[::-1], upto
