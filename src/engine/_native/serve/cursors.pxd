# cython: language_level=3
"""What a subscription has acknowledged in a segment."""

cdef class Acked:
    cdef public object position           # the first offset that is not acknowledged
    cdef public object above              # a set of those that are acknowledged above it
