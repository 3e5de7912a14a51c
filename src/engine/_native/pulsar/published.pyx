# cython: language_level=3, auto_pickle=False
"""What a producer of Apache Pulsar has published: a batch of its messages, to entries.

A batch is a row of messages, each of them

    size u32, big-endian | SingleMessageMetadata (size bytes) | payload (payload_size of the metadata)

and an entry is columnar, so every message is copied once into a builder, as those of our own producers are. All of them
stay in order. A new entry begins where the messages cannot share one: where keyed ones follow keyless ones or the other
way round, where a sequence id falls, where the entry would be too large, and, of messages that may be stored already,
at each one, so that none of these entries is stored in part.

*Several buckets.* An entry has messages of one bucket of its segment, so where there are several, the messages are put
in order by bucket first, those without a key last (`_sort`). Within a bucket they stay as they were.

*Batches of one id.* Some clients give a sequence id to each SEND, and none to its messages. All of these have the id of
the SEND then. Of one kind and bucket they make one entry, since a second one of the same id would count as stored.

What an entry has no column for becomes a property of the message, of a name that begins with "pulsar.": see
delivered.pyx, which makes it what it was.

Nothing in a batch is trusted. A message that is no message is a CorruptionError for the whole batch, one beyond a limit
a MessageTooLargeError; both name its index.
"""
from cpython.array cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from engine._native.format.body cimport Lease, hold
from engine._native.format.layout cimport KEYED, TRANSACTIONAL
from engine._native.produce.builder cimport (
    Builder, Message, builder_add, builder_fits, builder_free, builder_image_size, builder_reset, builder_write,
    reserve,
)
from engine._native.produce.hashing cimport KEY_MURMUR3, key32_of
from engine._native.pulsar.fields cimport Field, Reading, load32_big, next_field

from itertools import pairwise

from engine._native.produce.hashing import xxh64
from engine.errors import CorruptionError, InvalidArgumentError, MessageTooLargeError
from engine.limits import (
    ENTRY_MESSAGES_MAX, ENTRY_SIZE_MAX, KEY_SIZE_MAX, MESSAGE_SIZE_MAX, PRODUCER_NAME_SIZE_MAX, PROPERTIES_SIZE_MAX,
    SCHEMA_VERSIONS_MAX,
)

# Fields of SingleMessageMetadata, and of KeyValue.
cdef enum:
    PROPERTIES_FIELD = 1
    KEY_FIELD = 2
    PAYLOAD_SIZE_FIELD = 3
    EVENT_TIME_FIELD = 5
    BASE64_FIELD = 6
    ORDERING_FIELD = 7
    SEQUENCE_FIELD = 8
    NULL_VALUE_FIELD = 9
    NULL_KEY_FIELD = 10

cdef enum Refusal:
    TAKEN = 0
    NO_MESSAGE = 1
    NO_BASE64 = 2
    NO_SEQUENCE = 3
    VALUE_TOO_LARGE = 4
    KEY_TOO_LARGE = 5
    PROPERTIES_TOO_LARGE = 6
    NO_MEMORY = 7
    MORE_BYTES = 8
    ONE_ID_TOO_LARGE = 9

cdef size_t VALUE_MAX = MESSAGE_SIZE_MAX
cdef size_t KEY_MAX = KEY_SIZE_MAX
cdef size_t PROPERTIES_MAX = PROPERTIES_SIZE_MAX
cdef uint32_t COUNT_MAX = ENTRY_MESSAGES_MAX
cdef size_t SIZE_MAX = ENTRY_SIZE_MAX
cdef uint32_t VERSIONS_MAX = SCHEMA_VERSIONS_MAX

