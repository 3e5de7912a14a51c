# cython: language_level=3
"""Routes the entries of a block to the owners of their buckets."""
from libc.stdint cimport uint16_t, uint32_t

# The bucket that holds `hash`: the first whose inclusive end is not below it. Invariant: ends rise, the last is 65535.
cdef inline uint32_t bucket_of(const uint16_t* ends, uint32_t buckets, uint16_t hash) noexcept nogil:
    # Halves without a branch: which half it is cannot be predicted, and a compare and move costs less than a miss.
    cdef const uint16_t* base = ends
    cdef uint32_t left = buckets, half
    while left > 1:
        half = left // 2
        base += half if base[half - 1] < hash else 0
        left -= half
    return base - ends
