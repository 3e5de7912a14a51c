"""The newest blocks of every segment in memory, so that tailing readers need no file and no thread."""

from __future__ import annotations

from bisect import bisect_right

from engine._native.serve import log
from engine._native.serve.tails import Piece, Pieces
from engine.limits import KIB
from engine.storage.file.logfile import Block

JOIN_MAX = 64 * KIB  # pieces below this size are joined with their neighbours into one block


class Tail(Pieces):
    """The pieces of one segment, oldest first, without a gap."""

    __slots__ = ("_segment_id",)

    def __init__(self, segment_id: int) -> None:
        super().__init__()
        self._segment_id = segment_id

    def read(self, offset: int, bytes_max: int) -> Block | None:
        """The block for a reader at `offset`; None if it is not in memory."""
        at = bisect_right(self.firsts, offset, self.dropped) - 1
        if at < self.dropped:
            return None
        piece = self.pieces[at]
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
        for i in range(at + 1, len(self.pieces)):
            following = self.pieces[i]
            assert following is not None
            size += following.size
            if min(following.size, last.size) > JOIN_MAX or size > bytes_max or following.file is not piece.file:
                break
            parts.append(following.data)
            last = following
        first, after = piece.first_offset, last.next_offset
        return Block(parts, piece.file.salt, first, after, after - first)
