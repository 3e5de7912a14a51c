# cython: language_level=3, auto_pickle=False
"""What a consumer of Apache Pulsar is sent: an entry, as one frame of its protocol.

    0    total u32, bytes behind this field        \
    4    size of the command u32                    |  big-endian
    8    BaseCommand: MESSAGE                       |
    …    0x0e01, the magic                          |
    …    CRC32C u32 of all that follows             |
    …    size of the metadata u32                  /
    …    MessageMetadata, then the messages: of an entry with several, each with a size and a SingleMessageMetadata in
         front of it (see published.pyx); of an entry with one, its value alone

What has become a property on its way in, of a name that begins with "pulsar.", becomes what it was. A key that is no
UTF-8 is base64, as a text has to be.

*Versions of a schema.* The metadata say one for all messages, and so do those of a batch that is sent to us. But
clients of ours may put messages of several into one entry, as when they copy a topic. Such an entry is sent several
times, with the bits that say which messages are due: see schema_versions().

Everything is measured first, and then written into memory of that size.

An entry that only these clients can read (foreign.pyx) has metadata and messages as they were sent, which are passed on
as they are.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from engine._native.format.crc32c cimport crc32c_update
from engine._native.format.entry cimport Entry
from engine._native.format.layout cimport AT_PRODUCER_NAME_SIZE, load16
from engine._native.format.properties cimport Cursor, is_utf8, read_map, read_text
from engine._native.produce.hashing cimport KEY_MURMUR3, key32_of
from engine._native.pulsar.fields cimport (
    bytes_size, number_size, put32_big, put_bytes, put_number, put_varint, varint_size,
)
from engine._native.pulsar.foreign cimport content_at, holds_foreign, sticky_hash
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from engine.errors import InvalidArgumentError
from engine.limits import SCHEMA_VERSIONS_MAX

cdef enum:
    MAGIC_SIZE = 2
    MESSAGE_COMMAND = 9
    WORD_BITS = 64

cdef uint32_t VERSIONS_MAX = SCHEMA_VERSIONS_MAX

cdef Tags IN_BATCH = [1, 2, 5, 6, 7, 8, 9]
cdef Tags ALONE = [4, 6, 12, 17, 18, 2, 25]

cdef const char* ENCODED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef inline bint _is(const uint8_t* text, uint32_t size, const char* name, uint32_t name_size) noexcept nogil:
    return size == name_size and memcmp(text, name, size) == 0


cdef inline int _digit(uint8_t c) noexcept nogil:
    if 48 <= c <= 57:
        return c - 48
    return c - 87 if 97 <= c <= 102 else -1


# The version of a schema that a text says; 0: none that a producer of these clients was given.
cdef uint32_t _version_in(const uint8_t* text, uint32_t size) noexcept nogil:
    cdef uint32_t version = 0, i
    if not 1 <= size <= 2 or text[0] == 48:
        return 0
    for i in range(size):
        if not 48 <= text[i] <= 57:
            return 0
        version = 10 * version + text[i] - 48
    return version if version < VERSIONS_MAX else 0


cdef bint _is_hex(const uint8_t* text, uint32_t size) noexcept nogil:
    cdef uint32_t i
    for i in range(size):
        if _digit(text[i]) < 0:
            return False
    return size % 2 == 0


# Go through the properties of a message: measure them, and where `at` is given, write them there. Where it ends.
cdef uint8_t* _properties(const uint8_t* map, size_t size, uint32_t tag, Said* said, uint8_t* at) noexcept nogil:
    cdef Cursor cursor
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef uint32_t name_size = 0, value_size = 0
    cdef size_t pair
    cdef int left
    memset(said, 0, sizeof(Said))
    if not size:
        return at
    cursor.p, cursor.end = map, map + size
    left = read_map(&cursor)
    while left > 0:
        left -= 1
        if not read_text(&cursor, &name, &name_size) or not read_text(&cursor, &value, &value_size):
            break  # the broker has checked them when they came
        if _is(name, name_size, b"pulsar.ordering-key", 19) and _is_hex(value, value_size):
            said.ordering, said.ordering_size, said.has_ordering = value, value_size, True
            continue
        if _is(name, name_size, b"pulsar.null-value", 17):
            said.null_value = True
            continue
        if _is(name, name_size, b"pulsar.key-bytes", 16):
            said.key_bytes = True
            continue
        if _is(name, name_size, b"pulsar.schema-version", 21) and _version_in(value, value_size):
            said.version = _version_in(value, value_size)
            continue
        pair = bytes_size(1, name_size) + bytes_size(2, value_size)
        said.size += bytes_size(tag, pair)
        if at is not NULL:
            at = put_varint(put_varint(at, <uint64_t> tag << 3 | 2), pair)
            at = put_bytes(put_bytes(at, 1, name, name_size), 2, value, value_size)
    return at


cdef uint8_t* _put_base64(uint8_t* at, const uint8_t* data, size_t size) noexcept nogil:
    cdef size_t i, left
    cdef uint32_t three
    for i in range(0, size, 3):
        left = size - i
        three = <uint32_t> data[i] << 16
        three |= <uint32_t> data[i + 1] << 8 if left > 1 else 0
        three |= data[i + 2] if left > 2 else 0
        at[0], at[1] = ENCODED[three >> 18], ENCODED[three >> 12 & 63]
        at[2] = ENCODED[three >> 6 & 63] if left > 1 else 61
        at[3] = ENCODED[three & 63] if left > 2 else 61
        at += 4
    return at


cdef uint8_t* _put_unhex(uint8_t* at, const uint8_t* digits, uint32_t size) noexcept nogil:
    cdef uint32_t i
    for i in range(0, size, 2):
        at[i // 2] = <uint8_t> (_digit(digits[i]) << 4 | _digit(digits[i + 1]))
    return at + size // 2


# The fields that say the same of a message in a batch and of one alone: their size, and, where `at` is given, they are
# written there. `said`: is told what its properties say. `sequence`: whether its sequence id is among them.
cdef size_t _message_fields(Entry entry, uint32_t i, const Tags* tags, Said* said, uint8_t** at) noexcept nogil:
    cdef const uint8_t* map = NULL
    cdef const uint8_t* key = NULL
    cdef size_t map_size = 0, key_size = 0, size, encoded
    cdef int64_t event_time = INT64_MIN
    cdef bint base64 = False
    cdef uint8_t* p = at[0] if at is not NULL else NULL
    if entry.columns.property_offsets is not NULL:
        map = entry.columns.properties + entry.columns.property_offsets[i]
        map_size = entry.columns.property_offsets[i + 1] - entry.columns.property_offsets[i]
    if entry.columns.event_times is not NULL:
        event_time = entry.columns.event_times[i]
    p = _properties(map, map_size, tags.properties, said, p)
    size = said.size
    if entry.columns.key_offsets is not NULL:
        key = entry.columns.keys + entry.columns.key_offsets[i]
        key_size = entry.columns.key_offsets[i + 1] - entry.columns.key_offsets[i]
        base64 = said.key_bytes or not is_utf8(key, key_size)
        encoded = (key_size + 2) // 3 * 4 if base64 else key_size
        size += bytes_size(tags.key, encoded) + (number_size(tags.base64, 1) if base64 else 0)
        if p is not NULL and base64:
            p = put_varint(put_varint(p, <uint64_t> tags.key << 3 | 2), encoded)
            p = put_number(_put_base64(p, key, key_size), tags.base64, 1)
        elif p is not NULL:
            p = put_bytes(p, tags.key, key, key_size)
    if event_time != INT64_MIN:
        size += number_size(tags.event_time, <uint64_t> event_time)
        p = put_number(p, tags.event_time, <uint64_t> event_time) if p is not NULL else NULL
    if said.has_ordering:
        size += bytes_size(tags.ordering, said.ordering_size // 2)
        if p is not NULL:
            p = put_varint(put_varint(p, <uint64_t> tags.ordering << 3 | 2), said.ordering_size // 2)
            p = _put_unhex(p, said.ordering, said.ordering_size)
    size += number_size(tags.sequence, entry.sequence_at(i))
    p = put_number(p, tags.sequence, entry.sequence_at(i)) if p is not NULL else NULL
    if said.null_value:
        size += number_size(tags.null_value, 1)
        p = put_number(p, tags.null_value, 1) if p is not NULL else NULL
    if at is not NULL:
        at[0] = p
    return size


cdef size_t _single_size(Entry entry, uint32_t i, Said* said) noexcept nogil:
    cdef size_t value = entry.columns.value_offsets[i + 1] - entry.columns.value_offsets[i]
    return _message_fields(entry, i, &IN_BATCH, said, NULL) + number_size(3, value)


# Sizes and parts of a frame that is being made.
cdef struct Frame:
    uint64_t consumer_id
    uint64_t redelivered
    int64_t partition
    const uint64_t* words         # the bits of the messages that are due; NULL: all are
    uint32_t words_count
    const char* version           # of the schema, of messages that say none
    size_t version_size
    uint8_t own_version[8]        # that which messages say, as `version` has it
    bint mixed                    # the messages that are due are of several versions
    size_t place_size             # MessageIdData
    size_t message_size           # CommandMessage
    size_t command_size
    size_t metadata_size
    size_t total


cdef void _measure_command(Entry entry, Frame* f) noexcept nogil:
    cdef uint32_t i
    f.place_size = number_size(1, entry.segment_id) + number_size(2, entry.first_offset)
    f.place_size += number_size(3, <uint64_t> f.partition) if f.partition >= 0 else 0
    f.message_size = number_size(1, f.consumer_id) + bytes_size(2, f.place_size)
    f.message_size += number_size(3, f.redelivered) if f.redelivered else 0
    for i in range(f.words_count):
        f.message_size += number_size(4, f.words[i])
    f.command_size = number_size(1, MESSAGE_COMMAND) + bytes_size(MESSAGE_COMMAND, f.message_size)


cdef inline bint _is_due(const Frame* f, uint32_t i) noexcept nogil:
    return f.words is NULL or f.words[i // WORD_BITS] >> i % WORD_BITS & 1


cdef void _measure(Entry entry, Frame* f) noexcept nogil:
    cdef uint16_t name_size = load16(entry.p + AT_PRODUCER_NAME_SIZE)
    cdef size_t payload = 0
    cdef uint32_t i, version = 0
    cdef bint found = False
    cdef Said said
    _measure_command(entry, f)
    f.metadata_size = bytes_size(1, name_size) + number_size(3, <uint64_t> entry.publish_ms())
    if entry.count == 1:
        f.metadata_size += _message_fields(entry, 0, &ALONE, &said, NULL)
        payload = entry.columns.value_offsets[1]
        version = said.version
    else:
        f.metadata_size += number_size(2, entry.first_sequence) + number_size(11, entry.count)
        f.metadata_size += number_size(24, entry.sequence_at(entry.count - 1))
        for i in range(entry.count):
            payload += 4 + _single_size(entry, i, &said)
            payload += entry.columns.value_offsets[i + 1] - entry.columns.value_offsets[i]
            if _is_due(f, i):
                f.mixed = f.mixed or (found and said.version != version)
                version, found = said.version, True
    if version:
        memset(f.own_version, 0, 8)
        f.own_version[7] = <uint8_t> version
        f.version, f.version_size = <const char*> f.own_version, 8
    f.metadata_size += bytes_size(16, f.version_size) if f.version_size else 0
    if entry.columns.deliver_at is not NULL and entry.columns.deliver_at[0] != INT64_MIN:
        f.metadata_size += number_size(19, <uint64_t> entry.columns.deliver_at[0])
    f.total = 4 + f.command_size + MAGIC_SIZE + 4 + 4 + f.metadata_size + payload


cdef uint8_t* _put_command(Entry entry, const Frame* f, uint8_t* at) noexcept nogil:
    cdef uint32_t i
    at = put_number(at, 1, MESSAGE_COMMAND)
    at = put_varint(put_varint(at, MESSAGE_COMMAND << 3 | 2), f.message_size)
    at = put_number(at, 1, f.consumer_id)
    at = put_varint(put_varint(at, 2 << 3 | 2), f.place_size)
    at = put_number(put_number(at, 1, entry.segment_id), 2, entry.first_offset)
    if f.partition >= 0:
        at = put_number(at, 3, <uint64_t> f.partition)
    if f.redelivered:
        at = put_number(at, 3, f.redelivered)
    for i in range(f.words_count):
        at = put_number(at, 4, f.words[i])
    return at


cdef uint8_t* _put_metadata(Entry entry, const Frame* f, uint8_t* at) noexcept nogil:
    cdef Said said
    at = put_bytes(at, 1, entry.columns.producer_name, load16(entry.p + AT_PRODUCER_NAME_SIZE))
    at = put_number(at, 3, <uint64_t> entry.publish_ms())
    if f.version_size:
        at = put_bytes(at, 16, f.version, f.version_size)
    if entry.columns.deliver_at is not NULL and entry.columns.deliver_at[0] != INT64_MIN:
        at = put_number(at, 19, <uint64_t> entry.columns.deliver_at[0])
    if entry.count == 1:
        _message_fields(entry, 0, &ALONE, &said, &at)
        return at
    at = put_number(put_number(at, 2, entry.first_sequence), 11, entry.count)
    return put_number(at, 24, entry.sequence_at(entry.count - 1))


cdef void _write(Entry entry, const Frame* f, uint8_t* at) noexcept nogil:
    cdef uint8_t* end = at + 4 + f.total
    cdef uint8_t* summed
    cdef uint32_t i
    cdef size_t value, start
    cdef Said said
    at = put32_big(put32_big(at, <uint32_t> f.total), <uint32_t> f.command_size)
    at = _put_command(entry, f, at)
    at[0], at[1] = 0x0E, 0x01
    summed = at + MAGIC_SIZE + 4
    at = put32_big(summed, <uint32_t> f.metadata_size)
    at = _put_metadata(entry, f, at)
    if entry.count == 1:
        memcpy(at, entry.columns.values, entry.columns.value_offsets[1])
    else:
        for i in range(entry.count):
            start = entry.columns.value_offsets[i]
            value = entry.columns.value_offsets[i + 1] - start
            at = put32_big(at, <uint32_t> _single_size(entry, i, &said))
            _message_fields(entry, i, &IN_BATCH, &said, &at)
            at = put_number(at, 3, value)
            memcpy(at, entry.columns.values + start, value)
            at += value
    put32_big(summed - 4, crc32c_update(0, summed, end - summed))


def frame_of(Entry entry not None, uint64_t consumer_id, decompress, *, uint64_t redelivered=0, due=None,
             int64_t partition=-1, bytes schema_version=b""):
    """The frame of a checked entry for one consumer. `due`: of its messages, by index, those that are delivered.
    `schema_version`: of messages that say none. None: those that are delivered are of several versions, see
    schema_versions().

    Raises CorruptionError for a body that cannot be read, DecryptionError for one that is encrypted for our clients.
    """
    cdef Frame frame
    cdef bytes made, kept
    cdef uint8_t* out
    cdef const uint8_t* content = NULL
    cdef size_t size = 0
    if holds_foreign(entry):
        content = content_at(entry, &size)
    else:
        entry.open_body(decompress)
    memset(&frame, 0, sizeof(Frame))
    frame.consumer_id, frame.redelivered, frame.partition = consumer_id, redelivered, partition
    frame.version, frame.version_size = PyBytes_AS_STRING(schema_version), PyBytes_GET_SIZE(schema_version)
    if due is not None:
        kept = _words_of(due, entry.count)
        frame.words, frame.words_count = <const uint64_t*> PyBytes_AS_STRING(kept), len(kept) // 8
    with nogil:
        if content is NULL:
            _measure(entry, &frame)
        else:
            _measure_command(entry, &frame)
            frame.total = 4 + frame.command_size + MAGIC_SIZE + 4 + size
    if frame.mixed:
        return None
    made = PyBytes_FromStringAndSize(NULL, 4 + frame.total)
    out = <uint8_t*> PyBytes_AS_STRING(made)
    with nogil:
        if content is NULL:
            _write(entry, &frame, out)
        else:
            _write_foreign(entry, &frame, content, size, out)
    return made


cdef void _write_foreign(Entry entry, const Frame* f, const uint8_t* content, size_t size, uint8_t* at) noexcept nogil:
    at = put32_big(put32_big(at, <uint32_t> f.total), <uint32_t> f.command_size)
    at = _put_command(entry, f, at)
    at[0], at[1] = 0x0E, 0x01
    at = put32_big(at + MAGIC_SIZE, crc32c_update(0, content, size))
    memcpy(at, content, size)


cdef bytes _words_of(object due, uint32_t count):
    cdef bytes words = bytes(8 * ((count + WORD_BITS - 1) // WORD_BITS))
    cdef uint64_t* bits = <uint64_t*> PyBytes_AS_STRING(words)
    cdef uint32_t i
    for i in due:
        if i >= count:
            raise InvalidArgumentError(f"due must be indices of an entry of {count} messages, got {i}")
        bits[i // WORD_BITS] |= <uint64_t> 1 << i % WORD_BITS
    return words


def schema_versions(Entry entry not None, decompress):
    """For each message the version of the schema that it was written with, as a byte; 0: it says none, or the first.

    Raises as frame_of().
    """
    cdef bytes versions = bytes(entry.count)
    cdef uint8_t* out = <uint8_t*> PyBytes_AS_STRING(versions)
    cdef const uint8_t* map
    cdef uint32_t i
    cdef Said said
    if holds_foreign(entry):
        return versions
    entry.open_body(decompress)
    if entry.columns.property_offsets is not NULL:
        for i in range(entry.count):
            map = entry.columns.properties + entry.columns.property_offsets[i]
            _properties(map, entry.columns.property_offsets[i + 1] - entry.columns.property_offsets[i], 1, &said, NULL)
            out[i] = <uint8_t> said.version
    return versions


def key_hashes(Entry entry not None, decompress):
    """For each message a u16, little-endian: the low half of the hash of its ordering key, else of its key, else 0.

    It names the consumer of a Key_Shared subscription. Raises as frame_of().
    """
    cdef bytes hashes
    cdef uint16_t* out
    cdef uint32_t i
    cdef Said said
    cdef const uint8_t* key
    cdef size_t size
    cdef uint8_t ordering[65536]
    if not holds_foreign(entry):
        entry.open_body(decompress)
    hashes = PyBytes_FromStringAndSize(NULL, 2 * entry.count)
    out = <uint16_t*> PyBytes_AS_STRING(hashes)
    if holds_foreign(entry):
        for i in range(entry.count):
            out[i] = sticky_hash(entry)
        return hashes
    with nogil:
        for i in range(entry.count):
            out[i] = 0
            said.has_ordering = False
            if entry.columns.property_offsets is not NULL:
                key = entry.columns.properties + entry.columns.property_offsets[i]
                size = entry.columns.property_offsets[i + 1] - entry.columns.property_offsets[i]
                _properties(key, size, 1, &said, NULL)
            if said.has_ordering and said.ordering_size // 2 <= sizeof(ordering):
                _put_unhex(ordering, said.ordering, said.ordering_size)
                out[i] = <uint16_t> key32_of(ordering, said.ordering_size // 2, KEY_MURMUR3)
            elif entry.columns.key_offsets is not NULL:
                key = entry.columns.keys + entry.columns.key_offsets[i]
                size = entry.columns.key_offsets[i + 1] - entry.columns.key_offsets[i]
                out[i] = <uint16_t> key32_of(key, size, KEY_MURMUR3)
    return hashes
