# cython: language_level=3
"""The producer's half of a topic: every message to its bucket, every full bucket to a sealed entry."""
cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from engine._native.produce.arguments cimport MessageColumns
from engine._native.produce.buckets cimport Buckets
from engine._native.produce.builder cimport Message

# How far one stretch of add_columns came. Filled without the GIL.
cdef struct Stretch:
    Py_ssize_t at                 # the first message that was not taken
    int64_t full                  # the builder to seal before going on, or -1
    int fault                     # 0, or why it stopped for good
    Py_ssize_t room               # in the account; it stops above that
    Py_ssize_t bytes              # taken: charged bytes
    Py_ssize_t messages

# What several batchers have pending, together.
@cython.final
cdef class Account:
    cdef readonly Py_ssize_t used
    cdef public Py_ssize_t limit
    # Up to which those go that have something pending.
    cdef inline Py_ssize_t shared(self) noexcept:
        return self.limit - (self.limit >> 2)

cdef class Batcher(Buckets):
    # Fixed after construction.
    cdef size_t bytes_max
    cdef uint32_t messages_max
    cdef Py_ssize_t pending_max   # 0 after refuse()
    cdef object refusal           # what refuse() said, or None
    cdef object on_full
    cdef object pack
    cdef object now_ms
    cdef object admit
    cdef Account account
    # Counted; changed with the GIL held only.
    cdef readonly Py_ssize_t pending_bytes
    cdef readonly Py_ssize_t pending_messages
    cdef readonly uint64_t next_sequence
    cdef uint64_t least_sequence      # that a message may say of itself; next_sequence but for the first one
    cdef readonly bint numbered       # a message came with a sequence id of its own

    # One message: point to its value, to its key, then take it. Its sequence id.
    cdef uint64_t accept(self, object value, object key, object sequence_id, object waiter,
                         Message* m) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t accept_value(self, object value, object key, object sequence_id, object waiter,
                               Message* m) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t accept_key(self, object key, object sequence_id, object waiter,
                             Message* m) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t commit(self, Message* m, bint keyed, object sequence_id, object waiter) except? 0xFFFFFFFFFFFFFFFF
    # From now on messages belong to this transaction (NULL: to none); what is open of another one is sealed. The caller
    # is not busy, or it is.
    cdef int enlist(self, PyObject* transaction) except -1
    cdef int enlist_busy(self, PyObject* transaction) except -1
    # Call on_full(); QueueFullError if that made no room.
    cdef int make_room(self) except -1
    # Messages s.at.. of the columns' windows, which end at `stop` or later.
    cdef void stretch(self, MessageColumns columns, Py_ssize_t stop, Stretch* s) noexcept nogil
