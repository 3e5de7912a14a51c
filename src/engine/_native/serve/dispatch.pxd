# cython: language_level=3
"""Who is sent which entry of a segment that several consumers share, bucket by bucket."""
from engine._native.format.body cimport Lease
from engine._native.serve.parcels cimport Parcels
from engine._native.serve.runs cimport RunPool, Runs
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# What of a bucket is not acknowledged, below the ledger's `next_offset`. Invariant: `sent` lies before `due`. Checked
# by route_block() and release(), with ENGINE_DEBUG=1.
cdef struct Bucket:
    Runs sent                     # at `holder`
    Runs due                      # at nobody
    int32_t owner                 # who gets what is due; -1: nobody
    int32_t holder                # who was sent what is in `sent`; says nothing while that is empty

cdef class BucketLedger:
    cdef uint16_t* ends
    cdef Bucket* buckets
    cdef uint32_t count
    cdef RunPool lists
    cdef Parcels parcels
    cdef readonly uint64_t next_offset
    cdef readonly uint64_t due_runs

    cdef Bucket* find(self, const uint8_t* p, Py_ssize_t room) except NULL
    cdef Py_ssize_t add_new(
        self, Bucket* bucket, uint64_t first, uint64_t last, list unacknowledged, Py_ssize_t run
    ) except -1
    cdef int64_t give_new(self, Bucket* bucket, uint64_t first, uint64_t last) except -1
    cdef int add(self, Bucket* bucket, uint64_t first, uint64_t last) except -1
    cdef int64_t take(self, Bucket* bucket, uint64_t first, uint64_t last, dict skips) except -1
    cdef Py_ssize_t route_block(
        self, Lease lease, uint32_t number, int64_t[::1] messages, int64_t[::1] sizes, list unacknowledged,
        Py_ssize_t run, dict skips,
    ) except -1

# The bucket that holds `hash`: the first whose inclusive end is not below it. Invariant: ends rise, the last is 65535.
# Checked by _check_ends(), when the ledger is made.
cdef inline uint32_t bucket_of(const uint16_t* ends, uint32_t buckets, uint16_t hash) noexcept nogil:
    # Halves without a branch: which half it is cannot be predicted, and a compare and move costs less than a miss.
    cdef const uint16_t* base = ends
    cdef uint32_t left = buckets, half
    while left > 1:
        half = left // 2
        base += half if base[half - 1] < hash else 0
        left -= half
    return base - ends
