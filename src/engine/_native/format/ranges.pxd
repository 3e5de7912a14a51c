# cython: language_level=3
"""Finds the range of a 16-bit ring that holds a hash: the segment of a topic, the bucket of a segment."""
cimport cython
from libc.stdint cimport uint16_t, uint32_t

cdef enum:
    SLOTS = 1024                  # ranges are found by the upper ten bits of a hash, then by stepping forward

# The ranges that tile one ring, numbered from 0. `ends` are inclusive, rising, the last is 65,535.
# 2 KiB of slots stay in the first-level cache where a table of 65,536 would not.
cdef struct Ring:
    uint32_t count
    uint16_t first[SLOTS]         # the range that holds the first value of a slot
    uint16_t* ends                # owned

# Build a ring of inclusive ends; InvalidArgumentError names `what` unless they tile it. Frees nothing.
cdef int ring_set(Ring* ring, list ends, str what) except -1

# The number of the range that holds `hash`.
cdef inline uint32_t ring_find(const Ring* ring, uint16_t hash) noexcept nogil:
    cdef uint32_t i = ring.first[hash >> 6]
    while ring.ends[i] < hash:
        i += 1
    return i

@cython.final
cdef class RangeTable:
    cdef Ring ring
    cdef readonly list values     # one for each range

# One active segment of a layout.
cdef struct Target:
    uint32_t segment_id
    uint16_t start                # of its hash range, inclusive
    uint16_t end
    uint32_t base                 # number of its first builder
    uint32_t buckets
    const Ring* ring              # its buckets; shared by segments with the same boundaries
    uint32_t turns                # keyless entries routed to it so far

# The route of every hash of a topic: builder number = the segment's base + the bucket. Fixed except for the turns.
@cython.final
cdef class Routes:
    cdef Ring segments
    cdef Target* targets          # by range start
    cdef uint32_t targets_count
    cdef Ring* rings              # distinct bucket boundary lists
    cdef uint32_t rings_count
    cdef readonly uint32_t builders
    cdef uint32_t turn            # the segment that takes the next keyless entry

    cdef int add(self, uint32_t i, uint16_t start, uint32_t segment_id, tuple ends, dict rings) except -1

# The builder for a key's 32-bit hash.
cdef inline uint32_t route(Routes routes, uint32_t hash) noexcept nogil:
    cdef const Target* target = &routes.targets[ring_find(&routes.segments, <uint16_t> (hash >> 16))]
    return target.base + ring_find(target.ring, <uint16_t> hash)

# The segment and the hash for the next keyless entry: segments in turn, and in each of them hashes that spread evenly
# over its range and over its bucket ring.
cdef const Target* route_keyless(Routes routes, uint32_t* hash) noexcept nogil
# The segment of a builder.
cdef const Target* target_of(Routes routes, uint32_t builder) noexcept nogil
