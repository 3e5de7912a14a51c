# cython: language_level=3
"""Messages that only clients of Apache Pulsar can read."""
from engine._native.format.cipher cimport cipher_of, is_foreign
from engine._native.format.entry cimport Entry
from engine._native.format.envelope cimport AT_NONCE
from engine._native.format.layout cimport HEADER_SIZE, load16
from libc.stdint cimport uint8_t, uint16_t

# What was sent, and its size. Raises CorruptionError.
cdef const uint8_t* content_at(Entry entry, size_t* size) except NULL

cdef inline bint holds_foreign(Entry entry) noexcept nogil:
    return is_foreign(cipher_of(entry.p))

# The hash for Key_Shared of an entry that holds such messages.
cdef inline uint16_t sticky_hash(Entry entry) noexcept nogil:
    return load16(entry.p + HEADER_SIZE + AT_NONCE)
