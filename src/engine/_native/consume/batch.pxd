# cython: language_level=3
"""Received blocks decoded into entries, and batches of their messages."""
cimport cython
from engine._native.consume.message cimport Message, Origin, Slice
from libc.stdint cimport uint32_t


# A delivery of several slices. Fixed after construction, except for `starts`, which is filled in on first use.
@cython.final
cdef class MessageBatch:
    cdef Origin origin
    cdef list parts                   # of Slice, none empty
    cdef Py_ssize_t count             # messages
    cdef list starts                  # index of each slice's first message

    cdef Message at(self, Py_ssize_t index)
    cdef MessageBatch between(self, Py_ssize_t start, Py_ssize_t stop)

# A batch of parts that were made for `origin`; `count` messages.
cdef MessageBatch batch_of(Origin origin, list parts, Py_ssize_t count)


@cython.final
cdef class MessageIterator:
    cdef list parts
    cdef Py_ssize_t following         # index of the slice after the current one
    cdef Slice slice
    cdef uint32_t index
    cdef uint32_t stop


@cython.final
cdef class ArrowStream:
    cdef list parts                   # of Slice
    cdef bint origin                  # producer_name and sequence_id are columns
