# cython: language_level=3
"""Parts of an entry: entries of their own, with consecutive messages of one that is too large for a consumer."""
cimport cython
from engine._native.format.body cimport Columns, Lease
from libc.stdint cimport uint8_t, uint32_t, uint64_t


# Where the columns of a part begin, relative to its start, and what it has of each variable one.
cdef struct Shape:
    size_t size                       # of the whole part
    size_t offsets_size               # of each column of offsets
    size_t keys_size
    size_t values_size
    size_t properties_size


# An entry that parts are copied from. Fixed after construction.
@cython.final
cdef class OpenEntry:
    # A copy of the entry, and its body where that had to be decompressed, else None.
    cdef Lease lease
    cdef const uint8_t* p
    cdef object raw
    cdef Columns columns
    cdef uint32_t salt
    cdef readonly uint32_t count
    cdef readonly uint64_t first      # offset of its first message
    cdef readonly Py_ssize_t nbytes   # of memory that it holds

    # Measure the part of the messages `start` up to `stop`, which are indexes.
    cdef void measure(self, Shape* shape, uint32_t start, uint32_t stop) noexcept nogil
    cdef void copy(self, uint8_t* to, Shape* shape, uint32_t start, uint32_t stop) noexcept nogil
    # Refuse offsets that are not a rising range inside the entry.
    cdef int check_range(self, uint64_t start, uint64_t stop) except -1
