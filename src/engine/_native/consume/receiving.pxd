# cython: language_level=3
"""Receives and blocks of one consumer."""
cimport cython
from libc.stdint cimport int64_t

# A receive that waits.
@cython.final
cdef class Wait:
    cdef public object future             # ends with True when there may be a message, False at its timeout
    cdef object timer                     # of its timeout; None: it has none

    cpdef wake(self, bint outcome)

# How far a segment arrived, and is acknowledged; see client/consume/progress.py.
cdef class Reached:
    cdef public int64_t expected
    cdef public int64_t arrived
    cdef public int64_t confirmed

    cpdef arrive(self, int64_t expected)

# Runs of offsets that name no message.
cdef class Skipped:
    cdef readonly list runs               # [start, stop), rising

    cpdef skip(self, offset)

# What is received and not consumed, summed over the shares.
cdef class Holdings:
    cdef public int64_t held              # bytes
    cdef public int64_t attachments

    cpdef change(self, int64_t held, int64_t attachments)

# One receiver's part of it.
@cython.final
cdef class Share:
    cdef Holdings holdings
    cdef readonly int64_t held
    cdef readonly int64_t attachments

    cdef int set_to(self, int64_t held, int64_t attachments) except -1

# An attachment, as its frames see it.
cdef class Arriving:
    cdef readonly object owner            # the consumer
    cdef public bint closed               # frames are ignored
    cdef public bint broken               # nothing is delivered, see client/consume/attachment.py
    cdef readonly bint ordered            # blocks arrive in the order of their offsets
    cdef readonly bint by_cursor          # what lies below the cursor is not for the consumer
    cdef object message                   # the type of the frames with messages

# What of a consumer repeats with each message. They have no fields: the state of a consumer is its __dict__, which
# its twin shares (client/base/owned.py).
cdef class Receives:
    pass

cdef class Inbox(Receives):
    pass
