# cython: language_level=3
"""Writes of transactions in one segment, from their appends to the decision."""
cimport cython
from libc.stdint cimport int64_t, uint64_t

from engine._native.serve.held cimport Gathering
from engine._native.serve.landings cimport Landings

# The sequence ids `low` to `high`, inclusive, of one producer.
@cython.final
cdef class Span:
    cdef readonly uint64_t producer
    cdef readonly uint64_t low
    cdef readonly uint64_t high

# Entries of a frame that follow each other in one transaction and attempt: its bytes `start` up to `stop`.
@cython.final
cdef class Run:
    cdef readonly object number           # of the transaction
    cdef readonly object attempt
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t stop
    cdef readonly Py_ssize_t entries
    cdef readonly Span span

# The undecided messages `first` to `last`, inclusive, of one transaction.
@cython.final
cdef class Write:
    cdef readonly uint64_t first
    cdef readonly uint64_t last
    cdef public bint open

# The open writes of one segment: `items` from `head` on, of which the first is open, by their offsets.
@cython.final
cdef class OpenWrites:
    cdef list items
    cdef Py_ssize_t head
    cdef Py_ssize_t count                 # of open ones

    cpdef Write add(self, uint64_t first, uint64_t last)
    cpdef close(self, Write write)

# The frames of one transaction on one connection.
cdef class FrameCounts:
    cdef readonly Py_ssize_t frames       # received
    cdef readonly Py_ssize_t unlogged     # of them, not durable in the log yet
    cdef readonly Py_ssize_t open         # of them, not answered yet
    cdef readonly bint failed
    cdef public object waiting            # a future, of a commit behind them

    cdef int wake(self) except -1
    cdef int go_on(self) except -1
    cdef int over(self, bint failed) except -1

# A write that can be decided once it is both durable and recorded.
cdef class PendingWrite:
    cdef readonly object number           # of the transaction
    cdef readonly object attempt
    cdef readonly Write write
    cdef readonly uint64_t term
    cdef readonly Span span
    cdef public bint durable
    cdef readonly list parts              # of operation records; several where the outcome of a write was unknown
    cdef readonly object version          # of the earliest record; None: there is none yet
    cdef readonly bint recorded           # all its records are known
    cdef public object until              # a future, done once it is recorded

    cpdef add_record(self, object record)
    cdef bint is_visible(self, object view) except -1
    cdef int add_part(self, object part, object version) except -1
    cpdef found(self)

cdef class PendingAppend

# The appends of one segment that are not answered, and the transactions that have ended with something undecided.
cdef class Undecided:
    cdef readonly dict writes             # by transaction: undecided writes, in the order of their offsets
    cdef readonly dict ended              # by transaction: its end, until that is applied
    cdef readonly dict confirming         # appends, in order, so that a simulation repeats
    cdef readonly str segment             # its name
    cdef readonly bytes segment_json      # that, as in a record
    cdef Landings landings                # appends of whose end the log has told
    cdef public Gathering operations
    cdef public object visibility         # of the segment
    cdef OpenWrites undecided             # those of `visibility`; None: not asked for yet
    cdef public object settling           # takes the parts of records that may go
    cdef public set followed              # transactions whose end is heard of
    cdef public bint notifying            # readers are told in a later turn that something was decided

    cdef OpenWrites open_writes(self)
    cpdef bint decided(self, number) except -1
    cpdef gather(self, PendingAppend append)

# One frame of one transaction: what the log tells, what its operation record tells, and its answer.
cdef class PendingAppend:
    cdef readonly Undecided buffer
    cdef readonly object number
    cdef readonly object confirmed        # the answer
    cdef readonly list places             # None: the log does not have it yet
    cdef readonly object error            # of the log
    cdef readonly Span span               # None before begin()
    cdef readonly PendingWrite write      # None: all its entries are duplicates
    cdef readonly FrameCounts sends
    cdef public bint late                 # the transaction had ended before its record was written
    cdef public bint gathers              # its record is to be gathered once the log has it
    cdef public object recording          # a task that finds or writes its record
    cdef public object task               # one that answers it

    cdef int confirm(self) except -1
    cdef int over(self, bint failed) except -1
    cdef int is_recorded(self, object part, object version) except -1
    cpdef go_on(self)

# One append to the log of the frames of several transactions; `numbers` go with `appends`.
@cython.final
cdef class JointAppend:
    cdef list appends
    cdef list numbers                     # of entries of each
    cdef list places                      # None: the log does not have it yet
    cdef readonly object error            # of the log

    cdef int tell(self) except -1
