# cython: language_level=3
"""The newest entries of each segment in memory, and what they keep alive.

A plain model is `tests/reference/tails_reference.py`.
"""
from collections import deque

from engine import limits
from engine._native.serve.log import cut

from engine._native.serve.blocks cimport Block
from libc.stdint cimport int64_t, uint64_t

SHRINK = 64
JOIN_MAX = 64 * limits.KIB  # pieces below this size are joined with their neighbours

cdef Py_ssize_t JOINED = JOIN_MAX


cdef class Piece:
    """A run of durable entries, as written."""

    def __init__(self, file, uint64_t first_offset, uint64_t next_offset, data not None):
        self.file = file
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.data = memoryview(data).toreadonly()
        self.size = len(self.data)
        owner = self.memory = self.data.obj
        self.memory_size = len(owner) if isinstance(owner, (bytes, bytearray)) else self.size


cdef class Pieces:
    """The pieces of one segment, oldest first, without a gap."""

    def __init__(self, uint64_t segment_id=0):
        self.segment_id = segment_id
        self.pieces = []

    def push(self, Piece piece not None):
        """Add the newest."""
        self.pieces.append(piece)

    def drop_oldest(self):
        """Forget the oldest, and return it; None: there is none."""
        return self.forget_oldest()

    cdef Piece forget_oldest(self):
        cdef Piece piece
        if self.dropped == len(self.pieces):
            return None
        piece = self.pieces[self.dropped]
        self.pieces[self.dropped] = None
        self.dropped += 1
        if self.dropped >= SHRINK and self.dropped * 2 >= len(self.pieces):
            del self.pieces[:self.dropped]
            self.dropped = 0
        return piece

    def clear(self):
        """Forget all, and return them."""
        forgotten = [piece for piece in self.pieces if piece is not None]
        self.pieces, self.dropped = [], 0
        return forgotten

    def read(self, uint64_t offset, Py_ssize_t bytes_max):
        """The block for a reader at `offset`; None if it is not in memory."""
        return self.block_at(offset, bytes_max)

    cdef Block block_at(self, uint64_t offset, Py_ssize_t bytes_max):
        cdef Py_ssize_t low = self.dropped, high = len(self.pieces), middle
        cdef Piece piece
        cdef Block block
        while low < high:
            middle = (low + high) // 2
            if (<Piece>self.pieces[middle]).first_offset <= offset:
                low = middle + 1
            else:
                high = middle
        if low == self.dropped:
            return None
        piece = self.pieces[low - 1]
        if offset >= piece.next_offset:
            return None
        if piece.first_offset < offset or piece.size > bytes_max:
            block = self.part_of(piece, offset, bytes_max)
        else:
            block = self.join(low - 1, bytes_max)
        self.blocks += 1
        self.bytes_read += block.size
        return block

    cdef Block part_of(self, Piece piece, uint64_t offset, Py_ssize_t bytes_max):
        salt = piece.file.salt
        start, stop, first, after, messages, _ = cut(piece.data, salt, self.segment_id, offset, bytes_max, False)
        return Block([piece.data[start:stop]], salt, first, after, messages)

    # Small pieces are joined with their neighbours into one block.
    cdef Block join(self, Py_ssize_t at, Py_ssize_t bytes_max):
        cdef Piece piece = self.pieces[at], last = piece, following
        cdef list parts = [piece.data]
        cdef Py_ssize_t size = piece.size, i
        for i in range(at + 1, len(self.pieces)):
            following = self.pieces[i]
            size += following.size
            if min(following.size, last.size) > JOINED or size > bytes_max or following.file is not piece.file:
                break
            parts.append(following.data)
            last = following
        return Block(parts, piece.file.salt, piece.first_offset, last.next_offset,
                     last.next_offset - piece.first_offset)


cdef class TailCache:
    """Bounds the pieces of all segments together: the oldest of them all is dropped first.

    A piece may be a small part of the chunk that it was received in, and keeps all of it alive. So chunks count, each
    once for all its pieces.
    """

    def __init__(self, int64_t bytes_max):
        self.bytes_max = bytes_max
        self.held = {}
        self.order = deque()

    def push(self, Pieces pieces not None, Piece piece not None):
        """Keep the newest piece of a segment."""
        self.keep(pieces, piece)

    cdef int keep(self, Pieces pieces, Piece piece) except -1:
        cdef size_t key = <size_t><void*>piece.memory
        pieces.pieces.append(piece)
        self.order.append(pieces)
        held = self.held.get(key)
        if held is None:
            self.used += piece.memory_size
            self.held[key] = 1
        else:
            self.held[key] = held + 1
        if self.used > self.bytes_max:
            self.shrink()
        return 0

    cdef int shrink(self) except -1:
        while self.used > self.bytes_max:
            self.forget((<Pieces>self.order.popleft()).forget_oldest())
        return 0

    cdef int forget(self, Piece piece) except -1:
        cdef size_t key
        if piece is None:
            return 0
        key = <size_t><void*>piece.memory
        held = self.held.pop(key) - 1
        if held:
            self.held[key] = held
        else:
            self.used -= piece.memory_size
        return 0

    @property
    def size(self):
        """Bytes that the pieces keep alive."""
        return self.used

    @property
    def limit(self):
        """The most bytes that they may."""
        return self.bytes_max

    def resize(self, int64_t bytes_max):
        """Apply a new limit."""
        self.bytes_max = bytes_max
        self.shrink()

    def clear(self, Pieces pieces not None):
        """Forget the pieces of one segment."""
        for piece in pieces.clear():
            self.forget(piece)
        self.order = deque(each for each in self.order if each is not pieces)
