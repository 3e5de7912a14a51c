# cython: language_level=3
"""The body of an encrypted entry: an envelope, which the broker can read, and the ciphertext behind it.

    0    envelope size u32, of all before the ciphertext
    4    version u8, 1
    5    cipher u8, 1: AES-256-GCM
    6    recipients u16, 1 to 64
    8    nonce, 12 bytes
    20   zero u32
    24   id of the data key, 16 bytes
    40   deliver-at i64[n] (DELIVER_AT), a copy of the column that is in the ciphertext
    ...  recipients, each padded to 8 bytes:
           0   name size u16 | wrapped size u16 | method u8 | zero, 3 bytes
           8   fingerprint of the public key, 8 bytes
           16  name | wrapped data key
    ...  zeros, 0 to 7, which make the entry's size a multiple of 8
    ...  ciphertext of the body, compressed or not, and its tag of 16 bytes

*Foreign* is an entry whose messages only clients of Apache Pulsar can read, as they have encrypted or cut them. Its
cipher is 2 to 5. It has no recipients, zeros as the id of a key, as a nonce

    0    hash of its key for Key_Shared u16
    2    place u8: 0 it is alone, 1 the first of its group, 2 a later one
    3    zero u8
    4    group u64, of a chunk: hash of its message's uuid. Entries of one group go to one queue consumer

and, in place of the ciphertext, without a tag,

    metadata size u32, big-endian | MessageMetadata | payload

as they were sent. raw_size is the size of all that. The ciphers: 2 encrypted, 3 not; 4 and 5 the same of a chunk of a
message which others follow.
"""
from engine._native.format.cipher cimport AT_CIPHER, CIPHER_AES_256_GCM, cipher_of, is_foreign
from engine._native.format.layout cimport (
    AT_COMPRESSION, AT_COUNT, AT_FLAGS, AT_RAW_SIZE, AT_SIZE, COMPRESSION_MASK, COMPRESSION_NONE, DELIVER_AT,
    ENCRYPTED, HEADER_SIZE, load16, load32, pad8,
)
from libc.stdint cimport uint8_t, uint32_t, uint64_t

# On disk: do not change.
cdef enum:
    ENVELOPE_VERSION = 1
    AT_ENVELOPE_SIZE = 0
    AT_ENVELOPE_VERSION = AT_ENVELOPE_SIZE + 4
    AT_RECIPIENTS = AT_ENVELOPE_VERSION + 2  # behind AT_CIPHER
    AT_NONCE = AT_RECIPIENTS + 2
    AT_GROUP_PLACE = AT_NONCE + 2       # of a foreign entry, as is the next one
    AT_GROUP = AT_NONCE + 4
    AT_ENVELOPE_ZERO = AT_NONCE + 12
    AT_KEY_ID = AT_ENVELOPE_ZERO + 4
    AT_DELIVER_AT = AT_KEY_ID + 16
    RECIPIENT_HEAD = 16
    TAG_SIZE = 16
    RECIPIENTS_MAX = 64
    GROUP_BEGINS = 1
    GROUP_GOES_ON = 2
    FOREIGN_SIZE_MIN = 4          # of what is in place of the ciphertext

# Where the recipients begin.
cdef inline size_t recipients_at(const uint8_t* p) noexcept nogil:
    return AT_DELIVER_AT + (8 * <size_t> load32(p + AT_COUNT) if p[AT_FLAGS] & DELIVER_AT else 0)

# Whether the envelope of the entry at `p`, whose header was checked, has its parts inside the body, and nothing else.
cdef inline bint envelope_fits(const uint8_t* p) noexcept nogil:
    cdef const uint8_t* body = p + HEADER_SIZE
    cdef size_t room = load32(p + AT_SIZE) - HEADER_SIZE, at = recipients_at(p), size
    cdef uint32_t i
    cdef size_t tag = FOREIGN_SIZE_MIN if is_foreign(cipher_of(p)) else TAG_SIZE
    if at + tag > room or load32(body + AT_ENVELOPE_ZERO) != 0:
        return False
    size = load32(body + AT_ENVELOPE_SIZE)
    if size < at or size > room or size + tag > room:
        return False
    if body[AT_ENVELOPE_VERSION] != ENVELOPE_VERSION:
        return False
    if is_foreign(body[AT_CIPHER]):
        if load16(body + AT_RECIPIENTS) or p[AT_COMPRESSION] != ENCRYPTED or load32(p + AT_RAW_SIZE) != room - size:
            return False
    elif body[AT_CIPHER] != CIPHER_AES_256_GCM or not 1 <= load16(body + AT_RECIPIENTS) <= RECIPIENTS_MAX:
        return False
    for i in range(load16(body + AT_RECIPIENTS)):
        if at + RECIPIENT_HEAD > size or body[at + 5] | body[at + 6] | body[at + 7]:
            return False
        at += RECIPIENT_HEAD + pad8(<size_t> load16(body + at) + load16(body + at + 2))
        if at > size:
            return False
    if size - at >= 8:
        return False
    for i in range(<uint32_t> (size - at)):
        if body[at + i]:
            return False
    return (is_foreign(body[AT_CIPHER]) or p[AT_COMPRESSION] & COMPRESSION_MASK != COMPRESSION_NONE
            or load32(p + AT_RAW_SIZE) == room - size - TAG_SIZE)
