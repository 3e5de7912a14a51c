# cython: language_level=3
"""Blocks on their way from a segment to a consumer."""
from engine._native.format.heads cimport Head
from engine._native.serve.cursors cimport Acked
from engine._native.serve.blocks cimport Block
from engine._native.serve.meters cimport Buckets, Tally
from engine._native.serve.readers cimport BlockReader, ReadTurns
from libc.stdint cimport int64_t

# Bytes that are sent in one turn of the loop, and bytes that peers have not read.
cdef class Outgoing:
    cdef public int64_t limit
    cdef public int64_t used              # unsent bytes, as they were last counted
    cdef public int64_t spent             # sent in this turn
    cdef public object timer              # None: the pool is not full
    cdef readonly ReadTurns reads
    cdef readonly object waiting          # connections that wait for a turn, in order
    cdef bint in_turn                     # the end of this turn is scheduled

    cdef int64_t budget(self) except -1
    cdef int begin_turn(self) except -1

# How long blocks were durable before they were sent.
cdef class DeliveryTimes:
    cdef readonly object clock
    cdef readonly object now              # seconds, monotonic
    cdef readonly Buckets durable_to_delivered_s

# One attachment of a consumer.
cdef class Outlet:
    cdef readonly object connection
    cdef public object ident
    cdef readonly object hosted           # the segment
    cdef public object name
    cdef readonly object subscription     # None: a reader without one
    cdef public object attendance         # where there are limits
    cdef public object seeks              # of the subscription, when it was attached
    cdef object header                    # of a block
    cdef public bint closed
    # What the client has room for now.
    cdef public int64_t messages_credit
    cdef public int64_t bytes_credit
    # The window in messages: as the client says where it follows the pace, else the widest credit there was.
    cdef public int64_t window
    cdef public bint paced
    # Sent to all consumers of the subscription, and to this one alone.
    cdef readonly Tally out
    cdef public Tally sent

    cdef bint is_ready(self) except -1
    cpdef bint has_room_for(self, int64_t messages) noexcept
    cpdef bint may_exceed(self, int64_t messages) noexcept
    cdef int send(self, object data, object salt, int64_t messages, object skip, object redelivered) except -1

# One that reads a segment alone and in order.
cdef class LoneOutlet(Outlet):
    cdef readonly BlockReader reader
    cdef Acked acked                      # its cursor
    cdef public int64_t next_offset       # to be sent
    cdef public int64_t part_end          # below it, the entry that the last part was of has been sent
    cdef public object waits_for          # None: nothing
    cdef bint pumping

    cdef int send_all(self) except -1
    cdef int send_read(self, Block block) except -1
    cdef bint all_wanted(self, Block block) except -1
    cdef int at_end(self) except -1

# The consumers of a queue, to which the blocks of a segment are dealt.
cdef class QueueOutlets:
    cdef readonly object hosted
    cdef readonly object subscription
    cdef public list consumers            # Outlets, by priority
    cdef readonly BlockReader reader
    cdef readonly object counts           # of redeliveries
    cdef Acked acked
    cdef public int64_t next_offset       # to be dealt for the first time
    cdef public int64_t asked             # where the last read began
    cdef public object replay             # a set of offsets that are due again
    cdef public object together           # entries of which all of a group go to one consumer; None: there were none
    cdef public bint pumping
    cdef bint costly                      # check after each pump()
    cdef int64_t turn                     # counts turns; the remainder by the number of those that are ready is next

    cpdef list ready(self)
    cdef int64_t first_due(self) except -1
    cdef int64_t acked_end(self) except -1
    cdef int deal_all(self) except -1
    cpdef deal(self, Block block, int64_t start)
    cdef bint deal_whole(self, Block block, int64_t start) except -1
    cdef int deal_in_turns(self, Block block) except -1
    cpdef Py_ssize_t deal_turn(self, Block block, list heads, Py_ssize_t at, Py_ssize_t share, list ready) except -1
    cpdef object next_of(self, list ready)
    cpdef int pass_over(self, Head entry) except -1
    cdef bint all_free(self, int64_t start, int64_t stop) except -1
    cdef int send_new(self, Outlet outlet, object data, Block block, int64_t start, int64_t stop) except -1
    cdef int at_end(self) except -1
