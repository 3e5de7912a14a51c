# cython: language_level=3
"""The open batch of one bucket: messages gathered in C memory until they become one entry."""
from engine._native.format.entry cimport SEQUENCES
from engine._native.format.invariants cimport engine_check
from cpython.ref cimport PyObject
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

cdef enum:
    RECORD_COST = 16              # bytes a message is charged besides its own: offsets, sequence, its share of padding
    EXTRA_COST_MAX = 20           # bytes of event time, deliver-at and property offset of each message of an entry
    ENTRY_COST_MAX = 512          # header, producer name and padding
    DELAYS_MS_MAX = 1000          # between the deliver-at times of one entry, which is sent once for each of them

# One message on its way in. The pointers are the caller's, valid during the call.
cdef struct Message:
    const uint8_t* value
    const uint8_t* key
    const uint8_t* properties     # a msgpack map
    size_t value_size
    size_t key_size               # 0 when keyless
    size_t properties_size        # 0 when there are none
    int64_t event_time            # milliseconds; INT64_MIN for none
    int64_t deliver_at            # milliseconds; INT64_MIN for none
    uint64_t sequence
    uint32_t hash                 # of the key
    PyObject* transaction         # that it belongs to, borrowed; NULL for none

cdef struct Record:
    uint32_t value_end            # in the builder's values
    uint32_t key_end              # in the builder's keys
    uint32_t sequence             # minus first_sequence

cdef struct Extra:
    int64_t event_time
    int64_t deliver_at
    uint32_t properties_end

# Memory is kept from batch to batch, and halved when a batch used less than a quarter. Invariant: the content fits the
# rooms. Checked by builder_add(), with ENGINE_DEBUG=1.
cdef struct Builder:
    # The content.
    uint32_t count
    uint32_t flags                # of layout.pxd, as far as the messages so far need them
    size_t bytes                  # charged: keys, values, properties and RECORD_COST each
    int64_t deliver_at            # of the first message
    uint64_t first_sequence
    uint64_t last_sequence
    uint64_t floor                # every message of the producer below it is stored; 0 for nothing known
    uint32_t block_bits           # 0, or the low bits in which sequences of one entry may differ; kept by reset
    uint16_t bucket_min
    uint16_t bucket_max
    uint16_t segment_min
    uint16_t segment_max
    # Memory, owned.
    size_t records_room
    size_t values_room
    size_t keys_room
    size_t extras_room            # 0 until a message of this batch has an extra
    size_t properties_size
    size_t properties_room
    Record* records
    uint8_t* values
    uint8_t* keys
    Extra* extras
    uint8_t* properties
    # The transaction of its messages, where flags say TRANSACTIONAL: its number, and that of the attempt.
    uint64_t txn_high
    uint64_t txn_low

cdef inline size_t message_cost(const Message* m) noexcept nogil:
    return m.value_size + m.key_size + m.properties_size + RECORD_COST

# May messages with these deliver-at times share an entry? Only if both have one: the broker withholds messages one by
# one, but each time sends the whole entry.
cdef inline bint delays_agree(int64_t a, int64_t b) noexcept nogil:
    cdef uint64_t apart = <uint64_t> max(a, b) - <uint64_t> min(a, b)
    return min(a, b) != INT64_MIN and apart <= DELAYS_MS_MAX

# May the message join the batch? False: seal first. An empty batch takes anything that is within the limits.
cdef inline bint builder_fits(const Builder* b, const Message* m, size_t bytes_max, uint32_t messages_max,
                              size_t entry_max) noexcept nogil:
    cdef size_t bytes = b.bytes + message_cost(m)
    if b.count == 0:
        return True
    if m.deliver_at != b.deliver_at and not delays_agree(m.deliver_at, b.deliver_at):
        return False
    if b.block_bits and (m.sequence ^ b.first_sequence) >> b.block_bits:
        return False
    return (
        bytes <= bytes_max and b.count < messages_max
        and bytes + EXTRA_COST_MAX * (b.count + 1) + ENTRY_COST_MAX <= entry_max
        and m.sequence - b.first_sequence <= <uint64_t> 0xFFFFFFFF
    )

