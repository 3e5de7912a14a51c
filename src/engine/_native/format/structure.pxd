# cython: language_level=3
"""What a broker checks of an entry's inside before it takes it: nothing that a consumer could not read gets in."""
from libc.stdint cimport uint8_t

# Why an entry was refused; raised as an exception by raise_flaw, at the rim.
cdef enum Flaw:
    FLAW_NONE = 0
    FLAW_COLUMNS = 1              # they do not add up to the body, or their offsets leave it or fall
    FLAW_SEQUENCES = 2            # they fall, or are not what the header says of the first and last
    FLAW_PROPERTIES = 3           # of a message: not one map of text to text
    FLAW_ROOM = 4                 # compressed: its columns alone take more than the header says that it becomes
    FLAW_COMPRESSION = 5          # compressed: it does not begin as its codec does, or cannot become so large
    FLAW_VALUE_SIZE = 6           # of one message, above the limit
    FLAW_KEY_SIZE = 7
    FLAW_PROPERTIES_SIZE = 8

# Check what is inside an entry whose header and body were checked. `p` is 8-byte aligned. An entry that is not
# compressed is checked as a whole; of a compressed one, what its header and the first bytes of its body tell.
cdef Flaw check_structure(const uint8_t* p) noexcept nogil
# Raise for a flaw of the entry at `p`: MessageTooLargeError for a size, else CorruptionError.
cdef int raise_flaw(Flaw flaw, const uint8_t* p) except -1
