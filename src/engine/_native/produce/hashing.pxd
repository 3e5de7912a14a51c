# cython: language_level=3
"""The hash of a key, which chooses the segment and the bucket inside it."""
from libc.stdint cimport uint8_t, uint32_t

# The topic's `keyHash`. In metadata by name: do not change.
cdef enum KeyHash:
    KEY_XXH64 = 0
    KEY_MURMUR3 = 1
    KEY_MURMUR3_LOW = 2           # with the halves exchanged

# High half: segment hash; low half: bucket hash.
cdef uint32_t key32_of(const uint8_t* key, size_t size, int algorithm) noexcept nogil
