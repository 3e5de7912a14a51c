# cython: language_level=3
"""What each of several consumers is sent of blocks of entries."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

# Entries back to back that go to one consumer.
cdef struct Piece:
    uint32_t owner
    uint32_t block                # index in the blocks
    Py_ssize_t start
    Py_ssize_t stop

# All that goes to one consumer.
cdef struct Parcel:
    uint32_t pieces
    uint32_t last_piece           # index in `pieces` of all
    uint64_t messages
    Py_ssize_t size
    char* at                      # where the next piece is copied to

cdef class Parcels:
    cdef Piece* pieces            # since begin(), in the order of the entries
    cdef uint32_t pieces_size, pieces_count
    cdef Parcel* parcels          # by consumer
    cdef uint32_t count

    cdef int begin(self, uint32_t consumers) except -1
    cdef int pack(self, uint32_t owner, uint32_t block, Py_ssize_t start, Py_ssize_t stop, int64_t messages) except -1
    cdef int append(self, uint32_t owner, uint32_t block, Py_ssize_t start, Py_ssize_t stop) except -1
    cdef list deliver(self, list blocks, list leases, dict skips)
