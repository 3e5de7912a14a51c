"""`LocalFiles`: a segment's messages from the broker's log files, where these are on this machine and may be read.

    ask      The owner answers SEGMENT_FILES with stretches: file, position, first offset behind; and with the offsets
             that no reader gets (aborted transactions). `upto` ends what is readable.
    open     A file is opened when it is needed. Its first bytes must be those that the owner has sent: a file of
             another broker or of another time at the same path is never read as this segment.
    read     In order, block by block; every entry is checked like one that arrives over a connection.
    go on    Behind `upto` the owner is asked again. What the files do not have, or the system refuses to read, the
             owner sends over a connection.

A file that retention deletes meanwhile stays readable while it is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from engine._native.serve import log
from engine.aio.files import ReadFile
from engine.errors import CorruptionError, NotFoundError, ProtocolError
from engine.limits import LOG_INDEX_BYTES_STEP, READ_BLOCK_SIZE
from engine.wire import commands
from engine.wire.chunks import ChunkPool

_WANTED = READ_BLOCK_SIZE + LOG_INDEX_BYTES_STEP  # enough for a whole block behind an index entry

OpenFile = Callable[[str], ReadFile]


class Block(NamedTuple):
    """Whole entries, back to back. `messages`: those for readers; `skip`: inclusive ranges of the other offsets."""

    data: memoryview
    salt: int
    messages: int
    skip: list[list[int]]


class Hidden:
    """Inclusive ranges of offsets that no reader gets, as the owner has sent them: rising."""

    __slots__ = ("_left",)

    def __init__(self, ranges: list[list[int]]) -> None:
        self._left = ranges[::-1]

    def block(self, data: memoryview, salt: int, messages: int, first: int, after: int) -> Block:
        """Of entries with the offsets [first, after). Blocks are made in order."""
        skip = []
        while self._left and self._left[-1][0] < after:
            low, high = self._left[-1]
            if high >= first:
                skip.append([max(low, first), min(high, after - 1)])
            if high >= after:
                break
            self._left.pop()
        return Block(data, salt, messages - sum(b + 1 - a for a, b in skip), skip)


class _Stretch(NamedTuple):
    """As in SEGMENT_FILES, not checked yet."""

    path: str
    opening: bytes
    salt: int
    position: int
    end: int
    next_offset: int

    def check(self) -> None:
        """Raise ProtocolError for a malformed one."""
        numbers = (self.salt, self.position, self.end, self.next_offset)
        good = isinstance(self.path, str) and self.path.startswith("/") and "\0" not in self.path
        if not good or not isinstance(self.opening, bytes) or not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise ProtocolError(f"SEGMENT_FILES: the stretch {tuple(self)!r:.200} is malformed")


class LocalFiles:
    """Loop thread only, but for next_now(). `upto`: the offset behind the last one that can be read."""

    by_caller = True  # the receiving thread may read it

    __slots__ = (
        "_chunks", "_file", "_hidden", "_left", "_open_file", "_position", "_segment_id", "_wanted", "offset", "upto"
    )  # fmt: skip

    def __init__(self, segment_id: int, start: int, answer: commands.Files, open_file: OpenFile) -> None:
        """`answer`: to SEGMENT_FILES. Raises ProtocolError for a malformed one."""
        self.offset = start  # the next one to be read
        self._segment_id = segment_id
        self._open_file = open_file
        self._left, self._hidden, self.upto = _parsed(answer)
        self._chunks = ChunkPool(_WANTED)
        self._file: ReadFile | None = None
        self._position = 0
        self._wanted = _WANTED

    async def open(self) -> None:
        """Open the next file. Raises OSError, NotFoundError for another file than the owner meant."""
        await asyncio.to_thread(self._open)

    def _open(self) -> ReadFile:
        stretch = self._left[-1]
        file = self._open_file(stretch.path)
        if file.head(len(stretch.opening)) != stretch.opening:
            raise NotFoundError(f"{stretch.path} is another file than the broker's")
        self._file, self._position = file, stretch.position
        return file

    async def next(self) -> Block:
        """The block at `offset`, which is below `upto`. Raises OSError, CorruptionError, NotFoundError."""
        block = None
        while block is None:
            file = self._file
            if file is None:
                file = await asyncio.to_thread(self._open)
            with self._memory() as view:
                block = self._cut(view, await file.read_into(view, self._position))
        return block

    def next_now(self) -> Block:
        """next() for another thread: blocks. One thread at a time, and not the loop's meanwhile."""
        block = None
        while block is None:
            file = self._file or self._open()
            with self._memory() as view:
                block = self._cut(view, file.read_now(view, self._position))
        return block

    @contextmanager
    def _memory(self) -> Iterator[memoryview]:
        """Memory for the next read; it is not reused while there is a view of it."""
        size = min(self._wanted, self._left[-1].end - self._position)
        chunk = self._chunks.take(size)
        assert chunk.view is not None
        try:
            yield chunk.view[:size]
        finally:
            self._chunks.give(chunk, chunk.size)

    def _cut(self, view: memoryview, count: int) -> Block | None:
        """The block in the first `count` bytes, None when more has to be read. Raises CorruptionError."""
        stretch, data = self._left[-1], view[:count].toreadonly()
        start, stop, first, after, messages, missing = log.cut(
            data, stretch.salt, self._segment_id, self.offset, READ_BLOCK_SIZE, False, self.upto
        )
        self._position += stop
        self._wanted = max(missing, _WANTED)
        if not messages:
            if len(data) < len(view) or missing > stretch.end - self._position or not (stop or missing):
                raise CorruptionError(f"{stretch.path}, position {self._position}: offset {self.offset} is missing")
            return None
        self.offset, self._wanted = after, _WANTED
        if after >= stretch.next_offset:
            self._left.pop()
            self.close()
        return self._hidden.block(data[start:stop], stretch.salt, messages, first, after)

    def close(self) -> None:
        """Close the open file. Idempotent."""
        self._file = None


def _parsed(answer: commands.Files) -> tuple[list[_Stretch], Hidden, int]:
    """(Files, the first one last; what is hidden; upto)."""
    if answer.files is None or answer.hidden is None:
        raise ProtocolError(f"SEGMENT_FILES: the answer {answer!r:.200} is malformed")
    stretches = [_Stretch(*one) for one in answer.files]
    upto = min(answer.upto, stretches[-1].next_offset if stretches else 0)
    for stretch in stretches:
        stretch.check()
    return stretches[::-1], Hidden(answer.hidden), upto
