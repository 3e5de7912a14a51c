# cython: language_level=3
"""Received blocks checked into entries, good and bad; bodies are decompressed when their turn comes."""
from engine._native.format.layout cimport Fault
from engine._native.consume.message cimport Slice
from libc.stdint cimport uint8_t, uint32_t, uint64_t

# Check whole entries back to back, from `p` of a block that begins at `start` to its `end`. `next_offset`: the block's
# first entry ends above it, the others begin at it or above. Both `next_offset` and `p` advance with every good entry,
# so that after a fault they name the bad one.
cdef Fault check_block(
    const uint8_t* start, const uint8_t** p, const uint8_t* end, uint32_t salt, uint64_t segment_id,
    uint64_t* next_offset) noexcept nogil
# Make the messages of a waiting slice readable: decompress its entry where that is compressed. Raises CorruptionError
# for a bad entry, the same one every time. Returns 1 where the entry had to be opened.
cdef int open_slice(Slice slice, object decompress) except -1
# open_slice() for the slice that follows `count` messages of a batch. False where the batch has to end before it: its
# entry decompresses to more than is left (`room` < 0), or it is bad. A bad entry raises only at the head of a batch.
cdef bint open_next(Slice slice, object decompress, Py_ssize_t count, Py_ssize_t room) except -1
# Replace the slices of the open entry at `head` by slices of a closed one; batches may still hold the open entry.
cdef int close_slices(list items, Py_ssize_t head) except -1
# Bytes that its entry takes decompressed; 0 while that is not open.
cdef uint32_t opened_bytes(Slice slice) noexcept