_REFUSALS = {
    NO_MESSAGE: "it must be a size, a SingleMessageMetadata and a payload within the batch; it is not",
    NO_BASE64: "its key must be base64, as its metadata say; it is not",
    NO_SEQUENCE: "its sequence id must be below 2^63; it is not",
    VALUE_TOO_LARGE: f"a value must have at most {MESSAGE_SIZE_MAX:,} bytes",
    KEY_TOO_LARGE: f"a key must have at most {KEY_SIZE_MAX:,} bytes",
    PROPERTIES_TOO_LARGE: f"properties must have at most {PROPERTIES_SIZE_MAX:,} bytes",
    ONE_ID_TOO_LARGE: f"messages without sequence ids of their own must make one entry, of {ENTRY_SIZE_MAX:,} bytes",
}


# What is used to convert one message, besides the batch: memory, and the topic's hash of keys.
cdef struct Scratch:
    uint8_t* map
    size_t map_room
    uint8_t* key
    size_t key_room
    int key_hash                  # KeyHash of the topic
    uint32_t version              # of the schema of all messages; the first one is 0


cdef bint _read_pair(const Field* pair, Field* name, Field* value) noexcept nogil:
    cdef Reading at
    cdef Field field
    cdef int found
    at.p, at.end = pair.data, pair.data + pair.size
    memset(name, 0, sizeof(Field))
    memset(value, 0, sizeof(Field))
    while True:
        found = next_field(&at, &field)
        if found <= 0:
            return found == 0
        if field.kind == 2 and field.tag == 1:
            name[0] = field
        elif field.kind == 2 and field.tag == 2:
            value[0] = field


# Read the message at `at`, and move behind it.
cdef bint _read_single(Reading* at, Single* one) noexcept nogil:
    cdef Reading meta
    cdef Field field, name, value
    cdef uint64_t payload = 0
    cdef bint sized = False, null_key = False
    cdef int found
    memset(one, 0, sizeof(Single))
    one.event_time = INT64_MIN
    if at.end - at.p < 4 or load32_big(at.p) > <size_t> (at.end - at.p - 4):
        return False
    one.meta, one.meta_size = at.p + 4, load32_big(at.p)
    meta.p, meta.end = one.meta, one.meta + one.meta_size
    while True:
        found = next_field(&meta, &field)
        if found < 0:
            return False
        if found == 0:
            break
        if field.tag == PROPERTIES_FIELD and field.kind == 2:
            if not _read_pair(&field, &name, &value):
                return False
            one.pairs += 1
            one.pairs_bytes += name.size + value.size
        elif field.tag == KEY_FIELD and field.kind == 2:
            one.key, one.key_size, one.has_key = field.data, field.size, True
        elif field.tag == PAYLOAD_SIZE_FIELD and field.kind == 0:
            payload, sized = field.number, True
        elif field.tag == EVENT_TIME_FIELD and field.kind == 0:
            one.event_time = <int64_t> field.number if field.number else INT64_MIN
        elif field.tag == BASE64_FIELD and field.kind == 0:
            one.base64 = field.number != 0
        elif field.tag == ORDERING_FIELD and field.kind == 2:
            one.ordering, one.ordering_size, one.has_ordering = field.data, field.size, True
        elif field.tag == SEQUENCE_FIELD and field.kind == 0:
            one.sequence, one.has_sequence = field.number, True
        elif field.tag == NULL_VALUE_FIELD and field.kind == 0:
            one.null_value = field.number != 0
        elif field.tag == NULL_KEY_FIELD and field.kind == 0:
            null_key = field.number != 0
    if not sized or payload > <uint64_t> (at.end - meta.end):
        return False
    if null_key:
        one.has_key = False
    one.value, one.value_size = meta.end, <size_t> payload
    at.p = meta.end + payload
    return True


cdef int _sextet(uint8_t c) noexcept nogil:
    if 65 <= c <= 90:
        return c - 65
    if 97 <= c <= 122:
        return c - 71
    if 48 <= c <= 57:
        return c + 4
    if c == 43:
        return 62
    return 63 if c == 47 else -1


