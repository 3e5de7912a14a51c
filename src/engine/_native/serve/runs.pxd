# cython: language_level=3
"""Lists of runs of offsets, as many as wanted, in one piece of memory."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

# Offsets first..last that follow each other in a list. `next` is an index, 0 for none.
cdef struct Run:
    uint64_t first
    uint64_t last
    uint32_t next

# Runs. Zeros are the empty list. Invariant: they are in the order of their offsets. Checked by push(), with
# ENGINE_DEBUG=1.
cdef struct Runs:
    uint32_t head
    uint32_t tail
    uint32_t count
    uint64_t offsets              # how many there are in all runs

cdef class RunPool:
    cdef Run* pool                # [0] is not used
    cdef uint32_t size, free
    cdef uint64_t used
    cdef Run* trimmed             # since forget_trimmed()
    cdef uint32_t trimmed_size, trimmed_count

    cdef int push(self, Runs* runs, uint64_t first, uint64_t last) except -1
    cdef uint32_t allot(self) except 0
    cdef void pop(self, Runs* runs) noexcept nogil
    cdef void prepend(self, Runs* runs, Runs* before) noexcept nogil
    cdef int64_t trim(self, Runs* runs, uint64_t position) except -1
    cdef int note(self, uint64_t first, uint64_t last) except -1
    cdef void forget_trimmed(self) noexcept nogil
    cdef bytes merged(self, uint64_t floor)
