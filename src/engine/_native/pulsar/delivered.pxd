# cython: language_level=3
"""What a consumer of Apache Pulsar is sent: entries, as frames of its protocol."""
from libc.stdint cimport uint8_t, uint32_t

# The numbers of the fields that say the same of a message in a batch, and of one alone.
cdef struct Tags:
    uint32_t properties
    uint32_t key
    uint32_t event_time
    uint32_t base64
    uint32_t ordering
    uint32_t sequence
    uint32_t null_value

# What the properties of a message say. Pointers are into them.
cdef struct Said:
    size_t size                   # of the fields of its own properties
    const uint8_t* ordering       # hexadecimal digits
    uint32_t ordering_size
    bint has_ordering
    bint null_value
    bint key_bytes
    uint32_t version              # of its schema; 0: it says none