# Decode standard base64 with padding; bytes written to `out`, which has room for 3 of each 4, or -1.
cdef Py_ssize_t _from_base64(const uint8_t* p, size_t size, uint8_t* out) noexcept nogil:
    cdef size_t i, kept, written = 0
    cdef int a, b, c, d
    if size % 4:
        return -1
    for i in range(0, size, 4):
        kept = 3
        if i + 4 == size and p[i + 3] == 61:
            kept = 1 if p[i + 2] == 61 else 2
        a, b = _sextet(p[i]), _sextet(p[i + 1])
        c = _sextet(p[i + 2]) if kept > 1 else 0
        d = _sextet(p[i + 3]) if kept > 2 else 0
        if a < 0 or b < 0 or c < 0 or d < 0:
            return -1
        out[written] = <uint8_t> (a << 2 | b >> 4)
        if kept > 1:
            out[written + 1] = <uint8_t> (b << 4 | c >> 2)
        if kept > 2:
            out[written + 2] = <uint8_t> (c << 6 | d)
        written += kept
    return <Py_ssize_t> written


cdef uint8_t* _put_text(uint8_t* at, const void* text, size_t size) noexcept nogil:
    at[0] = 0xDB  # str 32
    at[1], at[2] = <uint8_t> (size >> 24), <uint8_t> (size >> 16)
    at[3], at[4] = <uint8_t> (size >> 8), <uint8_t> size
    if size < 32:
        at[0] = <uint8_t> (0xA0 | size)
        at -= 4
    elif size < 256:
        at[0], at[1] = 0xD9, <uint8_t> size
        at -= 3
    elif size < 65536:
        at[0], at[1], at[2] = 0xDA, <uint8_t> (size >> 8), <uint8_t> size
        at -= 2
    if size:
        memcpy(at + 5, text, size)
    return at + 5 + size


# The properties as a msgpack map of text to text, in `scratch`; its size, 0 for none, -1 without memory.
cdef Py_ssize_t _pack_properties(const Single* one, Scratch* scratch) noexcept nogil:
    cdef uint32_t pairs = one.pairs + one.has_ordering + one.null_value + one.base64 + (scratch.version > 0)
    cdef size_t room = 5 + 10 * <size_t> pairs + one.pairs_bytes + 2 * one.ordering_size + 96
    cdef Reading meta
    cdef Field field, name, value
    cdef uint8_t* at
    if not pairs:
        return 0
    if reserve(<void**> &scratch.map, &scratch.map_room, room) < 0:
        return -1
    at = scratch.map
    if pairs < 16:
        at[0] = <uint8_t> (0x80 | pairs)
        at += 1
    else:
        at[0], at[1], at[2] = 0xDF, <uint8_t> (pairs >> 24), <uint8_t> (pairs >> 16)
        at[3], at[4] = <uint8_t> (pairs >> 8), <uint8_t> pairs
        at += 5
    meta.p, meta.end = one.meta, one.meta + one.meta_size
    while next_field(&meta, &field) > 0:
        if field.tag == PROPERTIES_FIELD and field.kind == 2 and _read_pair(&field, &name, &value):
            at = _put_text(at, name.data, name.size)
            at = _put_text(at, value.data, value.size)
    if one.has_ordering:
        at = _put_text(at, b"pulsar.ordering-key", 19)
        at = _put_hex(at, one.ordering, one.ordering_size)
    if one.null_value:
        at = _put_text(_put_text(at, b"pulsar.null-value", 17), b"", 0)
    if one.base64:
        at = _put_text(_put_text(at, b"pulsar.key-bytes", 16), b"", 0)
    if scratch.version:
        at = _put_version(_put_text(at, b"pulsar.schema-version", 21), scratch.version)
    return at - scratch.map


