# cython: language_level=3
"""Frames that a client's connection receives, handed to the sessions that they are for."""

# A client's connection derives from it, and does what is said of none of its sessions.
cdef class Sessions:
    cdef public dict attached         # by id: what gets the frames with it
    cdef public bint heard            # a frame came since this was cleared
    cdef public object fault          # why this end has dropped the connection; no frame is wanted any more
    cdef dict addressed               # see __init__()

    cdef int hand_on(self, header, payload, tuple fields) except -1

# One session's place on a connection; the link derives from it.
cdef class SessionEnd:
    cdef public object session        # that gets the frames
    cdef object ended_by              # the type of the frame that ends it
