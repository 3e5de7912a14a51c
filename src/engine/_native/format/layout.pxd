# cython: language_level=3
"""The entry: one sealed batch of messages of one bucket; the byte image on wire and disk.

    0    magic u32 "ENTR"                 \
    4    size u32, whole entry             |
    8    header_crc u32, bytes 12..80      |  written by the producer,
    12   body_crc u32, bytes 128..size     |  never changed afterwards
    16   version u8                        |
    17   flags u8                          |
    18   compression u8, and encryption    |
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
    PRODUCER_HEADER_SIZE = 80     # the part that the producer seals

    # Each field begins where the one before it ends: its offset, plus its width. Checked by entry.pyx when it loads.
    AT_MAGIC = 0
    AT_SIZE = AT_MAGIC + 4
    AT_HEADER_CRC = AT_SIZE + 4
    AT_BODY_CRC = AT_HEADER_CRC + 4
    AT_VERSION = AT_BODY_CRC + 4
    AT_FLAGS = AT_VERSION + 1
    AT_COMPRESSION = AT_FLAGS + 1
    AT_PADDING = AT_COMPRESSION + 1
    AT_COUNT = AT_PADDING + 1
    AT_RAW_SIZE = AT_COUNT + 4
    AT_BUCKET_MIN = AT_RAW_SIZE + 4
    AT_BUCKET_MAX = AT_BUCKET_MIN + 2
    AT_SEGMENT_HASH_MIN = AT_BUCKET_MAX + 2
    AT_SEGMENT_HASH_MAX = AT_SEGMENT_HASH_MIN + 2
    AT_PRODUCER_NAME_SIZE = AT_SEGMENT_HASH_MAX + 2
    AT_LAG = AT_PRODUCER_NAME_SIZE + 2
    AT_PRODUCER_ID = AT_LAG + 2
    AT_FIRST_SEQUENCE = AT_PRODUCER_ID + 8
    AT_LAST_SEQUENCE = AT_FIRST_SEQUENCE + 8
    AT_TXN_HIGH = AT_LAST_SEQUENCE + 8
    AT_TXN_LOW = AT_TXN_HIGH + 8
    AT_STAMP_CRC = AT_TXN_LOW + 8
    AT_TERM = AT_STAMP_CRC + 4
    AT_FIRST_OFFSET = AT_TERM + 4
    AT_PUBLISH_TIME = AT_FIRST_OFFSET + 8
    AT_DURABLE_UPTO = AT_PUBLISH_TIME + 8
    AT_SEGMENT_ID = AT_DURABLE_UPTO + 8
    AT_STAMP_RESERVED = AT_SEGMENT_ID + 8
    AT_BODY = AT_STAMP_RESERVED + 8         # what the chain comes to: HEADER_SIZE

    KEYED = 1
    TRANSACTIONAL = 2
    PROPERTIES = 4
    EVENT_TIMES = 8
    SEQUENCES = 16                # sequence ids are not consecutive: a column says which
    DELIVER_AT = 32
    FLAGS_KNOWN = 63

    # Not on disk. Blocks below this are checked with the GIL held: releasing it can cost a switch interval, checking
    # so little costs 3 microseconds.
    GIL_FREE_BYTES = 32768

    COMPRESSION_NONE = 0
    COMPRESSION_LZ4 = 1
    COMPRESSION_ZSTD = 2
    COMPRESSION_MASK = 3
    ENCRYPTED = 4                 # beside the codec: the body is an envelope and a ciphertext, see envelope.pxd

# Stands for a segment or offset that is not known.
cdef inline uint64_t unknown() noexcept nogil:
    return ~<uint64_t>0

# Why an entry was refused; entry.pyx raises it as an exception.
cdef enum Fault:
    FAULT_NONE = 0
    FAULT_SHORT = 1               # the buffer ends before the entry
    FAULT_MAGIC = 2
    FAULT_VERSION = 3             # version, flag or compression that this build does not know
    FAULT_SIZE = 4                # size below the header, above the limit, or not a multiple of 8
    FAULT_HEADER_CRC = 5
    FAULT_BODY_CRC = 6
    FAULT_STAMP_CRC = 7
    FAULT_LAYOUT = 8              # header fields contradict each other, or columns do not add up to the body
    FAULT_SEGMENT = 9             # stamped for another segment than the one that was read
    FAULT_ORDER = 10              # its offsets are not above those of the entry before

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

# The producer's floor when it sealed the entry: all its messages with a lower sequence were stored. Written as the
# distance from the entry's first sequence, rounded up so that the floor read back is never too high: 0 for nothing
# known, else 1 + (e << 11 | m) for the distance m << e.
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
