# cython: language_level=3
"""Entries that a producer has in flight: how they enter, and how they leave when they are acknowledged."""
cimport cython

# Entries that were sent together.
@cython.final
cdef class SentTogether:
    cdef readonly long long ordinal
    cdef readonly double deadline
    cdef Py_ssize_t left              # are outstanding

# What one producer has in flight; `InFlight` of the client derives from it, and fails what does not arrive.
# Invariant: the ordinals and deadlines of `outstanding` never fall from one entry to the next. Checked by enter().
cdef class Outstanding:
    cdef readonly dict outstanding    # entry: SentTogether
    cdef readonly Py_ssize_t flights  # of which something is outstanding
    cdef readonly long long ordinal   # of the last flight
    # Of entries that were split again: piece to entry, entry to the pieces that are on their way.
    cdef readonly dict origins
    cdef readonly dict pieces
    cdef public dict renewed          # entry: a deadline of its own
    cdef readonly object stable       # deque of (flight, sequence)
    cdef long long stable_last        # the flight of its last item: an index below 0 is not to be had here
    cdef readonly object flushes      # deque of (flight, future)
    cdef readonly object room         # deque of futures
    cdef public bint complete         # nothing has failed, except with its transaction
    cdef public object sweep          # the timer of expire()
    cdef readonly object batcher
    cdef readonly object memory
    cdef readonly object window
    cdef readonly object loop
    cdef readonly double send_timeout
    cdef object make_id
    # Totals.
    cdef public long long entries_sent
    cdef public long long entries_resent
    cdef public long long messages_sent
    cdef public long long bytes_sent
    cdef public long long messages_acknowledged
    cdef public long long messages_failed
    cdef public long long messages_duplicate

    cpdef bint take_out(self, entry) except -1
    cpdef left(self, Py_ssize_t freed, Py_ssize_t messages)
    cpdef long long oldest(self) except -1
    cdef bint piece_left(self, piece) except -1
    cdef int resolve(self, entry, list waiters, long long first_offset) except -1
    cdef int raise_stable(self) except -1
    cdef int wake_flushes(self) except -1
