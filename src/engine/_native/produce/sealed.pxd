# cython: language_level=3
"""Sealed entries on their way to the broker: made from open batches, or from entries that have to be rerouted."""
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from engine._native.produce.builder cimport Builder
from engine._native.format.ranges cimport Routes

cdef enum:
    STEADY_BITS = 8               # low bits of the sequence ids in which keyless messages of one block may differ

# The part of one client in one transaction; the client derives its own class from it.
cdef class TransactionScope:
    cdef readonly uint64_t number         # of the transaction
    cdef readonly uint64_t attempt_number # of the attempt in it; 0 for none
    cdef public object refusal            # the exception that further messages are refused with, or None
    # What is under way: of everything, of entries whose message ids are awaited.
    cdef public Py_ssize_t under_way
    cdef readonly Py_ssize_t waited_for
    # What was sent: entries, and those written, in so many frames. Unless `spread`, each once and over one connection.
    cdef public Py_ssize_t entries
    cdef readonly Py_ssize_t on_wire
    cdef readonly Py_ssize_t frames
    cdef readonly object wire             # that connection; None: nothing is written
    cdef readonly bint spread

    cpdef left(self)

# One sealed entry on its way to the broker.
@cython.final
cdef class SealedEntry:
    # Fixed when it was sealed.
    cdef readonly uint64_t segment_id
    cdef readonly uint32_t bucket         # its number in the segment
    cdef readonly uint32_t count          # messages
    cdef readonly uint64_t first_sequence
    cdef readonly uint64_t last_sequence
    cdef readonly bint keyed
    cdef readonly list waiters            # (waiter, index of its message), or None
    cdef readonly Py_ssize_t pending      # bytes to release() when its outcome is known
    cdef readonly TransactionScope scope  # None outside of transactions
    # Changed by the client.
    cdef public bytes data                # the entry; the client replaces it by a compressed one
    cdef public uint32_t attempts

# The entry of a builder that is not empty. `index` is its number in the routes, or routes.builders for keyless
# messages, whose hash is chosen now: from their sequences where the builder has `block_bits`, else in turn. `waiters`
# is [waiter, index, waiter, index, …] or None; `scope` the transaction's or None. May release the GIL.
cdef SealedEntry build(Routes routes, Builder* b, uint32_t index, list waiters, bytes name, uint64_t producer_id,
                       TransactionScope scope)
# Each message of an entry as an entry of its own, for the same segment. May release the GIL.
cdef list take_apart(SealedEntry entry, int key_hash, bytes name, uint64_t producer_id)
# The messages of an entry as entries under other routes. May release the GIL.
cdef list resplit(Routes routes, SealedEntry entry, int key_hash, bytes name, uint64_t producer_id)
