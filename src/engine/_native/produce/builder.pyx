# cython: language_level=3
"""The open batch of one bucket: messages gathered in C memory until they become one entry.

Messages are copied twice: into the builder when they are added, and into the entry when it is sealed, as only then the
sizes of its columns are known. All fixed-size facts of a message are one record, so that adding a message writes to
three places only; the records become columns when the entry is written.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from engine._native.format.entry cimport (
    AT_BUCKET_MAX, AT_BUCKET_MIN, AT_COUNT, AT_FIRST_SEQUENCE, AT_FLAGS, AT_LAG, AT_LAST_SEQUENCE, AT_MAGIC,
    AT_PRODUCER_ID, AT_PRODUCER_NAME_SIZE, AT_RAW_SIZE, AT_SEGMENT_HASH_MAX, AT_SEGMENT_HASH_MIN, AT_SIZE, AT_TXN_HIGH,
    AT_TXN_LOW, AT_VERSION, DELIVER_AT, EVENT_TIMES, HEADER_SIZE, KEYED, MAGIC, PROPERTIES, SEQUENCES, TRANSACTIONAL,
    VERSION, lag_of, pad8, seal, store16, store32, store64,
)

cdef enum:
    ROOM_MIN = 4096               # bytes; below it memory is not given back
    SEALED_WITHOUT_GIL = 262144   # bytes; an entry at least so large is written with the GIL released


cdef int reserve(void** memory, size_t* room, size_t need) noexcept nogil:
    cdef size_t size = max(room[0], <size_t> ROOM_MIN)
    cdef void* moved
    if need <= room[0]:
        return 0
    while size < need:
        size *= 2
    moved = realloc(memory[0], size)
    if moved is NULL:
        return -1
    memory[0], room[0] = moved, size
    return 0


# reserve() for `count` items.
cdef int reserve_items(void** memory, size_t* room, size_t count, size_t item) noexcept nogil:
    cdef size_t bytes = room[0] * item
    if count <= room[0]:
        return 0
    if reserve(memory, &bytes, count * item) < 0:
        return -1
    room[0] = bytes // item
    return 0


cdef int builder_grow(Builder* b, const Message* m) noexcept nogil:
    cdef size_t values = 0, keys = 0, had = b.extras_room, i
    if b.count:
        values, keys = b.records[b.count - 1].value_end, b.records[b.count - 1].key_end
    if (reserve_items(<void**> &b.records, &b.records_room, b.count + 1, sizeof(Record)) < 0
            or reserve(<void**> &b.values, &b.values_room, values + m.value_size) < 0
            or reserve(<void**> &b.keys, &b.keys_room, keys + m.key_size) < 0
            or reserve(<void**> &b.properties, &b.properties_room, b.properties_size + m.properties_size) < 0):
        return -1
    if not had and not m.properties_size and m.event_time == INT64_MIN and m.deliver_at == INT64_MIN:
        return 0
    if reserve_items(<void**> &b.extras, &b.extras_room, b.count + 1, sizeof(Extra)) < 0:
        return -1
    if not had:
        for i in range(b.count):
            b.extras[i].event_time = b.extras[i].deliver_at = INT64_MIN
            b.extras[i].properties_end = 0
    return 0


cdef void builder_add_extra(Builder* b, const Message* m) noexcept nogil:
    cdef Extra* extra = &b.extras[b.count]
    if m.properties_size:
        memcpy(b.properties + b.properties_size, m.properties, m.properties_size)
        b.properties_size += m.properties_size
        b.flags |= PROPERTIES
    if m.event_time != INT64_MIN:
        b.flags |= EVENT_TIMES
    if m.deliver_at != INT64_MIN:
        b.flags |= DELIVER_AT
    extra.event_time, extra.deliver_at = m.event_time, m.deliver_at
    extra.properties_end = <uint32_t> b.properties_size


# Give half of a block back where less than a quarter of it was used.
cdef void relax(void** memory, size_t* room, size_t used, size_t item) noexcept nogil:
    cdef void* moved
    if room[0] * item <= ROOM_MIN or used >= room[0] // 4:
        return
    moved = realloc(memory[0], room[0] // 2 * item)
    if moved is not NULL:
        memory[0], room[0] = moved, room[0] // 2


cdef void builder_reset(Builder* b) noexcept nogil:
    if b.count:
        relax(<void**> &b.values, &b.values_room, b.records[b.count - 1].value_end, 1)
        relax(<void**> &b.keys, &b.keys_room, b.records[b.count - 1].key_end, 1)
        relax(<void**> &b.records, &b.records_room, b.count, sizeof(Record))
    if b.extras is not NULL:
        free(b.extras)
        free(b.properties)
        b.extras = NULL
        b.properties = NULL
        b.extras_room = b.properties_room = b.properties_size = 0
    b.count = b.flags = 0
    b.bytes = 0


cdef void builder_free(Builder* b) noexcept nogil:
    free(b.records)
    free(b.values)
    free(b.keys)
    free(b.extras)
    free(b.properties)
    memset(b, 0, sizeof(Builder))


cdef size_t builder_image_size(const Builder* b, size_t name_size) noexcept nogil:
    cdef size_t n = b.count, offsets = pad8(4 * (n + 1))
    cdef size_t size = HEADER_SIZE + offsets + pad8(b.records[n - 1].value_end) + pad8(name_size)
    if b.flags & KEYED:
        size += offsets + pad8(b.records[n - 1].key_end)
    if b.flags & EVENT_TIMES:
        size += 8 * n
    if b.flags & SEQUENCES:
        size += pad8(4 * n)
    if b.flags & DELIVER_AT:
        size += 8 * n
    if b.flags & PROPERTIES:
        size += offsets + pad8(b.properties_size)
    return size


# Copy bytes and the zeros that pad them to a multiple of 8; where the next column begins.
cdef uint8_t* put(uint8_t* at, const void* source, size_t size) noexcept nogil:
    cdef size_t padded = pad8(size)
    if padded > size:
        memset(at + padded - 8, 0, 8)
    if size:
        memcpy(at, source, size)
    return at + padded


# One uint32 of every record (`field` words into it), behind a 0 where it is an offset column.
cdef uint8_t* put_words(uint8_t* at, const void* records, size_t item, size_t field, uint32_t n,
                        bint offsets) noexcept nogil:
    cdef uint32_t* out = <uint32_t*> at
    cdef const uint8_t* source = <const uint8_t*> records + 4 * field
    cdef size_t i, words = n
    if offsets:
        out[0] = 0
        out += 1
        words += 1
    for i in range(n):
        out[i] = (<const uint32_t*> (source + i * item))[0]
    if words & 1:
        out[n] = 0
    return at + pad8(4 * words)


cdef uint8_t* put_instants(uint8_t* at, const Builder* b, bint deliver) noexcept nogil:
    cdef int64_t* out = <int64_t*> at
    cdef size_t i
    for i in range(b.count):
        out[i] = b.extras[i].deliver_at if deliver else b.extras[i].event_time
    return at + 8 * <size_t> b.count


cdef void put_header(const Builder* b, uint8_t* p, size_t size, size_t name_size, uint64_t producer_id) noexcept nogil:
    memset(p, 0, HEADER_SIZE)
    store32(p + AT_MAGIC, MAGIC)
    store32(p + AT_SIZE, <uint32_t> size)
    p[AT_VERSION] = VERSION
    p[AT_FLAGS] = <uint8_t> b.flags
    store32(p + AT_COUNT, b.count)
    store32(p + AT_RAW_SIZE, <uint32_t> (size - HEADER_SIZE))
    store16(p + AT_BUCKET_MIN, b.bucket_min)
    store16(p + AT_BUCKET_MAX, b.bucket_max)
    store16(p + AT_SEGMENT_HASH_MIN, b.segment_min)
    store16(p + AT_SEGMENT_HASH_MAX, b.segment_max)
    store16(p + AT_PRODUCER_NAME_SIZE, <uint16_t> name_size)
    store16(p + AT_LAG, lag_of(b.first_sequence, b.floor))
    store64(p + AT_PRODUCER_ID, producer_id)
    store64(p + AT_FIRST_SEQUENCE, b.first_sequence)
    store64(p + AT_LAST_SEQUENCE, b.last_sequence)
    if b.flags & TRANSACTIONAL:
        store64(p + AT_TXN_HIGH, b.txn_high)
        store64(p + AT_TXN_LOW, b.txn_low)


cdef void write_image(const Builder* b, uint8_t* p, size_t size, const char* name, size_t name_size,
                      uint64_t producer_id) noexcept nogil:
    cdef const Record* last = &b.records[b.count - 1]
    cdef uint8_t* at = p + HEADER_SIZE
    put_header(b, p, size, name_size, producer_id)
    if b.flags & KEYED:
        at = put_words(at, b.records, sizeof(Record), 1, b.count, True)
    at = put_words(at, b.records, sizeof(Record), 0, b.count, True)
    if b.flags & KEYED:
        at = put(at, b.keys, last.key_end)
    at = put(at, b.values, last.value_end)
    if b.flags & EVENT_TIMES:
        at = put_instants(at, b, False)
    if b.flags & SEQUENCES:
        at = put_words(at, b.records, sizeof(Record), 2, b.count, False)
    if b.flags & DELIVER_AT:
        at = put_instants(at, b, True)
    if b.flags & PROPERTIES:
        at = put_words(at, &b.extras[0].properties_end, sizeof(Extra), 0, b.count, True)
        at = put(at, b.properties, b.properties_size)
    put(at, name, name_size)
    seal(p)


cdef void builder_write(const Builder* b, uint8_t* p, bytes name, uint64_t producer_id) noexcept:
    cdef const char* text = PyBytes_AS_STRING(name)
    cdef size_t name_size = PyBytes_GET_SIZE(name), size = builder_image_size(b, name_size)
    if size < SEALED_WITHOUT_GIL:
        write_image(b, p, size, text, name_size, producer_id)
        return
    with nogil:
        write_image(b, p, size, text, name_size, producer_id)
