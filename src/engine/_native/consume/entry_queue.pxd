# cython: language_level=3
"""The queue between a connection that delivers entries and a user who receives messages."""
cimport cython
from engine._native.consume.batch cimport MessageBatch
from engine._native.consume.bucket_marks cimport BucketMarks
from engine._native.format.entry cimport Entry
from engine._native.consume.message cimport Message, Slice
from libc.stdint cimport uint32_t, uint64_t


# Entries in the order they arrived, popped by message or by batch.
@cython.final
cdef class EntryQueue:
    # Fixed.
    cdef readonly str topic
    cdef object decode
    cdef object decompress
    cdef object on_open
    # The rest changes under `lock` and with `busy` set: making objects may run the garbage collector, which may run any
    # code and switch threads. Only the short way of pop_message() goes without.
    cdef cython.pymutex lock
    cdef bint busy
    cdef object make_id
    # The waiting slices: items[head:], none empty. Of the first, the messages before `front` were popped.
    cdef list items
    cdef Py_ssize_t head
    cdef uint32_t front
    cdef readonly Py_ssize_t messages # waiting
    cdef readonly Py_ssize_t bytes    # of the whole entries that have a waiting message
    # Popped by receivers, without what settle() still has to count; what was dropped is not in them.
    cdef uint64_t popped
    cdef readonly uint64_t received_bytes
    # Where single messages come from: the first item, as a delivery of its own, and the next message in it. None
    # until a message is popped singly from that item.
    cdef Slice current
    cdef uint32_t index
    # {place: next offset} delivered (a place is a segment, or a bucket of a shared one), and {segment: (messages,
    # bytes)} to be credited. settle() adds what was popped from `current` to them, and to `front`.
    cdef dict delivered
    cdef dict credit

    # Take the lock and set `busy`, until leave(). Only enter() and leave() change either.
    cdef void enter(self) noexcept
    cdef void leave(self) noexcept
    # Invariant of all that follows but pop_carefully(): the lock is held, and `busy` set. Checked by push_entry(),
    # settle() and advance(), with ENGINE_DEBUG=1.
    cdef Py_ssize_t push_entry(
        self, Entry entry, object skip, object redelivered, uint64_t start_offset, uint64_t place) except -1
    cdef Message pop_carefully(self)  # takes the lock itself
    cdef MessageBatch take_batch(self, Py_ssize_t max_messages, Py_ssize_t max_bytes)
    # Remove and return the waiting slices of a segment.
    cdef list take_segment(self, uint64_t segment_id)
    # Make the first waiting slice `current`; False when nothing waits.
    cdef bint begin(self) except -1
    # Account for the messages that were popped singly from `current`.
    cdef int settle(self) except -1
    # Count the first item's messages up to `index` as popped; drop it when that is all of it.
    cdef int advance(self, uint32_t index) except -1
    cdef int give_credit(self, uint64_t segment_id, Py_ssize_t messages, Py_ssize_t bytes) except -1
    # Drop the waiting messages in `ranges` (sorted, inclusive) and below the marks. Returns their number.
    cdef Py_ssize_t forget_ranges(self, uint64_t segment_id, list ranges, BucketMarks marks) except -1
