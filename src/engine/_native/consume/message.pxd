# cython: language_level=3
"""Messages: lazy views of one place in an entry, and what those of one delivery share."""
cimport cython
from engine._native.format.entry cimport Entry
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t


# What the messages of one delivery share: enough to make the id of any of them later. Fixed once delivered.
@cython.final
cdef class Origin:
    cdef str topic
    cdef object make_id               # make_id(segment_id, offset, positions)
    cdef object decode                # decode(bytes) makes the value that users see; None: the bytes
    cdef dict base                    # {place: next offset} delivered before; never changed
    cdef list steps                   # (place, next offset) behind each slice of the delivery, in order
    # The positions before slice `walked`, so that ids asked for in order cost no walk each.
    cdef dict before
    cdef Py_ssize_t walked

    # A new dict: everything delivered before slice `rank`.
    cdef dict positions_before(self, Py_ssize_t rank)

cdef Origin new_origin(str topic, object make_id, object decode, dict base)


# Messages start..stop (half open) of one entry, which is open, except in a queue. Fixed after construction.
@cython.final
cdef class Slice:
    cdef readonly Entry entry
    cdef readonly uint32_t start
    cdef readonly uint32_t stop
    cdef readonly object redelivered  # None, or a tuple of (first offset, last offset, count), inclusive
    # The key of its position in a position vector: its segment, or one bucket of that (model/positions.py).
    cdef uint64_t place
    # In a queue: bytes that are freed with it: its entry's size for the last slice of the entry, else 0.
    cdef uint32_t weight
    # The delivery it is part of, and which part; None and 0 before.
    cdef Origin origin
    cdef Py_ssize_t rank
    # The entry's own, copied because they are read per message; in a queue NULL until that is opened.
    cdef const int32_t* value_offsets
    cdef const uint8_t* values

    # Messages start..stop of the same entry, as the next part of `origin`.
    cdef Slice part(self, uint32_t start, uint32_t stop, Origin origin)
    # Bytes of keys and values before message i of the entry.
    cdef size_t bytes_before(self, uint32_t i) noexcept nogil
    # How many messages from `start` on are within both limits (`bytes` -1: no limit).
    cdef Py_ssize_t fitting(self, uint32_t start, Py_ssize_t messages, Py_ssize_t bytes) noexcept

cdef Slice whole(Entry entry, uint32_t start, uint32_t stop, object redelivered, uint64_t place)
# Append to `parts` what inclusive `ranges` of offsets (sorted) leave of messages start..stop; how many messages.
cdef Py_ssize_t parts_outside(
    list parts, object ranges, Entry entry, uint32_t start, uint32_t stop, object redelivered, uint64_t place) except -1


# One message. Keeps its entry's bytes alive. Not tracked by the garbage collector: it refers to nothing that could
# refer back to it, as long as make_id does not keep messages.
@cython.final
cdef class Message:
    cdef Slice slice
    cdef uint32_t index

    # For people, cut to what can be read at a glance; never raises for what the message holds.
    cdef bytes raw_value(self)
    cdef str shown_properties(self)

# A key or a value, and text, as a repr shows them.
cdef str shown_bytes(object data)
cdef str shown_text(str text, Py_ssize_t longest)

# Message `index` of a slice that belongs to a delivery. The only way to make one.
cdef Message message_at(Slice slice, uint32_t index)
