# cython: language_level=3
"""Readers of open segments."""
from libc.stdint cimport int64_t

# Reads from log files that are under way.
cdef class ReadTurns:
    cdef public int64_t bytes             # being read
    cdef object queue                     # of readers that wait for their turn
    cdef object busy                      # whether messages wait to become durable

    cdef bint reads_at_once(self) except -1

# Reads the blocks of a segment, one after the other. Its heir reads what is not in memory.
cdef class BlockReader:
    cdef readonly object hosted
    cdef readonly object step
    cdef readonly object owner_close
    cdef public object pending            # the future of a read under way, or the Waiter of a wait
    cdef public bint waiting              # for messages to become durable
    cdef public int64_t cold              # blocks that workers read before the page cache is tried again

    cdef object next_block(self, int64_t offset, int64_t bytes_max)
    cdef int wait_at(self, int64_t offset) except -1
