# cython: language_level=3
"""Routes the entries of a segment that several consumers share, bucket by bucket."""
from engine._native.format.body cimport Lease
from engine._native.serve.blocks cimport Block
from engine._native.serve.cursors cimport Acked
from engine._native.serve.parcels cimport Parcels
from engine._native.serve.readers cimport BlockReader
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

    cpdef int64_t first_due(self, const int64_t[::1] messages, const int64_t[::1] sizes) except -2
    # route(), where the blocks are a list and the credit was checked.
    cdef list route_all(self, list sources, int64_t[::1] messages, int64_t[::1] sizes, list unacknowledged)
    cpdef int forget(self, uint64_t offset) except -1
    cpdef int go_on(self, uint64_t offset) except -1
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

# The consumers that share a segment, to which its blocks are routed.
cdef class SharedOutlets:
    cdef readonly object hosted
    cdef readonly object subscription
    cdef readonly BucketLedger ledger
    cdef readonly BlockReader reader
    cdef public list members              # Outlets, by their number in the ledger; None: it has left
    cdef public bint pumping
    cdef Acked acked
    cdef int64_t asked                    # where the last read began
    # What each member has room for, since the last measure() or route().
    cdef int64_t[::1] messages
    cdef int64_t[::1] sizes
    cdef uint64_t due_runs_max
    cdef uint64_t runs_max
    cdef int64_t unsent_max
    cdef bint crowded

    cdef int pump_all(self) except -1
    # All durable messages are routed, or no consumer takes more: wait for more, or see whether the segment is drained.
    cdef int at_end(self) except -1
    cdef object any_member(self)
    # Note the credit of all members. Whether any is ready for more.
    cdef bint measure(self) except -1
    # The offset to read at: due messages go first. -1 while no member can be sent any.
    cdef int64_t wanted(self) except -2
    # The offset after the last one that was routed, and after the gap that begins there.
    cdef int64_t routed(self) except -1
    cdef int64_t read_size(self) except -1
    # Whether so many runs are due or unacknowledged that nothing new is read for now.
    cdef bint is_crowded(self) except -1
    cpdef list route(self, Block block)
    cdef bint all_free(self, uint64_t start) except -1
    cdef int send_all(self, list parcels) except -1

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
