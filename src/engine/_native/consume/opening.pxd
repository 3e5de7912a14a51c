# cython: language_level=3
"""Blocks checked into entries, good ones and bad ones; bodies are decompressed when their turn comes."""
from engine._native.format.layout cimport Fault
from engine._native.consume.message cimport Slice
from libc.stdint cimport uint8_t, uint32_t, uint64_t

# Check whole entries back to back, from `p` of a block that begins at `start` to its `end`. `next_offset`: the block's
# first entry ends above it, the others begin at it or above; it is moved behind every good entry, and `p` as well, so
# that on a fault they are where the bad one is, or should have been.
cdef Fault check_block(
    const uint8_t* start, const uint8_t** p, const uint8_t* end, uint32_t salt, uint64_t segment_id,
    uint64_t* next_offset) noexcept nogil
# Make the messages of a slice that waits readable: decompress its entry where that is compressed. Raises
# CorruptionError where the entry is bad, the same whenever it is asked for. 1: it had to be opened.
cdef int open_slice(Slice slice, object decompress) except -1
# The same for a slice behind a batch of `count` messages, unless a compressed one would leave less than no `room`.
# False where the batch ends before it; a bad entry is met first in a batch.
cdef bint open_next(Slice slice, object decompress, Py_ssize_t count, Py_ssize_t room) except -1
# Put entries that are not open in the place of the one at `head`, as far as that goes; others may hold that one still.
cdef int close_slices(list items, Py_ssize_t head) except -1
# Bytes of its entry that were decompressed.
cdef uint32_t opened_bytes(Slice slice) noexcept
