"""The newest blocks of every segment in memory, so that tailing readers need no file and no thread."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

from engine._native.serve import log
from engine.limits import KIB
from engine.storage.file.logfile import Block, LogFile

if TYPE_CHECKING:
    from typing_extensions import Buffer

JOIN_MAX = 64 * KIB  # pieces below this size are joined with their neighbours into one block
SHRINK = 64


def pinned(data: memoryview) -> int:
    """The size of the memory that a view keeps alive."""
    owner = data.obj
    return len(owner) if isinstance(owner, (bytes, bytearray)) else len(data)


class Piece:
    """A run of durable entries, as written."""

    __slots__ = ("data", "file", "first_offset", "memory", "memory_size", "next_offset", "size")

    def __init__(self, file: LogFile, first_offset: int, next_offset: int, data: Buffer) -> None:
        self.file = file
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.data = memoryview(data).toreadonly()
        self.size = len(self.data)
        # The memory that it keeps alive, perhaps with other pieces.
        self.memory = self.data.obj
        self.memory_size = pinned(self.data)


class Tail:
    """The pieces of one segment, oldest first, without a gap."""

    __slots__ = ("_dropped", "_firsts", "_pieces", "_segment_id")

    def __init__(self, segment_id: int) -> None:
        self._segment_id = segment_id
        self._pieces: list[Piece | None] = []
        self._firsts: list[int] = []
        self._dropped = 0  # pieces at the front that are gone

    def push(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._firsts.append(piece.first_offset)

    def drop_oldest(self) -> Piece | None:
        """Forget the oldest, and return it; None: there is none."""
        if self._dropped == len(self._pieces):
            return None
        piece = self._pieces[self._dropped]
        self._pieces[self._dropped] = None
        self._dropped += 1
        if self._dropped >= SHRINK and self._dropped * 2 >= len(self._pieces):
            del self._pieces[: self._dropped], self._firsts[: self._dropped]
            self._dropped = 0
        return piece

    def clear(self) -> list[Piece]:
        """Forget all, and return them."""
        forgotten = [piece for piece in self._pieces if piece is not None]
        self._pieces, self._firsts, self._dropped = [], [], 0
        return forgotten

    def read(self, offset: int, bytes_max: int) -> Block | None:
        """The block for a reader at `offset`; None if it is not in memory."""
        at = bisect_right(self._firsts, offset, self._dropped) - 1
        if at < self._dropped:
            return None
        piece = self._pieces[at]
        assert piece is not None
        if offset >= piece.next_offset:
            return None
        if piece.first_offset < offset or piece.size > bytes_max:
            return self._cut(piece, offset, bytes_max)
        return self._join(at, piece, bytes_max)

    def _cut(self, piece: Piece, offset: int, bytes_max: int) -> Block:
        salt = piece.file.salt
        start, stop, first, after, messages, _ = log.cut(piece.data, salt, self._segment_id, offset, bytes_max, False)
        return Block([piece.data[start:stop]], salt, first, after, messages)

    def _join(self, at: int, piece: Piece, bytes_max: int) -> Block:
        parts, size, last = [piece.data], piece.size, piece
        for i in range(at + 1, len(self._pieces)):
            following = self._pieces[i]
            assert following is not None
            size += following.size
            if min(following.size, last.size) > JOIN_MAX or size > bytes_max or following.file is not piece.file:
                break
            parts.append(following.data)
            last = following
        first, after = piece.first_offset, last.next_offset
        return Block(parts, piece.file.salt, first, after, after - first)


class TailCache:
    """Bounds the tails of all segments together: the oldest piece of them all is dropped first.

    A piece may be a small part of the chunk that it was received in, and keeps all of it alive. So chunks count, each
    once for all its pieces.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._pieces: dict[int, int] = {}  # the number of pieces in each chunk, by its identity
        self._order: deque[Tail] = deque()

    def push(self, tail: Tail, piece: Piece) -> None:
        tail.push(piece)
        self._order.append(tail)
        held = self._pieces.get(id(piece.memory), 0)
        self._pieces[id(piece.memory)] = held + 1
        if not held:
            self._bytes += piece.memory_size
        self._drop()

    def _drop(self) -> None:
        while self._bytes > self._bytes_max:
            self._forget(self._order.popleft().drop_oldest())

    def _forget(self, piece: Piece | None) -> None:
        if piece is not None:
            held = self._pieces.pop(id(piece.memory)) - 1
            if held:
                self._pieces[id(piece.memory)] = held
            else:
                self._bytes -= piece.memory_size

    @property
    def size(self) -> int:
        """Bytes that the pieces keep alive."""
        return self._bytes

    @property
    def limit(self) -> int:
        return self._bytes_max

    def resize(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._drop()

    def clear(self, tail: Tail) -> None:
        for piece in tail.clear():
            self._forget(piece)
        self._order = deque(t for t in self._order if t is not tail)
