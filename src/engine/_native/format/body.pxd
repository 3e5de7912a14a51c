# cython: language_level=3
"""The body of an entry: the buffer it lies in, how it is decompressed, and where its columns begin."""
cimport cython
from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

# Where the columns of one body begin. Pointers are into the body and live as long as it does; those of absent
# columns are NULL. Invariant: every offset is inside its column, and none falls. Checked by map_columns(), which alone
# fills it.
cdef struct Columns:
    const int32_t* key_offsets
    const int32_t* value_offsets
    const uint8_t* keys
    const uint8_t* values
    const int64_t* event_times        # milliseconds; INT64_MIN where a message has none
    const uint32_t* sequences         # to be added to first_sequence
    const int64_t* deliver_at         # milliseconds; INT64_MIN where a message has none
    const int32_t* property_offsets
    const uint8_t* properties         # one msgpack map of text to text per message, or nothing
    const uint8_t* producer_name

# Lay the columns over an uncompressed body of the header's raw_size bytes and check every offset in it.
# False: the columns do not add up to the body. Never reads past it.
cdef bint map_columns(Columns* columns, const uint8_t* header, const uint8_t* body) noexcept nogil

# The result of decompress(codec, body, raw_size), which must be bytes of exactly raw_size; CorruptionError
# otherwise. `where` names the entry in errors.
cdef bytes decompressed(object decompress, int codec, object body, uint32_t raw_size, object where)

# One buffer, held for as long as any entry points into it.
@cython.final
cdef class Lease:
    cdef Py_buffer view
    cdef bint held
    cdef const uint8_t* start         # 8-byte aligned
    cdef Py_ssize_t size

# Hold `buffer`; a copy of it where `copy` is set, or where its bytes are not aligned.
cdef Lease hold(object buffer, bint copy=*)