# At least `need` bytes at *memory, of which there are *room, by doubling; -1: no memory, nothing changed.
cdef int reserve(void** memory, size_t* room, size_t need) noexcept nogil
# Make room for a message; -1: no memory, nothing changed.
cdef int builder_grow(Builder* b, const Message* m) noexcept nogil
# Add the extras of a message whose record was just written; room was made before.
cdef void builder_add_extra(Builder* b, const Message* m) noexcept nogil
# Bytes of the entry that would be made now.
cdef size_t builder_image_size(const Builder* b, size_t name_size) noexcept nogil
# Write that entry, checksums included, into `p`.
cdef void builder_write(const Builder* b, uint8_t* p, bytes name, uint64_t producer_id) noexcept
# Forget the messages.
cdef void builder_reset(Builder* b) noexcept nogil
cdef void builder_free(Builder* b) noexcept nogil

cdef extern from *:
    """
    #define engine_prefetch(address) __builtin_prefetch((const void *)(address), 1)
    """
    void engine_prefetch(uintptr_t address) noexcept nogil

# Add a message that fits. -1: no memory, nothing changed.
cdef inline int builder_add(Builder* b, const Message* m) noexcept nogil:
    cdef Record* record
    cdef Record before
    cdef uint16_t bucket = <uint16_t> m.hash, segment = <uint16_t> (m.hash >> 16)
    cdef bint extra = m.properties_size or m.event_time != INT64_MIN or m.deliver_at != INT64_MIN or b.extras_room
    before.value_end = before.key_end = 0
    if b.count:
        before = b.records[b.count - 1]
    if (b.count >= b.records_room or before.value_end + m.value_size > b.values_room
            or before.key_end + m.key_size > b.keys_room
            or extra and (b.count >= b.extras_room or b.properties_size + m.properties_size > b.properties_room)):
        if builder_grow(b, m) < 0:
            return -1
    if b.count == 0:
        b.first_sequence = m.sequence
        b.deliver_at = m.deliver_at
        b.bucket_min = b.bucket_max = bucket
        b.segment_min = b.segment_max = segment
    elif m.sequence != b.last_sequence + 1:
        b.flags |= SEQUENCES
    b.bucket_min = min(b.bucket_min, bucket)
    b.bucket_max = max(b.bucket_max, bucket)
    b.segment_min = min(b.segment_min, segment)
    b.segment_max = max(b.segment_max, segment)
    record = &b.records[b.count]
    record.value_end = before.value_end + <uint32_t> m.value_size
    record.key_end = before.key_end + <uint32_t> m.key_size
    record.sequence = <uint32_t> (m.sequence - b.first_sequence)
    if m.value_size:
        memcpy(b.values + before.value_end, m.value, m.value_size)
    if m.key_size:
        memcpy(b.keys + before.key_end, m.key, m.key_size)
    b.last_sequence = m.sequence
    b.bytes += message_cost(m)
    if extra:
        builder_add_extra(b, m)
    b.count += 1
    engine_check(
        b.count <= b.records_room and record.value_end <= b.values_room and record.key_end <= b.keys_room
        and b.properties_size <= b.properties_room and (b.extras_room == 0 or b.count <= b.extras_room),
        b"what a builder holds fits its rooms",
    )
    # With many buckets the next message for this one comes late: fetch what it will write to by then.
    engine_prefetch(<uintptr_t> b.values + record.value_end + 64)
    engine_prefetch(<uintptr_t> b.values + record.value_end + 128)
    engine_prefetch(<uintptr_t> b.keys + record.key_end + 64)
    engine_prefetch(<uintptr_t> record + 64)
    return 0
