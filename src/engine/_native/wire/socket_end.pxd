# cython: language_level=3
"""One end of a socket: what repeats with each frame."""
from libc.stdint cimport uint64_t

from engine._native.wire.frames cimport FrameReader

# Loop thread only. The class of the connection derives from it, and makes and ends it.
cdef class SocketEnd:
    cdef readonly FrameReader reader
    cdef public object loop
    cdef public object transport          # None before there is a connection
    cdef public object speaker            # of another protocol: encode() and frame_received(); None: ours
    cdef public bint closing              # nothing more is sent
    cdef public bint lost                 # the connection has ended
    cdef readonly uint64_t bytes_sent     # of all frames so far, those still queued included
    cdef object pack                      # a header to bytes
    # Frames gathered in this iteration of the loop.
    cdef list gathered
    cdef readonly Py_ssize_t gathered_bytes
    cdef bint uncork_due                  # uncork() is called at the end of this iteration

    cpdef flush(self)
    cpdef gather(self)
    cdef int write(self, list buffers) except -1
