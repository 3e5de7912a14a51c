# cython: language_level=3
"""What goes on in the next turn of the loop, once, with all that was told until then."""
cimport cython

# While something is due, one call of _go_on() is scheduled.
@cython.final
cdef class Landings:
    cdef object go_on                     # go_on(one)
    cdef dict due                         # in order, so that a simulation repeats

    cpdef add(self, object one)
