# cython: language_level=3
"""Which entries of a producer a segment has: a lane for each producer, kind and bucket."""
cimport cython
from engine._native.serve.log cimport Claim, Seen
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

# A lane in a bucket of one cell: sequences rise. `recent` are its newest entries, oldest first; `base` is the highest
# sequence before them, -1 for none.
cdef class Lane:
    cdef public int64_t base
    cdef Seen* newest
    cdef Py_ssize_t count, room

    cdef int64_t highest(self) noexcept
    cdef int note(self, Claim claim, int64_t offset, int64_t durable) except -1
    cdef int64_t find(self, Claim claim) noexcept

# The lanes of a segment, and what decides whether an entry is new there.
cdef class Lanes:
    # Fixed after open.
    cdef uint16_t[1024] ends          # of the buckets, inclusive, rising
    cdef int bucket_count
    cdef uint32_t start, end          # the segment's hashes, inclusive
    cdef Py_ssize_t lanes_max
    # By (producer id, kind, bucket), those that were silent longest first.
    cdef public dict lanes
    # First sequences that failed and have to come again first, by the same without TRANSACTIONAL.
    cdef public dict refused
    cdef public dict floors           # by producer id, as its entries stated them
    cdef public bint plain            # every bucket is one cell
    # Set by find() for a new entry, so that record() need not search again.
    cdef Claim found
    cdef object area
    cdef tuple key
    cdef Lane lane

    cpdef int bucket_of(self, Claim claim) except -1
    cpdef object find(self, Claim claim)
    cpdef record(self, Claim claim, int64_t offset, int64_t durable)
    cpdef raise_floor(self, object producer_id, object floor)
    cdef Lane lane_for(self, tuple key)
    cdef int check_range(self, Claim claim) except -1
    cdef int admit(self, Claim claim, int bucket) except -1
