# cython: language_level=3
"""The payloads that one call of route() sends, one for each consumer."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

# Entries back to back that are sent to one consumer.
cdef struct Piece:
    uint32_t owner
    uint32_t block                # index in the blocks
    Py_ssize_t start
    Py_ssize_t stop

# All pieces for one consumer.
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

    # Forget all parcels; `consumers` is the number of the consumers from now on.
    cdef int begin(self, uint32_t consumers) except -1
    # Add bytes start..stop of a block, in which `messages` are for the owner, to its parcel.
    cdef int pack(self, uint32_t owner, uint32_t block, Py_ssize_t start, Py_ssize_t stop, int64_t messages) except -1
    cdef int append(self, uint32_t owner, uint32_t block, Py_ssize_t start, Py_ssize_t stop) except -1
    # (consumer, payload, messages, skip) for each that is sent anything; `leases` are of the blocks.
    cdef list deliver(self, list blocks, list leases, dict skips)
