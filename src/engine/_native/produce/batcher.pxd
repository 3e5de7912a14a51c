# cython: language_level=3
"""The producer's half of a topic: every message to its bucket, every full bucket to a sealed entry."""
cimport cython
from cpython.pythread cimport PyThread_type_lock
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from engine._native.format.ranges cimport Routes
from engine._native.produce.arguments cimport MessageColumns
from engine._native.produce.builder cimport Builder, Message
from engine._native.produce.sealed cimport TransactionScope

# How far one stretch of add_columns came. Filled without the GIL.
cdef struct Stretch:
    Py_ssize_t at                 # the first message that was not added
    int64_t full                  # the builder to seal before the next stretch, or -1
    int fault                     # 0, or why the columns cannot be read further
    Py_ssize_t room               # in the account; the stretch stops above that
    Py_ssize_t bytes              # added: charged bytes
    Py_ssize_t messages

# What several batchers have pending, together.
@cython.final
cdef class Account:
    cdef readonly Py_ssize_t used
    cdef public Py_ssize_t limit
    # The limit of batchers that have something pending already.
    cdef inline Py_ssize_t shared(self) noexcept:
        return self.limit - (self.limit >> 2)

cdef class Batcher:
    # Fixed after construction.
    cdef readonly bytes producer_name
    cdef uint64_t producer_id
    cdef int key_hash
    cdef bint steady              # a keyless message's way follows from its sequence id
    cdef size_t bytes_max
    cdef uint32_t messages_max
    cdef size_t entry_max         # bytes of an entry before compression
    cdef Py_ssize_t pending_max   # 0 after refuse()
    cdef object refusal           # the error given to refuse(), or None
    cdef object on_open
    cdef object on_sealed
    cdef object on_full
    cdef object pack
    cdef object now_ms
    cdef object admit
    cdef Account account          # its own after leave_account()
    # The layout, and one builder per bucket of it; the last builder is the keyless one. Changed by set_layout().
    cdef Routes routes            # None before the first
    cdef Builder* builders
    cdef uint32_t builders_count
    cdef list waiters             # per builder: [waiter, index, waiter, index, …] or None
    # Changed with the GIL held only.
    cdef readonly Py_ssize_t pending_bytes
    cdef readonly Py_ssize_t pending_messages
    cdef readonly uint64_t next_sequence
    cdef uint64_t least_sequence      # of an id that a caller may give; next_sequence, except for the first message
    cdef readonly bint numbered       # a caller gave a sequence id
    cdef public uint64_t floor    # every message with a lower sequence is stored; 0 for nothing known
    cdef readonly Py_ssize_t open_messages
    cdef list sealed              # in the order of sealing, until take()
    cdef TransactionScope scope   # that all open messages belong to; None outside of transactions
    cdef object transaction       # as the caller named it
    cdef dict totals              # (segment id, bucket): (entries, messages, bytes) sealed, of the layout's segments
    # Callbacks that are due at the end of the call.
    cdef bint opened
    cdef bint filled
    # Held while builders change with the GIL released. `busy` is read and written with the GIL only: wait(), enter()
    # and leave(), which alone do it, are not nogil.
    cdef bint busy
    cdef unsigned long owner      # the thread that is busy
    cdef PyThread_type_lock lock

    # Wait until no thread is busy.
    cdef int wait(self) except -1
    # Wait, then be busy; until leave().
    cdef int enter(self) except -1
    cdef int leave(self) except -1
    # Run the callbacks that are due. Not while busy.
    cdef int notify(self) except -1
    # Seal one builder that holds something: seal_locked() is busy meanwhile, the caller of seal_one() is already.
    cdef int seal_locked(self, uint32_t index) except -1
    cdef int seal_one(self, uint32_t index) except -1
    # Seal every builder, the one with the newest message last; the caller is busy.
    cdef int seal_open(self) except -1
    # One message: point `m` to its value, to its key, then commit it. Returns its sequence id.
    cdef uint64_t accept(self, object value, object key, object sequence_id, object waiter,
                         Message* m) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t accept_value(self, object value, object key, object sequence_id, object waiter,
                               Message* m) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t accept_key(self, object key, object sequence_id, object waiter,
                             Message* m) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t commit(self, Message* m, bint keyed, object sequence_id, object waiter) except? 0xFFFFFFFFFFFFFFFF
    # From now on messages belong to this transaction (NULL: to none); what is open of another one is sealed first.
    # enlist() is busy meanwhile, the caller of enlist_busy() is already.
    cdef int enlist(self, PyObject* transaction) except -1
    cdef int enlist_busy(self, PyObject* transaction) except -1
    # Call on_full(); QueueFullError if that made no room.
    cdef int make_room(self) except -1
    # Add messages s.at.. of the columns' windows, which end at `stop` or later.
    cdef void stretch(self, MessageColumns columns, Py_ssize_t stop, Stretch* s) noexcept nogil
