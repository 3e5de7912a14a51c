# cython: language_level=3, auto_pickle=False
"""Checks the inside of an entry before the broker stores it: nothing that a consumer could not read is accepted.

The cost is small beside the checksum of the same bytes: offsets are compared eight at a time, a column whose bytes
together are within the limit of one message needs no check of each, and a compressed body is not decompressed.
"""
from engine._native.format.body cimport Columns, map_columns
from engine._native.format.cipher cimport cipher_of, is_foreign
from engine._native.format.envelope cimport AT_ENVELOPE_SIZE, TAG_SIZE, envelope_fits
from engine._native.format.layout cimport (
    AT_COMPRESSION, AT_COUNT, AT_FIRST_SEQUENCE, AT_FLAGS, AT_LAST_SEQUENCE, AT_PADDING, AT_PRODUCER_NAME_SIZE,
    AT_RAW_SIZE, AT_SIZE, COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_NONE, DELIVER_AT, ENCRYPTED, EVENT_TIMES,
    HEADER_SIZE, KEYED, PROPERTIES, SEQUENCES, load16, load32, load64, pad8,
)
from engine._native.format.properties cimport measure
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from engine.errors import CorruptionError, MessageTooLargeError
from engine.limits import ENTRY_SIZE_MAX, KEY_SIZE_MAX, MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX

cdef enum:
    LZ4_RATIO_MAX = 255           # bytes that one byte of an lz4 block stands for, at most
    ZSTD_MAGIC = 0xFD2FB528       # as in the format's specification
    ZSTD_HEADER_SIZE_MIN = 6      # magic, descriptor, and window or size
    ZSTD_RESERVED = 8             # a bit of the descriptor
    ZSTD_SINGLE_SEGMENT = 32

cdef uint32_t VALUE_MAX = MESSAGE_SIZE_MAX
cdef uint32_t KEY_MAX = KEY_SIZE_MAX
cdef uint32_t PROPERTIES_MAX = PROPERTIES_SIZE_MAX

_FLAWS = {
    FLAW_COLUMNS: "its columns must fill its body, and their offsets rise from 0 within it; these do not",
    FLAW_SEQUENCES: "its sequence ids must rise from the first to the last that its header names; these do not",
    FLAW_PROPERTIES: "the properties of a message must be one map of text to text; those of one message are not",
    FLAW_ROOM: f"its columns take more bytes than its body is said to become, which is at most {ENTRY_SIZE_MAX:,}",
    FLAW_COMPRESSION: "its body must be compressed as its header says, and become what that says; it cannot be",
    FLAW_ENVELOPE: "its body must begin with the envelope of its key, and that fit the body; it does not",
    FLAW_VALUE_SIZE: f"a value must have at most {MESSAGE_SIZE_MAX:,} bytes; one of its messages has more",
    FLAW_KEY_SIZE: f"a key must have at most {KEY_SIZE_MAX:,} bytes; one of its messages has more",
    FLAW_PROPERTIES_SIZE: f"properties must have at most {PROPERTIES_SIZE_MAX:,} bytes; those of one message have more",
}


cdef Flaw check_structure(const uint8_t* p) noexcept nogil:
    cdef Columns columns
    cdef uint32_t n = load32(p + AT_COUNT)
    if p[AT_COMPRESSION] != COMPRESSION_NONE:
        return _check_compressed(p)
    if not map_columns(&columns, p, p + HEADER_SIZE):
        return FLAW_COLUMNS
    if not _sequences_agree(p, columns.sequences, n):
        return FLAW_SEQUENCES
    if not _each_within(columns.value_offsets, n, VALUE_MAX):
        return FLAW_VALUE_SIZE
    if columns.key_offsets is not NULL and not _each_within(columns.key_offsets, n, KEY_MAX):
        return FLAW_KEY_SIZE
    return FLAW_NONE if columns.property_offsets is NULL else _check_properties(&columns, n)


cdef bint _each_within(const int32_t* offsets, uint32_t n, uint32_t most) noexcept nogil:
    cdef uint32_t i, above = 0
    if <uint32_t> offsets[n] <= most:
        return True
    for i in range(n):  # without a branch, so that the compiler does eight at a time
        above |= <uint32_t> (offsets[i + 1] - offsets[i] > <int32_t> most)
    return above == 0


