# cython: language_level=3
"""The newest entries of each segment in memory, and what they keep alive."""
cimport cython
from engine._native.serve.blocks cimport Block
from libc.stdint cimport int64_t, uint64_t

# A run of durable entries, as written.
@cython.final
cdef class Piece:
    cdef readonly object file
    cdef readonly uint64_t first_offset
    cdef readonly uint64_t next_offset
    cdef readonly object data             # a read-only view
    cdef readonly Py_ssize_t size
    cdef readonly object memory           # that it keeps alive, perhaps with other pieces
    cdef readonly Py_ssize_t memory_size

# The pieces of one segment, oldest first, without a gap.
cdef class Pieces:
    cdef readonly list pieces             # None for what is gone at the front
    cdef readonly Py_ssize_t dropped      # pieces at the front that are gone

    cdef uint64_t segment_id
    # Read since it was made.
    cdef readonly uint64_t blocks
    cdef readonly uint64_t bytes_read

    cdef Piece forget_oldest(self)
    cdef Block block_at(self, uint64_t offset, Py_ssize_t bytes_max)
    cdef Block part_of(self, Piece piece, uint64_t offset, Py_ssize_t bytes_max)
    cdef Block join(self, Py_ssize_t at, Py_ssize_t bytes_max)

# Bounds the pieces of all segments together.
cdef class TailCache:
    cdef int64_t bytes_max, used
    cdef dict held                        # the number of pieces in each chunk of memory, by its identity
    cdef object order                     # a deque of the Pieces that each piece went to

    cdef int keep(self, Pieces pieces, Piece piece) except -1
    cdef int shrink(self) except -1
    cdef int forget(self, Piece piece) except -1
