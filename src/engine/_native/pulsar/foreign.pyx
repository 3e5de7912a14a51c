# cython: language_level=3, auto_pickle=False
"""Messages that only clients of Apache Pulsar can read, as they have encrypted them or cut them into chunks.

Such an entry has what was sent as its body, behind an envelope: see `envelope.pxd`. It has as many messages as the
metadata say, so that offsets, permits and acknowledgements by index are as of any batch; what is in it, brokers do not
know. The metadata are not encrypted: key, ordering key and time of delivery become what they are of other entries.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from engine._native.format.body cimport Lease, hold
from engine._native.format.cipher cimport AT_CIPHER, CIPHER_FOREIGN, CIPHER_FOREIGN_PLAIN, cipher_of, is_foreign
from engine._native.format.entry cimport (
    AT_FIRST_SEQUENCE, AT_LAST_SEQUENCE, AT_MAGIC, AT_PRODUCER_ID, AT_TXN_HIGH, AT_VERSION, MAGIC, SEQUENCES,
    TRANSACTIONAL, VERSION, Entry, seal, store16, store32, store64,
)
from engine._native.format.envelope cimport (
    AT_DELIVER_AT, AT_ENVELOPE_SIZE, AT_ENVELOPE_VERSION, AT_GROUP, AT_GROUP_PLACE, AT_NONCE, ENVELOPE_VERSION,
    FOREIGN_SIZE_MIN, GROUP_BEGINS, GROUP_GOES_ON, envelope_fits,
)
from engine._native.format.layout cimport (
    AT_BUCKET_MAX, AT_BUCKET_MIN, AT_COMPRESSION, AT_COUNT, AT_FLAGS, AT_RAW_SIZE, AT_SEGMENT_HASH_MAX,
    AT_SEGMENT_HASH_MIN, AT_SIZE, DELIVER_AT, ENCRYPTED, HEADER_SIZE, KEYED, load32, pad8,
)
from engine._native.produce.hashing cimport KEY_MURMUR3, key32_of
from engine._native.pulsar.fields cimport load32_big
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from engine._native.produce.hashing import xxh64
from engine.errors import CorruptionError, InvalidArgumentError, MessageTooLargeError
from engine.limits import ENTRY_MESSAGES_MAX, ENTRY_SIZE_MAX

cdef size_t SIZE_MAX = ENTRY_SIZE_MAX
cdef uint32_t COUNT_MAX = ENTRY_MESSAGES_MAX
cdef uint32_t RING = 65536


cdef uint32_t _hash_of(bytes key, int algorithm) noexcept:
    return key32_of(<const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), algorithm)


# The hash of a keyless entry, as of those of published.pyx. `start`, `size`: the hashes of the segment.
cdef uint32_t _spread(uint64_t sequence, uint32_t start, uint32_t size) noexcept:
    cdef uint32_t spread = <uint32_t> sequence * <uint32_t> 2654435761
    return (start + ((spread >> 16) * <uint64_t> size >> 16)) << 16 | (spread & 0xFFFF)


def foreign_entry(content, uint32_t count, bytes name not None, uint64_t first, uint64_t last, *, bint encrypted,
                  chunk=None, bint part=False, key=None, ordering_key=None, deliver_at=None, hashes=(0, 65535),
                  int key_hash=KEY_MURMUR3, transaction=None):
    """The entry of `count` messages with the sequences `first` to `last` of the producer `name`.

    `content`: size of the metadata (u32, big-endian), MessageMetadata, payload. `chunk`: the uuid of its message,
    bytes, and which one of it; `part`: others follow it. `key`, `ordering_key`: bytes or None. `deliver_at`: ms
    since 1970. `hashes`: of the segment, inclusive. `key_hash`: of the topic, as in hashing.pxd. `transaction`: its
    number. Raises InvalidArgumentError, MessageTooLargeError.
    """
    cdef Lease lease = hold(content)
    cdef size_t room = lease.size, envelope = AT_DELIVER_AT, size
    cdef uint32_t hash, sticky = 0, i
    cdef uint8_t flags = SEQUENCES if last - first != count - 1 else 0
    cdef int64_t due
    cdef bytes entry
    cdef uint8_t* p
    cdef uint8_t* body
    if not 1 <= count <= COUNT_MAX or last < first or last >> 63:
        raise InvalidArgumentError(
            f"an entry must have 1 to {COUNT_MAX:,} messages with rising sequences below 2^63, got {count:,} from "
            f"{first} to {last}")
    if room < FOREIGN_SIZE_MIN or load32_big(lease.start) > room - FOREIGN_SIZE_MIN:
        raise InvalidArgumentError(f"content must hold its metadata, got {room} bytes")
    if deliver_at is not None:
        envelope += 8 * <size_t> count
    envelope += pad8(envelope + room) - (envelope + room)
    size = HEADER_SIZE + envelope + room
    if size > SIZE_MAX:
        raise MessageTooLargeError(f"an entry must have at most {SIZE_MAX:,} bytes, got {size:,}")
    if key is None:
        hash = _spread(first, hashes[0], hashes[1] + 1 - hashes[0])
    else:
        hash = _hash_of(key, key_hash)
    if ordering_key is not None or key is not None:
        sticky = _hash_of(key if ordering_key is None else ordering_key, KEY_MURMUR3) % RING
    entry = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t*> PyBytes_AS_STRING(entry)
    body = p + HEADER_SIZE
    memset(p, 0, HEADER_SIZE + envelope)
    store32(p + AT_MAGIC, MAGIC)
    store32(p + AT_SIZE, <uint32_t> size)
    p[AT_VERSION], p[AT_COMPRESSION] = VERSION, ENCRYPTED
    flags |= (KEYED if key is not None else 0) | (DELIVER_AT if deliver_at is not None else 0)
    p[AT_FLAGS] = flags | (TRANSACTIONAL if transaction is not None else 0)
    store32(p + AT_COUNT, count)
    store32(p + AT_RAW_SIZE, <uint32_t> room)
    store16(p + AT_BUCKET_MIN, <uint16_t> hash)
    store16(p + AT_BUCKET_MAX, <uint16_t> hash)
    store16(p + AT_SEGMENT_HASH_MIN, <uint16_t> (hash >> 16))
    store16(p + AT_SEGMENT_HASH_MAX, <uint16_t> (hash >> 16))
    store64(p + AT_PRODUCER_ID, xxh64(name, 42))
    store64(p + AT_FIRST_SEQUENCE, first)
    store64(p + AT_LAST_SEQUENCE, last)
    if transaction is not None:
        store64(p + AT_TXN_HIGH, transaction)
    store32(body + AT_ENVELOPE_SIZE, <uint32_t> envelope)
    body[AT_ENVELOPE_VERSION] = ENVELOPE_VERSION
    body[AT_CIPHER] = (CIPHER_FOREIGN if encrypted else CIPHER_FOREIGN_PLAIN) + (2 if part else 0)
    store16(body + AT_NONCE, <uint16_t> sticky)
    if chunk is not None:
        body[AT_GROUP_PLACE] = GROUP_BEGINS if chunk[1] == 0 else GROUP_GOES_ON
        store64(body + AT_GROUP, xxh64(chunk[0], 42))
    if deliver_at is not None:
        due = deliver_at
        for i in range(count):
            store64(body + AT_DELIVER_AT + 8 * <size_t> i, <uint64_t> due)
    memcpy(body + envelope, lease.start, room)
    seal(p)
    return entry


cdef const uint8_t* content_at(Entry entry, size_t* size) except NULL:
    cdef const uint8_t* body = entry.p + HEADER_SIZE
    cdef size_t envelope = load32(body + AT_ENVELOPE_SIZE)
    if not is_foreign(cipher_of(entry.p)) or not envelope_fits(entry.p):
        raise CorruptionError("the entry must hold what a client of Apache Pulsar has sent; it does not")
    size[0] = entry.size - HEADER_SIZE - envelope
    if load32_big(body + envelope) > size[0] - FOREIGN_SIZE_MIN:
        raise CorruptionError(f"the metadata of a message must lie within its {size[0]} bytes; they do not")
    return body + envelope


def sent_metadata(Entry entry not None):
    """A copy of the MessageMetadata that a client of Apache Pulsar has sent, encoded.

    Raises CorruptionError, also for an entry that is none of these.
    """
    cdef size_t size = 0
    cdef const uint8_t* p = content_at(entry, &size)
    return PyBytes_FromStringAndSize(<const char*> p + FOREIGN_SIZE_MIN, load32_big(p))
