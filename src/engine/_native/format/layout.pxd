# cython: language_level=3
"""The entry: one sealed batch of messages of one bucket; the byte image on wire and disk.

    0    magic u32 "ENTR"                 \
    4    size u32, whole entry             |
    8    header_crc u32, bytes 12..80      |  written by the producer,
    12   body_crc u32, bytes 128..size     |  never changed afterwards
    16   version u8                        |
    17   flags u8                          |
    18   compression u8                    |
    19   padding u8, zeros after a          |
         compressed body (0..7)            |
    20   count u32, messages               |
    24   raw_size u32, body uncompressed   |
    28   bucket_min u16, effective         |
    30   bucket_max u16, effective         |
    32   segment_hash_min u16, effective   |
    34   segment_hash_max u16, effective   |
    36   producer_name_size u16            |
    38   lag u16, how far behind stored    |
    40   producer_id u64 = xxh64(name, 42) |
    48   first_sequence u64                |
    56   last_sequence u64                 |
    64   txn_high u64                      |
    72   txn_low u64                      /
    80   stamp_crc u32, seeded with the    \
         file's salt, bytes 0..80 84..128  |
    84   term u32                          |  stamped by the broker
    88   first_offset u64                  |  that owns the segment
    96   publish_time_ms i64               |
    104  durable_upto u64                  |
    112  segment_id u64                    |
    120  reserved u64                     /
    128  body (see docs/formats/entry.md)

All little-endian; every entry's size is a multiple of 8. Body, each column padded to 8 bytes:
key offsets i32[n+1] (KEYED) | value offsets i32[n+1] | key bytes (KEYED) | value bytes |
event times i64[n] (EVENT_TIMES) | sequence ids minus first_sequence u32[n] (SEQUENCES) |
deliver-at i64[n] (DELIVER_AT) | property offsets i32[n+1], property bytes (PROPERTIES) | producer name.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

# On disk: do not change.
cdef enum:
    MAGIC = 0x52544E45            # "ENTR"
    VERSION = 1
    HEADER_SIZE = 128
    PRODUCER_HEADER_SIZE = 80     # end of the part the producer seals

    AT_MAGIC = 0
    AT_SIZE = 4
    AT_HEADER_CRC = 8
    AT_BODY_CRC = 12
    AT_VERSION = 16
    AT_FLAGS = 17
    AT_COMPRESSION = 18
    AT_PADDING = 19
    AT_COUNT = 20
    AT_RAW_SIZE = 24
    AT_BUCKET_MIN = 28
    AT_BUCKET_MAX = 30
    AT_SEGMENT_HASH_MIN = 32
    AT_SEGMENT_HASH_MAX = 34
    AT_PRODUCER_NAME_SIZE = 36
    AT_LAG = 38
    AT_PRODUCER_ID = 40
    AT_FIRST_SEQUENCE = 48
    AT_LAST_SEQUENCE = 56
    AT_TXN_HIGH = 64
    AT_TXN_LOW = 72
    AT_STAMP_CRC = 80
    AT_TERM = 84
    AT_FIRST_OFFSET = 88
    AT_PUBLISH_TIME = 96
    AT_DURABLE_UPTO = 104
    AT_SEGMENT_ID = 112
    AT_STAMP_RESERVED = 120

    KEYED = 1
    TRANSACTIONAL = 2
    PROPERTIES = 4
    EVENT_TIMES = 8
    SEQUENCES = 16                # sequence ids are not consecutive: a column says which
    DELIVER_AT = 32
    FLAGS_KNOWN = 63

    # Not on disk. Blocks below this are checked with the GIL held: to give it up can cost a switch interval, to
    # check so little costs 3 microseconds.
    GIL_FREE_BYTES = 32768

    COMPRESSION_NONE = 0
    COMPRESSION_LZ4 = 1
    COMPRESSION_ZSTD = 2

# What raise_fault takes for a segment or offset that nobody knows.
cdef inline uint64_t unknown() noexcept nogil:
    return ~<uint64_t>0

# Why a header was refused; raised as an exception by entry.pyx, at the rim.
cdef enum Fault:
    FAULT_NONE = 0
    FAULT_SHORT = 1               # the buffer ends before the entry does
    FAULT_MAGIC = 2
    FAULT_VERSION = 3             # version, flag or compression that this build does not know
    FAULT_SIZE = 4                # size below the header, above the limit, or not a multiple of 8
    FAULT_HEADER_CRC = 5
    FAULT_BODY_CRC = 6
    FAULT_STAMP_CRC = 7
    FAULT_LAYOUT = 8              # header fields contradict each other, or columns do not add up to the body
    FAULT_SEGMENT = 9             # stamped for another segment than the one that was read
    FAULT_ORDER = 10              # its offsets are not above those before it

cdef inline uint16_t load16(const uint8_t* p) noexcept nogil:
    cdef uint16_t v
    memcpy(&v, p, 2)
    return v

cdef inline uint32_t load32(const uint8_t* p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return v

cdef inline uint64_t load64(const uint8_t* p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return v

cdef inline void store16(uint8_t* p, uint16_t v) noexcept nogil:
    memcpy(p, &v, 2)

cdef inline void store32(uint8_t* p, uint32_t v) noexcept nogil:
    memcpy(p, &v, 4)

cdef inline void store64(uint8_t* p, uint64_t v) noexcept nogil:
    memcpy(p, &v, 8)

# How far the producer knew its messages to be stored when it sealed the entry: all whose sequence is below `floor`.
# Written as the distance to the entry's first sequence, 0 for nothing known, else 1 + (e << 11 | m) for m << e at
# least; so it is never said of more than is so.
cdef inline uint16_t lag_of(uint64_t first_sequence, uint64_t floor) noexcept nogil:
    cdef uint64_t lag = first_sequence - floor
    cdef uint32_t e = 0
    if floor == 0 or floor > first_sequence:
        return 0
    while lag > 2047:
        lag = (lag + 1) >> 1
        e += 1
    return <uint16_t> (1 + (e << 11 | lag)) if e <= 30 else 0

cdef inline uint64_t floor_of(uint64_t first_sequence, uint16_t lag) noexcept nogil:
    cdef uint16_t code = lag - 1 if lag else 0
    cdef uint64_t distance = <uint64_t> (code & 2047) << (code >> 11)
    return first_sequence - distance if lag and distance <= first_sequence else 0

cdef inline size_t pad8(size_t n) noexcept nogil:
    return (n + 7) & ~<size_t>7
