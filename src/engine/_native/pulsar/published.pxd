# cython: language_level=3
"""What a producer of Apache Pulsar has published: a batch of its messages, to entries."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

# One message of a batch, as its SingleMessageMetadata says. Pointers are into the batch.
cdef struct Single:
    const uint8_t* meta
    size_t meta_size
    const uint8_t* value
    size_t value_size
    const uint8_t* key
    size_t key_size
    const uint8_t* ordering
    size_t ordering_size
    int64_t event_time            # INT64_MIN for none
    uint64_t sequence
    bint has_sequence
    bint has_key
    bint has_ordering
    bint base64                   # the key is base64 of bytes
    bint null_value
    uint32_t pairs                # properties
    size_t pairs_bytes            # of their names and values
