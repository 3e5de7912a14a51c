# cython: language_level=3
"""Writes of transactions without an operation record."""

# The writes of one transaction without a record.
cdef class HeldWrites:
    cdef readonly object number           # of the transaction
    cdef public bint held                 # by a commit
    cdef public list writes
    cdef bint mixed                       # they may be of several connections

    cpdef add(self, writer)
    cdef list theirs(self, object sends)

# The writes of all transactions without a record.
cdef class Gathering:
    cdef readonly dict gathered           # HeldWrites by transaction
    cdef Py_ssize_t parts_max

    cpdef gather(self, number, writer)
