# cython: language_level=3
"""The newest entries of each segment in memory, and what they keep alive.

They are read by `storage/file/tail.py`.
"""
from collections import deque

from libc.stdint cimport int64_t, uint64_t

SHRINK = 64


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

    def __init__(self):
        self.pieces, self.firsts = [], []

    def push(self, Piece piece not None):
        """Add the newest."""
        self.pieces.append(piece)
        self.firsts.append(piece.first_offset)

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
            del self.firsts[:self.dropped]
            self.dropped = 0
        return piece

    def clear(self):
        """Forget all, and return them."""
        forgotten = [piece for piece in self.pieces if piece is not None]
        self.pieces, self.firsts, self.dropped = [], [], 0
        return forgotten


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
        pieces.firsts.append(piece.first_offset)
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
