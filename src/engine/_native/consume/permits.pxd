# cython: language_level=3
"""The credit for messages of a queue consumer."""
cimport cython
from libc.stdint cimport int64_t

# The window that follows the consumer's pace. Times are seconds.
@cython.final
cdef class Pace:
    cdef readonly int64_t window          # messages
    cdef int64_t most                     # the widest window
    # Since the last measurement: messages done, seconds of work, and when the present stretch of work began.
    cdef int64_t counted
    cdef double work
    cdef double since
    cdef bint working                     # there is such a stretch

    cpdef begin(self, double now)
    cpdef pause(self, double now)
    cpdef done(self, int64_t messages, double now)

# Credit over all segments and topics of a consumer.
@cython.final
cdef class Permits:
    cdef int64_t size                     # the window; 0: it follows the pace
    cdef Pace pace
    cdef object now                       # the clock
    cdef readonly int64_t held            # messages that arrived, and are neither acknowledged nor handed back
    cdef int64_t excused                  # of these, what does not count; at most `held`
    cdef dict open                        # credit by attachment
    cdef dict low                         # attachments that have used half of their part, the longest first

    cdef int64_t width(self) noexcept
    cdef int64_t part(self) noexcept
    cdef int grant(self) except -1
    cdef int came(self, object attachment, int64_t messages) except -1
    cpdef change(self, int64_t held, int64_t done=*)
    cpdef ask(self)
