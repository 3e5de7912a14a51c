# cython: language_level=3
"""Messages as Arrow columns, through its C data interface (whose structs are in arrow_abi.h) or as one column."""
from libc.stdint cimport int64_t

cdef extern from "arrow_abi.h" nogil:
    struct ArrowSchema:
        const char* format
        const char* name
        const char* metadata
        int64_t flags
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept nogil
        void* private_data
    struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil
        void* private_data
    struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept nogil
        int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept nogil
        const char* (*get_last_error)(ArrowArrayStream*) noexcept nogil
        void (*release)(ArrowArrayStream*) noexcept nogil
        void* private_data

# A capsule "arrow_array_stream" with one record batch per Slice of `slices`; the columns are in docs/formats/entry.md.
# `origin`: producer_name and sequence_id as well. Raises CorruptionError when a message's properties are not a map of
# text to text.
cdef object stream_of(list slices, bint origin)
# The values of all messages of Slices, or their keys, as what an Arrow column of binary is made of: (how many, how many
# null, [validity or None, offsets, bytes]). Each text is copied once. Raises InvalidArgumentError beyond 2 GiB.
cdef tuple join_texts(list slices, bint keys)
