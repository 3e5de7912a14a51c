# cython: language_level=3
"""Which cipher the body of an encrypted entry is under: a byte of its envelope, see envelope.pxd."""
from engine._native.format.layout cimport AT_COMPRESSION, AT_SIZE, ENCRYPTED, HEADER_SIZE, load32
from libc.stdint cimport uint8_t

# On disk: do not change.
cdef enum:
    CIPHER_AES_256_GCM = 1
    CIPHER_FOREIGN = 2            # encrypted by a client of Apache Pulsar
    CIPHER_FOREIGN_PLAIN = 3      # by none
    CIPHER_FOREIGN_PART = 4       # as 2 and 5 as 3, of a chunk which others follow
    CIPHER_FOREIGN_PLAIN_PART = 5
    AT_CIPHER = 5                 # in the envelope
    CIPHERED_SIZE_MIN = 40        # of an envelope, without recipients

# The cipher of the entry at `p`, whose header was checked; 0: it is not encrypted.
cdef inline uint8_t cipher_of(const uint8_t* p) noexcept nogil:
    if not p[AT_COMPRESSION] & ENCRYPTED or load32(p + AT_SIZE) < HEADER_SIZE + CIPHERED_SIZE_MIN:
        return 0
    return p[HEADER_SIZE + AT_CIPHER]

cdef inline bint is_foreign(uint8_t cipher) noexcept nogil:
    return CIPHER_FOREIGN <= cipher <= CIPHER_FOREIGN_PLAIN_PART

# Whether it is a chunk which others follow.
cdef inline bint is_part(uint8_t cipher) noexcept nogil:
    return CIPHER_FOREIGN_PART <= cipher <= CIPHER_FOREIGN_PLAIN_PART
