# cython: language_level=3
"""A column of byte strings given by Python, NumPy or Arrow, readable without the GIL.

A Column shows one window at a time: a whole NumPy array, one Arrow chunk, or a run of a Python sequence whose
pointers were gathered. The caller asks for the window that holds message `at`, then reads it with view_get()
while the GIL is released. Nothing is copied except what has no bytes of its own to point to.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum Kind:
    POINTERS = 0                  # gathered from Python objects
    OFFSETS32 = 1                 # Arrow binary, string
    OFFSETS64 = 2                 # Arrow large_binary, large_string
    FIXED = 3                     # Arrow fixed_size_binary; NumPy V; NumPy uint8 of two dimensions
    PADDED = 4                    # NumPy S: zero bytes at the end do not count
    VIEWS = 5                     # Arrow binary_view, string_view
    CODES = 6                     # Arrow dictionary of binary or string, whose indices are int32

cdef struct View:
    Kind kind
    Py_ssize_t base               # column index of this window's message 0
    Py_ssize_t first              # Arrow: offset of message 0 in the buffers
    Py_ssize_t width              # FIXED, PADDED
    const uint8_t* valid          # Arrow: bitmap, or NULL when nothing is null
    const uint8_t* data
    const int32_t* offsets32      # CODES: of the dictionary, as `data` is
    const int32_t* codes          # CODES: which of these each message is
    const int64_t* offsets64
    const uint8_t** pointers
    Py_ssize_t* sizes             # POINTERS: -1 is null
    const uint8_t** buffers       # VIEWS: the variadic buffers

# Size of message i of the column, and where it starts; -1 if it is null. Needs base <= i < end of the window.
cdef inline Py_ssize_t view_get(const View* view, Py_ssize_t i, const uint8_t** start) noexcept nogil:
    cdef Py_ssize_t at = i - view.base, width
    cdef const int32_t* words
    if view.kind == POINTERS:
        start[0] = view.pointers[at]
        return view.sizes[at]
    at += view.first
    if view.valid is not NULL and not (view.valid[at >> 3] >> (at & 7)) & 1:
        return -1
    if view.kind == OFFSETS32:
        start[0] = view.data + view.offsets32[at]
        return view.offsets32[at + 1] - view.offsets32[at]
    if view.kind == OFFSETS64:
        start[0] = view.data + view.offsets64[at]
        return <Py_ssize_t> (view.offsets64[at + 1] - view.offsets64[at])
    if view.kind == VIEWS:
        words = <const int32_t*> (view.data + 16 * at)
        start[0] = <const uint8_t*> (words + 1) if words[0] <= 12 else view.buffers[words[2]] + words[3]
        return words[0]
    if view.kind == CODES:
        at = view.codes[at]
        start[0] = view.data + view.offsets32[at]
        return view.offsets32[at + 1] - view.offsets32[at]
    width = view.width
    start[0] = view.data + at * width
    if view.kind == PADDED:
        while width > 0 and start[0][width - 1] == 0:
            width -= 1
    return width

cdef class Column:
    # Fixed after construction.
    cdef readonly Py_ssize_t count
    cdef readonly str name        # for errors: "values", "keys"
    cdef bint text                # str items count as their UTF-8
    cdef bint nullable            # nulls are allowed
    cdef object owner             # keeps the memory alive that the view points to
    cdef object items             # a list or tuple, else None
    cdef list chunks              # Arrow: ArrowChunk in order, else None
    # The current window: view.base <= i < stop. Changed by window() only.
    cdef View view
    cdef Py_ssize_t stop
    cdef object held              # the items of this window
    cdef list copies              # bytes made for the items of this window that are no bytes themselves

    # Make message `at` (< count) readable; returns the column index where the window ends.
    cdef Py_ssize_t window(self, Py_ssize_t at) except -1
    # Raise unless every message can be read, is at most size_max bytes, and is null only where that is allowed.
    cdef int check(self, Py_ssize_t size_max) except -1
    # How many items, from the first, are bytes within the limit: those need no other check.
    cdef Py_ssize_t plain(self, Py_ssize_t size_max)
    cdef int gather(self, Py_ssize_t at) except -1
    cdef int gather_other(self, Py_ssize_t i, Py_ssize_t slot, object item) except -1
    cdef int take_numpy(self, object array) except -1
    cdef int take_arrow_array(self, object source) except -1
    cdef int take_arrow_stream(self, object source) except -1

# Milliseconds since 1970 of an aware datetime or an int; InvalidArgumentError names `name`.
cdef int64_t instant_ms(object instant, str name) except? -1
