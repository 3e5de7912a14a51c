# cython: language_level=3
"""Checks the arguments of a producer's callers: the parts of one message, or columns of many."""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t

from engine._native.produce.builder cimport Message
from engine._native.produce.columns cimport Column

# Checked columns of messages, which may be added in parts.
@cython.final
cdef class MessageColumns:
    cdef readonly Py_ssize_t count
    cdef Column values
    cdef Column keys                      # or None: all keyless
    cdef object times                     # int64[n], or None
    cdef const int64_t* event_times       # its memory, or NULL
    cdef object packed                    # properties as msgpack maps: (uint8[…], where each ends: int64[n + 1])
    cdef const uint8_t* properties        # their memory
    cdef const int64_t* property_ends     # or NULL: no message has any

# The UTF-8 of a key; lives as long as `text`.
cdef const char* utf8(object text, Py_ssize_t* size) except NULL
# Open a contiguous buffer; raises InvalidArgumentError for the argument `name`.
cdef int open_buffer(str name, object given, Py_buffer* view, bint text) except -1
# Raise MessageTooLargeError if a part of a message is over its limit.
cdef int check_size(str name, size_t size, size_t size_max) except -1
# A caller's sequence id, which must be `least` or more.
cdef uint64_t checked_sequence(object given, uint64_t least) except? 0xFFFFFFFFFFFFFFFF
# Event time, deliver-at and properties of a message. Returns the bytes that m.properties points into, or None.
cdef bytes fill_extras(Message* m, object pack, object now_ms, object properties, object event_time, object deliver_at,
                       object deliver_after)
