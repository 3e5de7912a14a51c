# cython: language_level=3
"""Batches as columns for others, through Arrow's C data interface (whose structs are in arrow_abi.h)."""
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
# Raises CorruptionError when a message's properties are not a map of text to text.
cdef object stream_of(list slices)
