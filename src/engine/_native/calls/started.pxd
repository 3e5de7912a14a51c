"""A future of the event loop that is also a coroutine."""

cdef class Started:
    cdef readonly object future
    cdef object steps              # of `future`, while this is driven as a coroutine
    cdef object __weakref__


cdef class Callback:
    cdef object function
    cdef Started owner
