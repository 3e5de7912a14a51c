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
    cdef public bint ended                # the backing that was handed it has answered:
    cdef public object error              # None: it is stored there
    cdef uint32_t salt
    cdef uint64_t segment_id

    cdef int take(self, object data, uint32_t term, int64_t time_ms, uint64_t durable_upto) except -1
    cdef Chunk room_for(self, object data, Py_ssize_t size)

# Where the next append goes, and where each group is; see `storage/commit/groups.py`.
cdef class GroupQueue:
    cdef public object file               # takes the next append, at `position`; None: it needs a new file
    cdef public uint64_t next_offset
    cdef public uint64_t position
    cdef public Group open                # takes the next append, while it has room; None for none
    cdef public list queued               # complete, in order
    cdef public Group ahead               # None for none
    cdef public list written
    cdef public list covered
    cdef public list handed
    cdef uint64_t file_size_max, file_messages_max, group_max
    cdef object known                     # the file whose first offset, and position behind its header, these are
    cdef uint64_t known_first, known_start

    cdef Group group_of(self, uint64_t size, uint64_t messages)
    cdef Group join(self, object data, uint64_t messages, uint32_t term, int64_t time_ms, uint64_t durable_upto)
    cdef int end_open(self) except -1
    cdef Group head_group(self)
    cdef Group pop_head(self)
    cdef list take_for_primary(self, bint writes)
    cdef uint64_t unsynced(self)

# Stamp the whole entries in n bytes, one behind the other from `first_offset` on; the offset after the last.
cdef uint64_t stamp_all(uint8_t* p, size_t n, uint32_t salt, uint32_t term, uint64_t first_offset, int64_t time_ms,
                        uint64_t durable_upto, uint64_t segment_id) noexcept nogil
