# cython: language_level=3
"""Linked lists of runs of offsets, any number of lists in one array."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

# The offsets first..last, both inclusive. `next` is the index of the list's next run, 0 for none.
cdef struct Run:
    uint64_t first
    uint64_t last
    uint32_t next

# One list. All zeros are the empty list. Invariant: runs are in the order of their offsets. Checked by push(), with
# ENGINE_DEBUG=1.
cdef struct Runs:
    uint32_t head
    uint32_t tail
    uint32_t count
    uint64_t offsets              # in all runs together

cdef class RunPool:
    cdef Run* pool                # [0] is not used
    cdef uint32_t size, free
    cdef uint64_t used
    cdef Run* trimmed             # since forget_trimmed()
    cdef uint32_t trimmed_size, trimmed_count

    # Append a run, or extend the last one. Returns how many runs were added, 0 or 1.
    cdef int push(self, Runs* runs, uint64_t first, uint64_t last) except -1
    # A run that is in no list.
    cdef uint32_t allot(self) except 0
    # Drop the first run.
    cdef void pop(self, Runs* runs) noexcept nogil
    # Move `before`, which is not empty, to the front of a list whose offsets are all higher.
    cdef void prepend(self, Runs* runs, Runs* before) noexcept nogil
    # Move what lies below a position to `trimmed`. Returns how many runs were removed.
    cdef int64_t trim(self, Runs* runs, uint64_t position) except -1
    # Add a run to `trimmed`.
    cdef int note(self, uint64_t first, uint64_t last) except -1
    cdef void forget_trimmed(self) noexcept nogil
    # `trimmed` as rising runs, neighbours merged, without those below the floor; packed as offset_set() reads them.
    cdef bytes merged(self, uint64_t floor)
