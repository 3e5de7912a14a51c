# cython: language_level=3
"""Blocks of whole entries, which readers get."""
cimport cython
from libc.stdint cimport uint32_t, uint64_t

@cython.final
cdef class Block:
    cdef readonly list parts              # where its entries are in memory, as views
    cdef readonly uint32_t salt
    cdef readonly uint64_t first_offset   # of the first entry, which may lie before the offset that was asked for
    cdef readonly uint64_t next_offset    # after the last
    cdef readonly uint64_t messages
    cdef readonly Py_ssize_t size         # bytes

    cdef object joined(self)
