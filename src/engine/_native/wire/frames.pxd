# cython: language_level=3
"""Frames: cut out of what a connection receives, and put together to be sent."""
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

# `size` bytes of memory that views of the bytes below `used` are lent out of.
# Invariant: bytes below `used` are never written again while a view of them exists. Checked by lent().
@cython.final
cdef class Chunk:
    cdef readonly bytearray memory
    cdef public object view           # of all of it; None while it is retired
    cdef readonly Py_ssize_t size
    cdef public Py_ssize_t used

# The chunks of one event loop. `passed()` is called when `taken` passes `limit`.
cdef class Chunks:
    cdef readonly Py_ssize_t chunk_size
    cdef public Py_ssize_t limit      # 0: none
    cdef public Py_ssize_t taken      # bytes of the chunks that receivers hold now
    cdef Chunk current
    cdef object retired               # deque of full chunks, oldest first

    cdef Chunk find(self, Py_ssize_t room)
    cdef int retire(self, Chunk chunk) except -1
    cdef Chunk reusable(self)

# Owns `chunk`, in which [start, end) is received and not delivered; the frame at `start` takes `needed` bytes.
cdef class FrameReader:
    cdef public Py_ssize_t frame_size_max
    cdef public bint paused
    cdef readonly uint64_t bytes_received
    cdef readonly Py_ssize_t header_size  # of the frame that is, or was last, delivered
    cdef Chunks pool
    cdef public object deliver_to     # called with the header and the payload of each frame
    cdef public object recognise      # called with the first bytes: a speaker of another protocol, or None; once
    cdef object speaker               # cuts and gets the frames of another protocol: frame_size(), frame_received()
    cdef tuple decoders               # by command: what decodes its header; None: no such command
    cdef tuple checked                # by command, see __init__()
    cdef object refuse                # see __init__()
    cdef Chunk chunk
    cdef Py_ssize_t start
    cdef Py_ssize_t end
    cdef Py_ssize_t needed
    cdef bint delivering

    cpdef get_buffer(self)
    cpdef received(self, Py_ssize_t size)
    cpdef deliver(self)
    cpdef release(self)
    cdef Chunk move_to(self, Chunk target)
    cdef int deliver_one(self) except -1
    cdef bint is_sound(self, header, tuple sound_if) except -1
    cdef int deliver_foreign(self, Chunk chunk) except -1
    cdef int check_prefix(self, uint64_t total, uint8_t kind, uint32_t header_size) except -1

# A frame as buffers to write one after the other; `size` is set to that of all.
cdef list put_together(object command, object packed, object payload, uint64_t* size)