# A number below VERSIONS_MAX as a text.
cdef uint8_t* _put_version(uint8_t* at, uint32_t version) noexcept nogil:
    cdef uint8_t digits[2]
    digits[0], digits[1] = <uint8_t> (48 + version // 10), <uint8_t> (48 + version % 10)
    return _put_text(at, digits, 2) if version >= 10 else _put_text(at, digits + 1, 1)


# A text of two hexadecimal digits for each byte.
cdef uint8_t* _put_hex(uint8_t* at, const uint8_t* data, size_t size) noexcept nogil:
    cdef const char* digits = b"0123456789abcdef"
    cdef size_t i
    cdef uint8_t* text
    if 2 * size < 32:
        at[0] = <uint8_t> (0xA0 | 2 * size)
        text = at + 1
    elif 2 * size < 65536:
        at[0], at[1], at[2] = 0xDA, <uint8_t> (2 * size >> 8), <uint8_t> (2 * size)
        text = at + 3
    else:
        at[0], at[1], at[2] = 0xDB, <uint8_t> (2 * size >> 24), <uint8_t> (2 * size >> 16)
        at[3], at[4] = <uint8_t> (2 * size >> 8), <uint8_t> (2 * size)
        text = at + 5
    for i in range(size):
        text[2 * i], text[2 * i + 1] = digits[data[i] >> 4], digits[data[i] & 15]
    return text + 2 * size


# The message for a builder.
cdef Refusal _convert(const Single* one, Scratch* scratch, int64_t deliver_at, Message* m) noexcept nogil:
    cdef Py_ssize_t size
    memset(m, 0, sizeof(Message))
    if one.value_size > VALUE_MAX:
        return VALUE_TOO_LARGE
    if one.key_size > 2 * KEY_MAX or one.ordering_size > KEY_MAX:
        return KEY_TOO_LARGE
    if one.pairs_bytes > PROPERTIES_MAX or one.pairs > PROPERTIES_MAX // 2:
        return PROPERTIES_TOO_LARGE
    m.value, m.value_size = one.value, one.value_size
    m.event_time, m.deliver_at = one.event_time, deliver_at
    if one.has_key:
        m.key, m.key_size = one.key, one.key_size
        if one.base64:
            if reserve(<void**> &scratch.key, &scratch.key_room, one.key_size + 4) < 0:
                return NO_MEMORY
            size = _from_base64(one.key, one.key_size, scratch.key)
            if size < 0:
                return NO_BASE64
            m.key, m.key_size = scratch.key, <size_t> size
        if m.key_size > KEY_MAX:
            return KEY_TOO_LARGE
        m.hash = key32_of(m.key, m.key_size, scratch.key_hash)
    size = _pack_properties(one, scratch)
    if size < 0:
        return NO_MEMORY
    if <size_t> size > PROPERTIES_MAX:
        return PROPERTIES_TOO_LARGE
    m.properties, m.properties_size = scratch.map, <size_t> size
    return TAKEN


cdef bytes _sealed(Builder* b, bytes name, uint64_t producer_id, transaction):
    cdef size_t size = builder_image_size(b, len(name))
    cdef bytes entry
    if size > SIZE_MAX:
        raise MessageTooLargeError(f"an entry must have at most {SIZE_MAX:,} bytes, got {size:,}")
    entry = PyBytes_FromStringAndSize(NULL, size)
    if transaction is not None:
        b.flags |= TRANSACTIONAL
        b.txn_high, b.txn_low = transaction, 0
    builder_write(b, <uint8_t*> PyBytes_AS_STRING(entry), name, producer_id)
    builder_reset(b)
    return entry


# What _fill() is at.
cdef struct Filling:
    Reading at
    const uint8_t** starts        # of the messages of a batch that is sorted, else NULL: in the order of the batch
    uint32_t* groups              # their buckets; behind the last one: those without a key
    uint32_t* order               # indices of messages, by group
    uint32_t taken                # of `order`
    uint32_t group                # of the pending message
    uint32_t segment_start        # hashes of the segment
    uint32_t segment_size
    uint32_t left                 # messages that were not read
    uint32_t index                # of the message that is read next
    uint64_t sequence             # of each message that says none itself
    uint64_t alone_upto           # messages with sequences below it are entries of their own
    int64_t deliver_at
    size_t entry_max
    bint unnumbered               # the messages have no sequence ids of their own
    bint pending                  # `message` was read, and is in no builder yet
    bint keyed
    Message message


# The hash of a keyless entry: spread over the segment's hashes and over its buckets, as of those of our own producers.
cdef inline uint32_t _spread(const Filling* f, uint64_t sequence) noexcept nogil:
    cdef uint32_t spread = <uint32_t> sequence * <uint32_t> 2654435761
    return (f.segment_start + ((spread >> 16) * f.segment_size >> 16)) << 16 | (spread & 0xFFFF)


# Whether the first message says its sequence id.
cdef bint _is_numbered(Reading at) noexcept nogil:
    cdef Single one
    return not _read_single(&at, &one) or one.has_sequence


# Find where each message of the batch begins, and the order by bucket. `ends`: of the buckets, inclusive.
cdef Refusal _sort(Filling* f, const uint16_t* ends, uint32_t buckets, Scratch* scratch) noexcept nogil:
    cdef Single one
    cdef Refusal refusal
    cdef Message message
    cdef uint32_t i, g, at, count = f.left
    cdef uint32_t* firsts = <uint32_t*> calloc(buckets + 2, sizeof(uint32_t))
    f.starts = <const uint8_t**> malloc(count * sizeof(uint8_t*))
    f.groups = <uint32_t*> malloc(count * sizeof(uint32_t))
    f.order = <uint32_t*> malloc(count * sizeof(uint32_t))
    if firsts == NULL or f.starts == NULL or f.groups == NULL or f.order == NULL:
        free(firsts)
        return NO_MEMORY
    for i in range(count):
        f.index = i
        f.starts[i] = f.at.p
        if not _read_single(&f.at, &one):
            free(firsts)
            return NO_MESSAGE
        g = buckets
        if one.has_key:
            refusal = _convert(&one, scratch, f.deliver_at, &message)
            if refusal != TAKEN:
                free(firsts)
                return refusal
            g = 0
            while ends[g] < <uint16_t> message.hash:
                g += 1
        f.groups[i] = g
        firsts[g + 1] += 1
    if f.at.p != f.at.end:
        free(firsts)
        return MORE_BYTES
    for g in range(buckets + 1):
        firsts[g + 1] += firsts[g]
    for i in range(count):
        at = firsts[f.groups[i]]
        firsts[f.groups[i]] += 1
        f.order[at] = i
    free(firsts)
    f.index = 0
    return TAKEN


# Add messages until the entry is complete, or the batch is.
cdef Refusal _fill(Filling* f, Builder* b, Scratch* scratch) noexcept nogil:
    cdef Single one
    cdef Refusal refusal
    cdef bint alone, begins = False
    while f.pending or f.left:
        if not f.pending:
            if f.order != NULL:
                f.index = f.order[f.taken]
                f.at.p = f.starts[f.index]
                f.taken += 1
                begins = b.count and f.groups[f.index] != f.group
                f.group = f.groups[f.index]
            if not _read_single(&f.at, &one):
                return NO_MESSAGE
            refusal = _convert(&one, scratch, f.deliver_at, &f.message)
            if refusal != TAKEN:
                return refusal
            f.message.sequence = one.sequence if one.has_sequence else f.sequence
            if f.message.sequence >> 63:
                return NO_SEQUENCE
            f.keyed, f.pending = one.has_key, True
            f.left -= 1
            f.index += 1
            if not f.keyed:
                f.message.hash = _spread(f, f.message.sequence)
        alone = f.message.sequence < f.alone_upto and not f.unnumbered
        if b.count and (
            alone or begins or (b.flags & KEYED != 0) != f.keyed or f.message.sequence < b.last_sequence
            or not builder_fits(b, &f.message, f.entry_max, COUNT_MAX, f.entry_max)
        ):
            return TAKEN if begins or not f.unnumbered else ONE_ID_TOO_LARGE
        if builder_add(b, &f.message) < 0:
            return NO_MEMORY
        f.pending = False
        if f.keyed:
            b.flags |= KEYED
        else:
            b.bucket_min = b.bucket_max = <uint16_t> _spread(f, b.first_sequence)
            b.segment_min = b.segment_max = <uint16_t> (_spread(f, b.first_sequence) >> 16)
        if alone:
            return TAKEN
    return TAKEN


def entries_of(batch, uint32_t count, bytes name not None, *, uint64_t sequence=0, deliver_at=None, stored=-1,
               size_t entry_size_max=ENTRY_SIZE_MAX, hashes=(0, 65535), buckets=(65535,),
               int key_hash=KEY_MURMUR3, transaction=None, uint32_t schema_version=0):
    """The entries of a batch of `count` messages, in order. `key_hash`: of the topic, as in hashing.pxd.
    `transaction`: the number of the one that all of them belong to. `schema_version`: that they were written with, by
    its place in the history of the topic.

    `hashes`: those of the segment, inclusive. `buckets`: the inclusive ends of its buckets, rising to 65,535; where
    there are several, the messages are in order within each bucket.

    `sequence`: of each message that does not say its own. `deliver_at`: of all messages, milliseconds since 1970.
    `stored`: the producer's messages up to this sequence may be stored already. Raises CorruptionError,
    MessageTooLargeError, InvalidArgumentError.
    """
    cdef Lease lease = hold(batch)
    cdef Builder builder
    cdef Scratch scratch
    cdef Filling filling
    cdef Refusal refusal
    cdef uint64_t producer_id
    cdef list entries = []
    cdef array ends = array("H", buckets)
    cdef uint32_t buckets_count = <uint32_t> len(ends)
    if not buckets or list(buckets)[buckets_count - 1] != 65535 or any(a >= b for a, b in pairwise(buckets)):
        raise InvalidArgumentError(f"buckets must rise to 65535, got {buckets!r:.80}")
    if not 1 <= count <= COUNT_MAX:
        raise InvalidArgumentError(f"a batch must have 1 to {COUNT_MAX:,} messages, got {count:,}")
    if len(name) > PRODUCER_NAME_SIZE_MAX:
        raise InvalidArgumentError(
            f"a producer's name must have at most {PRODUCER_NAME_SIZE_MAX} bytes, got {len(name)}")
    if schema_version >= VERSIONS_MAX:
        raise InvalidArgumentError(f"a schema version must be below {VERSIONS_MAX}, got {schema_version}")
    memset(&builder, 0, sizeof(Builder))
    memset(&scratch, 0, sizeof(Scratch))
    scratch.key_hash, scratch.version = key_hash, schema_version
    memset(&filling, 0, sizeof(Filling))
    producer_id = xxh64(name, 42)
    filling.at.p, filling.at.end = lease.start, lease.start + lease.size
    filling.left, filling.sequence = count, sequence
    filling.alone_upto = <uint64_t> (stored + 1)
    filling.deliver_at = INT64_MIN if deliver_at is None else deliver_at
    filling.entry_max = entry_size_max
    filling.segment_start, filling.segment_size = hashes[0], hashes[1] + 1 - hashes[0]
    try:
        filling.unnumbered = count > 1 and not _is_numbered(filling.at)
        if buckets_count > 1 or filling.unnumbered:
            with nogil:
                refusal = _sort(&filling, ends.data.as_ushorts, buckets_count, &scratch)
            if refusal != TAKEN:
                raise_refusal(refusal, filling.index)
        while filling.left or filling.pending:
            with nogil:
                refusal = _fill(&filling, &builder, &scratch)
            if refusal != TAKEN:
                raise_refusal(refusal, filling.index)
            entries.append(_sealed(&builder, name, producer_id, transaction))
        if filling.order == NULL and filling.at.p != filling.at.end:
            raise_refusal(MORE_BYTES, count)
        return entries
    finally:
        builder_free(&builder)
        free(scratch.map)
        free(scratch.key)
        free(filling.starts)
        free(filling.groups)
        free(filling.order)


cdef int raise_refusal(Refusal refusal, uint32_t index) except -1:
    if refusal == NO_MEMORY:
        raise MemoryError()
    if refusal == MORE_BYTES:
        raise CorruptionError("a batch must end behind its messages; there are more bytes in it")
    text = f"message {index} of the batch: {_REFUSALS[refusal]}"
    raise CorruptionError(text) if refusal <= NO_SEQUENCE else MessageTooLargeError(text)
