# cython: language_level=3
"""The headers of entries in a block, for code that routes, counts and times entries and never opens them."""
cimport cython
from libc.stdint cimport int64_t, uint64_t

# One entry of a block, as its header describes it. Fixed after it was made.
@cython.final
cdef class Head:
    # Its bytes in the block: [start, stop).
    cdef readonly Py_ssize_t start, stop
    # Its messages, by offset, inclusive; 0 and count - 1 before the broker has stamped the entry.
    cdef readonly uint64_t first, last
    # The id of its producer, and the sequence ids of its messages, inclusive.
    cdef readonly uint64_t producer, first_sequence, last_sequence
    # When the broker stamped it, in milliseconds since 1970.
    cdef readonly int64_t publish_time_ms
    # Whether it has a deliver-at column.
    cdef readonly bint delayed
