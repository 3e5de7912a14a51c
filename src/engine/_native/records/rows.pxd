"""Rows of the metadata store's table, their changes, and how changes are applied and made durable."""

from engine._native.records.ordered cimport SortedItems

cpdef bint fits(key, Py_ssize_t more=*) except -1


cdef class Row:
    cdef readonly object record
    cdef readonly object indexes
    cdef public object checksum


cdef class Change:
    cdef readonly object version
    cdef readonly object key
    cdef readonly Row old
    cdef readonly Row new


cdef class Rows:
    cdef readonly dict rows
    cdef public object version
    cdef readonly dict sessions
    cdef readonly object changes
    cdef SortedItems keys_in_order
    cdef object indexes_in_order
    cdef int unindex(self, Row row) except -1
    cdef int index(self, Row row) except -1


cdef class Writes:
    cdef readonly list changes
    cdef readonly dict staged
    cdef Rows table
    cdef object now_ms
    cdef long long version
    cdef object stat_type
    cdef object record_type
    cdef object absent
    cdef Row present(self, object key)
    cdef Row overwritten(self, put)
    cpdef change(self, key, Row old, Row new)
    cpdef put_over(self, put, Row old)
    cpdef put_sequence(self, prefix, value, indexes)
