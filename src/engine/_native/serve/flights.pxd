# cython: language_level=3
"""Appends of a producer that are on their way to the disk, and what is acknowledged of them."""
cimport cython
from engine._native.serve.meters cimport Buckets, Tally, Usage

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

# A producer of a connection, as its frames and its answers see it.
cdef class Sender:
    cdef readonly object connection
    cdef readonly object ident
    cdef readonly object hosted
    cdef readonly object name
    cdef public bint closed
    cdef public object in_flight          # a deque of flights, and of what waits like one; in the order of sending
    cdef public object held               # frames that are not appended yet; None: there are none
    cdef public object limited            # what counts for its limits; None: there are none
    cdef public bint refusing             # a frame was refused, and later ones with it
    cdef public object ending             # what to end with, when all frames are answered
    cdef public list sequences            # durable, and not in a receipt yet
    cdef public list offsets
    cdef Buckets latency
    cdef Usage publish
    cdef Tally incoming

    cdef Flight begin(self, object payload)
    cdef int landed(self) except -1

# The handler of SEND.
@cython.final
cdef class SendHandler:
    cdef object unattached                # unattached(connection, header, payload)

cdef tuple take_answered(object in_flight, list sequences, list offsets, list since)
