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
    # Under `lock`, and with `busy` set, the rest is changed: making objects may run the collector, which may run
    # anything and let another thread in. Only pop_message() does its short way without.
    cdef cython.pymutex lock
    cdef bint busy
    cdef object make_id
    # What waits: items[head:], of Slice, none empty. Of the first, the messages before `front` were popped.
    cdef list items
    cdef Py_ssize_t head
    cdef uint32_t front
    cdef readonly Py_ssize_t messages # that wait
    cdef readonly Py_ssize_t bytes    # of the whole entries of which a message waits
    # Where single messages come from: the first item, as a delivery of its own, and the next message in it. None
    # until a message is popped singly from that item.
    cdef Slice current
    cdef uint32_t index
    # {place: next offset} delivered (a place is a segment, or a bucket of a shared one), and {segment: (messages,
    # bytes)} to be credited. What was popped from `current` comes into them, and into `front`, by settle().
    cdef dict delivered
    cdef dict credit

    # Invariant of all that follows but pop_carefully(): the lock is held, and `busy` set. Checked by push_entry(),
    # settle() and advance(), with ENGINE_DEBUG=1.
    cdef Py_ssize_t push_entry(
        self, Entry entry, object skip, object redelivered, uint64_t start_offset, uint64_t place) except -1
    cdef Message pop_carefully(self)  # takes the lock itself
    cdef MessageBatch take_batch(self, Py_ssize_t max_messages, Py_ssize_t max_bytes)
    cdef list take_segment(self, uint64_t segment_id)  # what waits of it
    cdef bint begin(self) except -1
    cdef int settle(self) except -1
    # Count the first item's messages up to `index` as popped; drop it when that is all of it.
    cdef int advance(self, uint32_t index) except -1
    cdef int give_credit(self, uint64_t segment_id, Py_ssize_t messages, Py_ssize_t bytes) except -1
    # The slices that stay, in `ranges` (sorted, inclusive) and below the marks nothing.
    cdef Py_ssize_t forget_ranges(self, uint64_t segment_id, list ranges, BucketMarks marks) except -1
