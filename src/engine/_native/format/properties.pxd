# cython: language_level=3
"""A message's properties: one msgpack map of text to text, read without trusting it."""
from libc.stdint cimport uint8_t, uint32_t

# What is left to read. Invariant: p <= end. Checked by read_map() and read_text(), with ENGINE_DEBUG=1.
cdef struct Cursor:
    const uint8_t* p
    const uint8_t* end

# Read a map's header and move the cursor behind it. Returns the number of pairs; -1: not a map.
cdef int read_map(Cursor* at) noexcept nogil
# Read a text as (start, size) and move the cursor behind it. False: not a text.
cdef bint read_text(Cursor* at, const uint8_t** start, uint32_t* size) noexcept nogil
# Check that `size` bytes are one map of UTF-8 text, and add up its pairs, key bytes and value bytes. False: they are
# not. Nothing (size 0) is an empty map.
cdef bint measure(const uint8_t* p, size_t size, uint32_t* pairs, size_t* key_bytes, size_t* value_bytes) noexcept nogil
# Whether bytes are UTF-8.
cdef bint is_utf8(const uint8_t* p, size_t size) noexcept nogil
# The map as a dict; None when it is not a map of text to text, or the text is not UTF-8.
cdef dict unpack(const uint8_t* p, size_t size)
