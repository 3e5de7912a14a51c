# cython: language_level=3
"""The producer's half of a topic: every message to its bucket, every full bucket to a sealed entry."""
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint32_t, uint64_t

from engine._native.arguments cimport MessageColumns
from engine._native.builder cimport Builder, Message
from engine._native.ranges cimport Routes

# How far one stretch of add_columns came. Filled without the GIL.
cdef struct Stretch:
    Py_ssize_t at                 # the first message that was not taken
    int64_t full                  # the builder to seal before going on, or -1
    int fault                     # 0, or why it stopped for good
    Py_ssize_t bytes              # taken: charged bytes
    Py_ssize_t messages

cdef class Batcher:
    # Fixed after construction.
    cdef readonly bytes producer_name
    cdef uint64_t producer_id
    cdef int key_hash
    cdef size_t bytes_max
    cdef uint32_t messages_max
    cdef Py_ssize_t pending_max
    cdef object on_open
    cdef object on_sealed
    cdef object on_full
    cdef object pack
    cdef object now_ms
    # The layout, and one builder per bucket of it; the last builder is the keyless one. Changed by set_layout().
    cdef Routes routes
    cdef Builder* builders
    cdef list waiters             # per builder: [waiter, index, waiter, index, …] or None
    # Counted; changed with the GIL held only.
    cdef readonly Py_ssize_t pending_bytes
    cdef readonly Py_ssize_t pending_messages
    cdef readonly Py_ssize_t open_messages
    cdef readonly uint64_t next_sequence
    cdef list sealed              # in the order of sealing, until take()
    cdef dict totals              # (segment id, bucket): (entries, messages, bytes) sealed so far
    # Callbacks that are due at the end of the call.
    cdef bint opened
    cdef bint filled
    # Held while builders change with the GIL released. Invariant: busy is read and written with the GIL only.
    cdef bint busy
    cdef unsigned long owner      # the thread that is busy
    cdef PyThread_type_lock lock

    cdef int wait(self) except -1
    cdef int enter(self) except -1
    cdef int leave(self) except -1
    cdef int notify(self) except -1
    cdef uint64_t accept(self, object value, object key, object sequence_id, object waiter,
                         Message* m) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t accept_value(self, object value, object key, object sequence_id, object waiter,
                               Message* m) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t accept_key(self, object key, object sequence_id, object waiter,
                             Message* m) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t commit(self, Message* m, bint keyed, object sequence_id, object waiter) except? 0xFFFFFFFFFFFFFFFF
    cdef int make_room(self) except -1
    cdef int seal_locked(self, uint32_t index) except -1
    cdef int seal_one(self, uint32_t index) except -1
    cdef int seal_open(self) except -1
    cdef void stretch(self, MessageColumns columns, Py_ssize_t stop, Stretch* s) noexcept nogil
