# cython: language_level=3
"""Counters that are moved with each frame, each append, each commit."""
cimport cython
from libc.stdint cimport int64_t, uint64_t

# Values counted by bucket.
cdef class Buckets:
    cdef readonly tuple bounds            # upper ends, inclusive; rising
    cdef list ends                        # the same, as floats
    cdef list counted                     # in each bucket, and above the last bound
    cdef readonly double total

    cdef int count(self, double value) except -1

# Messages and bytes, and what they were when each slot of time began.
cdef class Tally:
    cdef public uint64_t messages
    cdef public uint64_t bytes
    cdef object time                      # seconds, monotonic
    cdef readonly object marks            # a deque of (slot, messages, bytes), rising
    cdef int64_t slot                     # of the newest mark

    cdef int add(self, uint64_t messages, uint64_t size) except -1

# Bytes in use, and a limit.
cdef class Usage:
    cdef public int64_t in_flight
    cdef public int64_t limit
    cdef public bint holding              # connections wait until it falls

# Frames in one turn of the loop.
cdef class TurnFrames:
    cdef public int64_t frames
    cdef int64_t budget
    cdef bint counting                    # the end of this turn is scheduled

    cpdef int frame(self, object connection) except -1
    cdef int add(self, int64_t frames) except -1

cdef enum:
    NEWEST = 16                           # newest commits of a segment whose time is known

# A ring: the mark n is at n % NEWEST.
@cython.final
cdef class Marks:
    cdef uint64_t count
    cdef uint64_t[NEWEST] firsts          # the first offset of a commit; rising
    cdef double[NEWEST] times

    cdef void note(self, uint64_t first_offset, double now) noexcept
