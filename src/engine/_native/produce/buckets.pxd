# cython: language_level=3
"""The open buckets of a producer under one layout, and the entries that were sealed from them."""
from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport uint32_t, uint64_t

from engine._native.produce.builder cimport Builder
from engine._native.format.ranges cimport Routes
from engine._native.produce.sealed cimport TransactionScope

cdef class Buckets:
    # Fixed after construction.
    cdef readonly bytes producer_name
    cdef uint64_t producer_id
    cdef int key_hash
    cdef bint steady              # a keyless message's way follows from its sequence id
    cdef object on_open
    cdef object on_sealed
    # The layout, and one builder per bucket of it; the last builder is the keyless one. Changed by set_layout().
    cdef Routes routes            # None before the first
    cdef Builder* builders
    cdef uint32_t builders_count
    cdef list waiters             # per builder: [waiter, index, waiter, index, …] or None
    # Changed with the GIL held only.
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

    # Wait until nobody is busy.
    cdef int wait(self) except -1
    # Wait, then be busy; until leave().
    cdef int enter(self) except -1
    cdef int leave(self) except -1
    # Run the callbacks that are due. Not while busy.
    cdef int notify(self) except -1
    # Seal one builder that holds something: being busy around it, or as a caller that is.
    cdef int seal_locked(self, uint32_t index) except -1
    cdef int seal_one(self, uint32_t index) except -1
    # Seal all, the one that took a message last at the end; the caller is busy.
    cdef int seal_open(self) except -1
