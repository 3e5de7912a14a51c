# cython: language_level=3
"""Groups of appends of one segment: written by one call each, durable or failed as a whole."""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

# One entry's place in the log.
@cython.final
cdef class Appended:
    cdef readonly uint64_t first_sequence
    cdef readonly uint64_t last_sequence
    cdef readonly int64_t first_offset    # -1: a duplicate whose original's offset is forgotten
    cdef readonly uint32_t count
    cdef readonly bint duplicate

# Stamped entries in one buffer.
@cython.final
cdef class Chunk:
    cdef readonly object data             # a writable buffer of bytes
    cdef readonly uint64_t first_offset
    cdef readonly uint64_t next_offset
    cdef bint grows                       # `data` is a bytearray of its own, of copies

# Appends that go to one file at one position.
@cython.final
cdef class Group:
    cdef readonly object file
    cdef public uint64_t position
    cdef readonly uint64_t first_offset
    cdef public uint64_t next_offset
    cdef public uint64_t size
    cdef public list chunks
    cdef public list waiters              # (waiter, the places of its entries)
    cdef uint32_t salt
    cdef uint64_t segment_id

    cdef int take(self, object data, uint32_t term, int64_t time_ms, uint64_t durable_upto) except -1
    cdef Chunk room_for(self, object data, Py_ssize_t size)

# Where the next append goes: into the open group of a file, or into a new one.
cdef class GroupQueue:
    cdef public object file               # takes the next append, at `position`; None: it needs a new file
    cdef public uint64_t next_offset
    cdef public uint64_t position
    cdef public Group open                # takes the next append, while it has room; None for none
    cdef uint64_t file_size_max, file_messages_max, group_max

    cpdef Group group_for(self, uint64_t size, uint64_t messages)

# Stamp the whole entries in n bytes, one behind the other from `first_offset` on; the offset after the last.
cdef uint64_t stamp_all(uint8_t* p, size_t n, uint32_t salt, uint32_t term, uint64_t first_offset, int64_t time_ms,
                        uint64_t durable_upto, uint64_t segment_id) noexcept nogil
