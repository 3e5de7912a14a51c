# cython: language_level=3
"""Routes the entries of a segment that several consumers share, bucket by bucket."""
from engine._native.format.body cimport Lease
from engine._native.serve.parcels cimport Parcels
from engine._native.serve.runs cimport RunPool, Runs
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# The unacknowledged offsets of a bucket below the ledger's `next_offset`. Invariant: `sent` lies before `due`. Checked
# by route_block() and release(), with ENGINE_DEBUG=1.
cdef struct Bucket:
    Runs sent                     # sent to `holder`
    Runs due                      # to be sent
    int32_t owner                 # the sharer that receives what is due; -1: none
    int32_t holder                # the sharer that `sent` was sent to; meaningless while that is empty

cdef class BucketLedger:
    cdef uint16_t* ends
    cdef Bucket* buckets
    cdef uint32_t count
    cdef RunPool lists
    cdef Parcels parcels
    cdef readonly uint64_t next_offset
    cdef readonly uint64_t due_runs

    # The bucket of the entry at `p`, whose header is checked here.
    cdef Bucket* find(self, const uint8_t* p, Py_ssize_t room) except NULL
    # Make the new offsets of an entry due, and move `next_offset` behind it. `run` is the index in `unacknowledged` to
    # begin at; returns the index for the next entry.
    cdef Py_ssize_t add_new(
        self, Bucket* bucket, uint64_t first, uint64_t last, list unacknowledged, Py_ssize_t run
    ) except -1
    # Send a whole new entry, of whose bucket nothing is due before it. Returns the number of messages.
    cdef int64_t give_new(self, Bucket* bucket, uint64_t first, uint64_t last) except -1
    cdef int add(self, Bucket* bucket, uint64_t first, uint64_t last) except -1
    # Send what is due of the entry first..last; its other offsets become `skips` of the owner. Returns the number of
    # messages.
    cdef int64_t take(self, Bucket* bucket, uint64_t first, uint64_t last, dict skips) except -1
    # route() for one of the blocks, the `number`th; `run` and the result as of add_new().
    cdef Py_ssize_t route_block(
        self, Lease lease, uint32_t number, int64_t[::1] messages, int64_t[::1] sizes, list unacknowledged,
        Py_ssize_t run, dict skips,
    ) except -1

# The bucket that holds `hash`: the first whose inclusive end is not below it. Invariant: ends rise, the last is 65535.
# Checked by _check_ends(), when the ledger is made.
cdef inline uint32_t bucket_of(const uint16_t* ends, uint32_t buckets, uint16_t hash) noexcept nogil:
    # Halve without a branch: the outcome cannot be predicted, and a conditional move costs less than a misprediction.
    cdef const uint16_t* base = ends
    cdef uint32_t left = buckets, half
    while left > 1:
        half = left // 2
        base += half if base[half - 1] < hash else 0
        left -= half
    return base - ends
