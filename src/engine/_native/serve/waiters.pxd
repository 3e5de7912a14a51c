# cython: language_level=3
"""Readers that wait for messages to become durable."""
cimport cython
from libc.stdint cimport uint64_t

# One that waits. Nothing is called once it has given up.
@cython.final
cdef class Waiter:
    cdef uint64_t offset
    cdef object call                      # None: it has given up, or was called

    cpdef cancel(self)

@cython.final
cdef class Waiters:
    cdef list waiting
    cdef object due                       # a deque of those to be called
    cdef bint scheduled

    cdef Waiter join(self, uint64_t offset, object call, bint done)
    cdef int wake_below(self, uint64_t below) except -1
    cdef int schedule(self) except -1
