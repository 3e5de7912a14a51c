# cython: language_level=3
"""What repeats with each entry that a producer sends: turns of the loop, frames, and receipts."""

# What one sender has to send, in order, and what it has sent and not seen answered. The client's Backlog derives from
# it, which moves entries when an attachment ends.
cdef class Queued:
    cdef public object queue          # deque: to be sent
    cdef public object sent           # deque: not answered

    cpdef list next_frame(self, in_flight, credit, bint joint)

# A producer's way into one segment. The client's Sender derives from it, which attaches, and hears of refusals.
cdef class Outgoing:
    cdef public Queued backlog
    cdef public object owner
    cdef public object link           # while it is open; None: there is no attachment
    cdef public object credit         # of the attachment; None: there is no limit
    cdef public bint sends            # nothing keeps it from sending what is queued
    cdef public long long end         # the segment's next offset at the first attachment; -1: not known
    cdef public long long sent_bytes      # since nothing was unanswered,
    cdef public long long answered_bytes  # and what was answered of that
    cdef object header_of
    cdef object receipt
    cdef str joint_feature

    cpdef transmit(self)
    cdef int send_frame(self, connection, list entries, window) except -1
    cdef int receive(self, list sequences, list offsets) except -1

# What is due of a producer in this turn of the loop or in the next. The client's Outbox derives from it, which makes
# the batcher and what it has in flight.
cdef class Turns:
    cdef public object batcher
    cdef public object in_flight
    cdef public dict senders          # by segment id
    cdef public object failure        # the reason for which it takes nothing more
    cdef public bint pumping          # pump() is due in the next turn
    cdef public bint turning          # send_open() is due in the next turn
    cdef public object delay          # the timer of send_open(), where that is due later
    cdef readonly object loop
    cdef double max_delay
    cdef bint seals                   # entries are packed before they are sent

    cpdef send_open(self)
    cpdef pump(self)
    cdef int turn(self) except -1
