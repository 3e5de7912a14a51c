# cython: language_level=3
"""What the program of a queue consumer has received and not acknowledged."""
from engine._native.consume.receiving cimport Inbox
from libc.stdint cimport int64_t, uint64_t

# What was queued, and received of it, and when.
cdef class Unacknowledged:
    cdef readonly object timeout          # seconds; None: nothing expires
    cdef readonly int64_t total           # messages that are queued or held
    cdef readonly int64_t told            # of `total`, what changed() has told
    cdef object now                       # the clock
    cdef int64_t _arrived                 # messages in `waiting`
    cdef object waiting                   # deque of blocks, in the order of arrival
    cdef readonly dict _held              # {segment: offsets}
    cdef readonly object _slots           # deque of (when it expires, {segment: offsets} that were received before)

    cdef int queue(self, object segment_id, uint64_t first, int64_t count, object offsets) except -1
    cdef int settle_to(self, int64_t waiting) except -1
    cdef int receive(self, object segment_id, uint64_t first, int64_t count, object offsets) except -1
    cpdef take(self, segment_id, offsets)

# What a queue consumer does with each block and each receive. It has no fields, as those that it is of.
cdef class QueueInbox(Inbox):
    pass
