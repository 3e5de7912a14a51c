# cython: language_level=3
"""Checks the inside of an entry before the broker stores it: nothing that a consumer could not read is accepted."""
from libc.stdint cimport uint8_t

# Why an entry was refused; raise_flaw() raises it as an exception.
cdef enum Flaw:
    FLAW_NONE = 0
    FLAW_COLUMNS = 1              # columns do not add up to the body, or their offsets leave it or fall
    FLAW_SEQUENCES = 2            # sequences fall, or the header names another first or last one
    FLAW_PROPERTIES = 3           # of a message: not one map of text to text
    FLAW_ROOM = 4                 # compressed: its columns need more than the header's raw_size
    FLAW_COMPRESSION = 5          # compressed: not the codec's beginning, or raw_size cannot be reached
    FLAW_ENVELOPE = 6             # encrypted: the envelope contradicts the body
    FLAW_VALUE_SIZE = 7           # of one message, above the limit
    FLAW_KEY_SIZE = 8
    FLAW_PROPERTIES_SIZE = 9

# Check the inside of an entry whose header and body checksums hold. `p` is 8-byte aligned. An uncompressed entry is
# checked as a whole, a compressed one as far as its header and the first bytes of its body allow.
cdef Flaw check_structure(const uint8_t* p) noexcept nogil
# Raise for a flaw of the entry at `p`: MessageTooLargeError for a size, else CorruptionError.
cdef int raise_flaw(Flaw flaw, const uint8_t* p) except -1
