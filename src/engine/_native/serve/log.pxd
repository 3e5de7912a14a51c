# cython: language_level=3
"""Entries back to back, as in a log file: check and stamp them, cut blocks out of them, scan them."""
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    RECENT = 16                       # entries of a lane whose offsets are remembered; a power of two
    PART = 4                          # of a kind: chunks which others follow, see envelope.pxd

# The fields of an entry's header that decide where it may be stored and whether it is a duplicate.
@cython.final
cdef class Claim:
    cdef public uint64_t position     # in the buffer that it was received in
    cdef readonly uint32_t size
    cdef readonly uint32_t count
    cdef readonly uint32_t kind       # KEYED and TRANSACTIONAL flags, and PART
    cdef readonly uint16_t bucket_min
    cdef readonly uint16_t bucket_max
    cdef readonly uint16_t segment_hash_min
    cdef readonly uint16_t segment_hash_max
    cdef readonly uint64_t producer_id
    cdef readonly uint64_t first_sequence
    cdef readonly uint64_t last_sequence
    cdef readonly uint64_t floor      # every message of the producer with a lower sequence is stored, somewhere

# One appended entry, as duplicate detection remembers it.
cdef struct Seen:
    uint64_t first_sequence
    uint64_t last_sequence
    uint64_t offset
    uint32_t count                    # messages

# The newest entries of one producer in one bucket. Their sequences rise from entry to entry.
cdef struct Lane:
    uint64_t producer_id
    uint32_t kind                     # as in a Claim: each kind is batched apart
    uint32_t bucket                   # index of the bucket in the segment
    uint64_t floor                    # the highest floor of its entries
    uint64_t entries                  # how many so far; the newest is recent[(entries - 1) % RECENT]. 0: a free slot
    Seen recent[RECENT]

# One line of the sparse index.
cdef struct Mark:
    uint64_t offset
    uint64_t position
    int64_t time_ms

# The state of a scan over one file. The scan is fed the file's bytes piece by piece and keeps none of them.
cdef class Scan:
    # Fixed after open.
    cdef uint32_t salt
    cdef readonly uint64_t segment_id
    cdef uint64_t step                # bytes between two lines of the index
    cdef uint64_t end_offset          # the scan stops there; unknown() for none
    cdef uint16_t[1024] bucket_ends
    cdef int bucket_count
    # The scan's place: everything before it is good.
    cdef readonly uint64_t position
    cdef readonly uint64_t next_offset
    # The first fault, 0 for none. The scan does not move past it.
    cdef readonly int fault
    # Gathered from the good entries.
    cdef readonly uint64_t durable_upto
    cdef readonly int64_t time_ms     # the latest publish time
    cdef readonly uint32_t term       # the highest
    cdef readonly uint64_t entries
    # Tables, owned, grown by doubling.
    cdef Mark* marks
    cdef size_t mark_count, mark_room
    cdef Lane* lanes
    cdef size_t lane_count, lane_room

    # Scan the good entries at the front of n bytes; returns their bytes. -1: no memory.
    cdef int64_t take(self, const uint8_t* p, size_t n) noexcept nogil
    cdef int check(self, const uint8_t* p, size_t room) noexcept nogil
    cdef int remember(self, const uint8_t* p) noexcept nogil
    cdef int mark(self, const uint8_t* p) noexcept nogil
    cdef Lane* lane_of(self, uint64_t producer_id, uint32_t kind, uint32_t bucket) noexcept nogil
    cdef int grow_lanes(self) noexcept nogil
    cdef uint32_t bucket_of(self, uint16_t bucket_hash) noexcept nogil
