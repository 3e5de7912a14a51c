# cython: language_level=3
"""Appends of a producer that are on their way to the disk, and what is acknowledged of them."""
cimport cython

# One append of a producer: in place of a future, whose callbacks would each be a turn of the loop.
# Invariant: `over` is set once, with `places`, `error` or `dropped`. Checked by land().
@cython.final
cdef class Flight:
    cdef readonly object owner            # told once it is over, perhaps together with others
    cdef readonly object payload          # the entries
    cdef readonly double since            # when it began
    cdef object tell                      # tell(owner)
    cdef bint over
    cdef bint dropped                     # no answer is wanted
    cdef list places
    cdef object error

    cdef int land(self, list places, object error) except -1
