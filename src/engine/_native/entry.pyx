# cython: language_level=3
"""Checks, seals and stamps entries, and shows what stands in one; the picture of the bytes is in `entry.pxd`."""
from engine import limits
from engine.errors import CorruptionError

from engine._native.crc32c cimport crc32c_update
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef uint32_t SIZE_MAX = limits.ENTRY_SIZE_MAX
cdef uint32_t COUNT_MAX = limits.ENTRY_MESSAGES_MAX
cdef uint32_t NAME_SIZE_MAX = limits.PRODUCER_NAME_SIZE_MAX

if HEADER_SIZE != limits.ENTRY_HEADER_SIZE:
    raise AssertionError("entry.pxd and limits.py disagree about the size of an entry's header")

FAULTS = {
    FAULT_SHORT: "the bytes end before the entry does",
    FAULT_MAGIC: "an entry does not begin here (magic)",
    FAULT_VERSION: "the entry has a version, flag or compression this build does not know",
    FAULT_SIZE: "the entry's size is impossible",
    FAULT_HEADER_CRC: "the entry's header fails its checksum",
    FAULT_BODY_CRC: "the entry's body fails its checksum",
    FAULT_STAMP_CRC: "the entry's stamp fails its checksum",
    FAULT_LAYOUT: "the entry's fields or columns contradict each other",
}


cdef Fault check_header(const uint8_t* p, size_t room) noexcept nogil:
    cdef uint32_t size
    if room < HEADER_SIZE:
        return FAULT_SHORT
    if load32(p + AT_MAGIC) != MAGIC:
        return FAULT_MAGIC
    size = load32(p + AT_SIZE)
    if size < HEADER_SIZE or size > SIZE_MAX or size % 8 != 0:
        return FAULT_SIZE
    if load32(p + AT_HEADER_CRC) != crc32c_update(0, p + AT_BODY_CRC, PRODUCER_HEADER_SIZE - AT_BODY_CRC):
        return FAULT_HEADER_CRC
    if p[AT_VERSION] != VERSION or p[AT_FLAGS] & ~FLAGS_KNOWN or p[AT_COMPRESSION] > COMPRESSION_ZSTD:
        return FAULT_VERSION
    if not _fields_agree(p, size):
        return FAULT_LAYOUT
    return FAULT_SHORT if size > room else FAULT_NONE


cdef bint _fields_agree(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef uint32_t count = load32(p + AT_COUNT), raw_size = load32(p + AT_RAW_SIZE), padding = p[AT_PADDING]
    if count < 1 or count > COUNT_MAX or load16(p + AT_PRODUCER_NAME_SIZE) > NAME_SIZE_MAX:
        return False
    if load16(p + AT_BUCKET_MIN) > load16(p + AT_BUCKET_MAX):
        return False
    if load16(p + AT_SEGMENT_HASH_MIN) > load16(p + AT_SEGMENT_HASH_MAX):
        return False
    if p[AT_COMPRESSION] == COMPRESSION_NONE:
        return raw_size == size - HEADER_SIZE and padding == 0
    return raw_size <= SIZE_MAX - HEADER_SIZE and padding < 8 and padding <= size - HEADER_SIZE


cdef Fault check_body(const uint8_t* p) noexcept nogil:
    cdef uint32_t crc = crc32c_update(0, p + HEADER_SIZE, load32(p + AT_SIZE) - HEADER_SIZE)
    return FAULT_NONE if crc == load32(p + AT_BODY_CRC) else FAULT_BODY_CRC


cdef inline uint32_t _stamp_crc(const uint8_t* p, uint32_t salt) noexcept nogil:
    cdef uint32_t crc = crc32c_update(salt, p, AT_STAMP_CRC)
    return crc32c_update(crc, p + AT_TERM, HEADER_SIZE - AT_TERM)


cdef Fault check_stamp(const uint8_t* p, uint32_t salt) noexcept nogil:
    return FAULT_NONE if _stamp_crc(p, salt) == load32(p + AT_STAMP_CRC) else FAULT_STAMP_CRC


cdef void seal(uint8_t* p) noexcept nogil:
    store32(p + AT_BODY_CRC, crc32c_update(0, p + HEADER_SIZE, load32(p + AT_SIZE) - HEADER_SIZE))
    store32(p + AT_HEADER_CRC, crc32c_update(0, p + AT_BODY_CRC, PRODUCER_HEADER_SIZE - AT_BODY_CRC))


cdef void stamp(uint8_t* p, uint32_t salt, uint32_t term, uint64_t first_offset, int64_t publish_time_ms,
                uint64_t durable_upto, uint64_t segment_id) noexcept nogil:
    store32(p + AT_TERM, term)
    store64(p + AT_FIRST_OFFSET, first_offset)
    store64(p + AT_PUBLISH_TIME, <uint64_t>publish_time_ms)
    store64(p + AT_DURABLE_UPTO, durable_upto)
    store64(p + AT_SEGMENT_ID, segment_id)
    store64(p + AT_STAMP_RESERVED, 0)
    store32(p + AT_STAMP_CRC, _stamp_crc(p, salt))


cdef int raise_fault(Fault fault, uint64_t segment_id, uint64_t offset) except -1:
    where = "" if segment_id == unknown() else f"segment {segment_id}"
    if offset != unknown():
        where = f"{where}, offset {offset}" if where else f"offset {offset}"
    raise CorruptionError(f"{where}: {FAULTS[fault]}" if where else FAULTS[fault])
