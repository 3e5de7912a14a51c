"""A sorted set with cheap changes at any size."""

cdef class SortedItems:
    cdef readonly list chunks      # short sorted lists, none of them empty
    cdef readonly list lasts       # the last item of each chunk
    cdef readonly dict added       # in order of insertion; in no chunk
    cdef readonly dict removed     # likewise; each is in a chunk
    cdef Py_ssize_t chunk_max
    cdef Py_ssize_t unsorted_max
    cdef Py_ssize_t at_once
    cpdef add(self, item)
    cpdef remove(self, item)
    cdef int sort_some(self) except -1
    cdef int sort_these(self, list removed, list added) except -1
    cdef int put_in(self, object item) except -1
    cdef int take_out(self, object item) except -1