cdef bint _sequences_agree(const uint8_t* p, const uint32_t* sequences, uint32_t n) noexcept nogil:
    cdef uint64_t first = load64(p + AT_FIRST_SEQUENCE), last = load64(p + AT_LAST_SEQUENCE)
    cdef uint32_t i, falls = 0
    if last < first:
        return False
    if sequences is NULL:
        return last - first == n - 1
    for i in range(n - 1):
        falls |= <uint32_t> (sequences[i + 1] < sequences[i])
    return falls == 0 and sequences[0] == 0 and last - first == sequences[n - 1]


cdef Flaw _check_properties(const Columns* columns, uint32_t n) noexcept nogil:
    cdef const int32_t* offsets = columns.property_offsets
    cdef uint32_t i, pairs = 0
    cdef size_t key_bytes = 0, value_bytes = 0  # not used here
    if not _each_within(offsets, n, PROPERTIES_MAX):
        return FLAW_PROPERTIES_SIZE
    for i in range(n):
        if not measure(
            columns.properties + offsets[i], offsets[i + 1] - offsets[i], &pairs, &key_bytes, &value_bytes
        ):
            return FLAW_PROPERTIES
    return FLAW_NONE


cdef Flaw _check_compressed(const uint8_t* p) noexcept nogil:
    cdef uint64_t n = load32(p + AT_COUNT), raw_size = load32(p + AT_RAW_SIZE), offsets = pad8(4 * (n + 1))
    cdef uint64_t packed = load32(p + AT_SIZE) - HEADER_SIZE - p[AT_PADDING], least = offsets
    cdef bint foreign = is_foreign(cipher_of(p))  # then it has no columns inside
    cdef uint8_t flags = p[AT_FLAGS], codec = p[AT_COMPRESSION] & COMPRESSION_MASK
    if p[AT_COMPRESSION] & ENCRYPTED:
        if not envelope_fits(p):
            return FLAW_ENVELOPE
        packed -= load32(p + HEADER_SIZE + AT_ENVELOPE_SIZE) + TAG_SIZE
    least += (offsets if flags & KEYED else 0) + (offsets if flags & PROPERTIES else 0)
    least += 8 * n if flags & DELIVER_AT else 0
    least += (8 * n if flags & EVENT_TIMES else 0) + (pad8(4 * n) if flags & SEQUENCES else 0)
    least += pad8(load16(p + AT_PRODUCER_NAME_SIZE))
    if not foreign and (raw_size < least or raw_size % 8 != 0):
        return FLAW_ROOM
    if not flags & SEQUENCES and load64(p + AT_LAST_SEQUENCE) - load64(p + AT_FIRST_SEQUENCE) != n - 1:
        return FLAW_SEQUENCES
    if load64(p + AT_LAST_SEQUENCE) < load64(p + AT_FIRST_SEQUENCE):
        return FLAW_SEQUENCES
    if codec == COMPRESSION_LZ4:
        return FLAW_NONE if raw_size <= LZ4_RATIO_MAX * packed else FLAW_COMPRESSION
    if p[AT_COMPRESSION] & ENCRYPTED:
        return FLAW_NONE
    return FLAW_NONE if _begins_as_zstd(p + HEADER_SIZE, packed, raw_size) else FLAW_COMPRESSION


# Magic, descriptor, [window,] [dictionary id,] [content size], then blocks. The descriptor says which are present, and
# how wide they are. Consumers have no dictionary, and a content size must be the header's raw_size.
cdef bint _begins_as_zstd(const uint8_t* body, uint64_t size, uint64_t raw_size) noexcept nogil:
    cdef uint8_t descriptor, width_code
    cdef uint64_t at = 5, width, stated = 0, i
    if size < ZSTD_HEADER_SIZE_MIN or load32(body) != ZSTD_MAGIC:
        return False
    descriptor = body[4]
    if descriptor & ZSTD_RESERVED or descriptor & 3:
        return False
    width_code = descriptor >> 6
    width = <uint64_t> 1 << width_code
    if width_code == 0 and not descriptor & ZSTD_SINGLE_SEGMENT:
        return True  # no content size
    at += 0 if descriptor & ZSTD_SINGLE_SEGMENT else 1
    if at + width > size:
        return False
    for i in range(width):
        stated |= <uint64_t> body[at + i] << 8 * i
    return stated + (256 if width_code == 1 else 0) == raw_size


cdef int raise_flaw(Flaw flaw, const uint8_t* p) except -1:
    what = f"the entry of the sequence ids {load64(p + AT_FIRST_SEQUENCE)} to {load64(p + AT_LAST_SEQUENCE)}"
    if flaw >= FLAW_VALUE_SIZE:
        raise MessageTooLargeError(f"{what}: {_FLAWS[flaw]}")
    raise CorruptionError(f"{what}: {_FLAWS[flaw]}")
