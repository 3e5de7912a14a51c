# cython: language_level=3, auto_pickle=False
"""Checks, seals and stamps entries, and reads their parts; the picture of the bytes is in `layout.pxd`.

Three checksums, each over what one party wrote: header_crc and body_crc are the producer's, stamp_crc is the broker's.
check_header() goes from what can be read safely to what it means: room for a header, magic, a possible size, header
checksum, then version and fields, which are only meaningful once the checksum holds; last, whether the whole entry is
there. No field is used before the checks that bound it, and nothing raises below raise_fault(), so that all of it runs
without the GIL.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from datetime import UTC, datetime, timedelta

from engine._native.format.body cimport Lease, decompressed, hold, map_columns
from engine._native.format.cipher cimport CIPHER_FOREIGN, CIPHER_FOREIGN_PART, cipher_of, is_foreign
from engine._native.format.crc32c cimport crc32c_update
from engine._native.format.properties cimport unpack

from engine.errors import CorruptionError, DecryptionError, InvalidArgumentError, UnsupportedError
from engine.limits import ENTRY_HEADER_SIZE, ENTRY_MESSAGES_MAX, ENTRY_SIZE_MAX, PRODUCER_NAME_SIZE_MAX

cdef uint32_t SIZE_MAX = ENTRY_SIZE_MAX
cdef uint32_t COUNT_MAX = ENTRY_MESSAGES_MAX
cdef uint32_t NAME_SIZE_MAX = PRODUCER_NAME_SIZE_MAX
cdef int64_t NO_TIME = -(<int64_t> 1 << 62) * 2  # INT64_MIN

if AT_BODY != HEADER_SIZE or AT_STAMP_CRC != PRODUCER_HEADER_SIZE:
    raise AssertionError(f"the fields of layout.pxd must add up to {PRODUCER_HEADER_SIZE} and {HEADER_SIZE} bytes, "
                         f"got {AT_STAMP_CRC} and {AT_BODY}")
if HEADER_SIZE != ENTRY_HEADER_SIZE:
    raise AssertionError(f"layout.pxd and limits.py must agree on the size of an entry's header, got {HEADER_SIZE} and "
                         f"{ENTRY_HEADER_SIZE}")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cython.final
cdef class EntryMessage:
    """One message of an entry. Its key, event time and deliver-at are None where the message has none."""

    cdef readonly object key, value, properties, event_time_ms, sequence_id, deliver_at_ms


FAULTS = {
    FAULT_SHORT: "the bytes end before the entry does",
    FAULT_MAGIC: "an entry does not begin here (magic)",
    FAULT_VERSION: "the entry has a version, flag or compression this build does not know",
    FAULT_SIZE: "the entry's size is impossible",
    FAULT_HEADER_CRC: "the entry's header fails its checksum",
    FAULT_BODY_CRC: "the entry's body fails its checksum",
    FAULT_STAMP_CRC: "the entry's stamp fails its checksum",
    FAULT_LAYOUT: "the entry's fields or columns contradict each other",
    FAULT_SEGMENT: "the entry was stamped for another segment",
    FAULT_ORDER: "the entry's offsets are not above those before it",
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
    if (p[AT_VERSION] != VERSION or p[AT_FLAGS] & ~FLAGS_KNOWN
            or (p[AT_COMPRESSION] & ~<uint8_t> ENCRYPTED) > COMPRESSION_ZSTD):
        return FAULT_VERSION
    if not _fields_agree(p, size):
        return FAULT_LAYOUT
    return FAULT_SHORT if size > room else FAULT_NONE


cdef bint _fields_agree(const uint8_t* p, uint32_t size) noexcept nogil:
    cdef uint32_t count = load32(p + AT_COUNT), raw_size = load32(p + AT_RAW_SIZE), padding = p[AT_PADDING]
    if count < 1 or count > COUNT_MAX or load16(p + AT_PRODUCER_NAME_SIZE) > NAME_SIZE_MAX:
        return False
    if (load16(p + AT_BUCKET_MIN) > load16(p + AT_BUCKET_MAX)
            or load16(p + AT_SEGMENT_HASH_MIN) > load16(p + AT_SEGMENT_HASH_MAX)):
        return False
    if p[AT_COMPRESSION] == COMPRESSION_NONE:
        return raw_size == size - HEADER_SIZE and padding == 0
    if p[AT_COMPRESSION] & ENCRYPTED:
        return raw_size <= SIZE_MAX - HEADER_SIZE and padding == 0
    return (raw_size <= SIZE_MAX - HEADER_SIZE and padding < 8 and padding <= size - HEADER_SIZE
            and not p[AT_FLAGS] & DELIVER_AT)  # the broker has to read that column


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


cdef object instant(int64_t ms):
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        raise UnsupportedError(f"{ms} ms since 1970 is outside the years that datetime can hold") from None


cdef Entry entry_at(Lease lease, const uint8_t* p):
    cdef Entry entry = Entry.__new__(Entry)
    engine_check(lease.start <= p and p + HEADER_SIZE <= lease.start + lease.size, b"a header is inside its lease")
    entry.lease = lease
    entry.p = p
    entry.size = load32(p + AT_SIZE)
    entry.count = load32(p + AT_COUNT)
    entry.segment_id = load64(p + AT_SEGMENT_ID)
    entry.first_offset = load64(p + AT_FIRST_OFFSET)
    entry.first_sequence = load64(p + AT_FIRST_SEQUENCE)
    return entry


cdef object foreign_error(Entry entry):
    cdef uint64_t first = entry.first_offset, last = first + entry.count - 1
    if cipher_of(entry.p) in (CIPHER_FOREIGN, CIPHER_FOREIGN_PART):
        what = "encrypted by a client of Apache Pulsar: only such a client that has its key can read it"
    else:
        what = "sent in chunks by a client of Apache Pulsar: only such a client can put the message together"
    error = DecryptionError(f"segment {entry.segment_id}, offsets {first}..{last}: {what}")
    error.segment_id, error.offsets = entry.segment_id, (first, last)
    return error


@cython.final
cdef class Entry:
    """One entry inside a buffer, which the entry keeps alive.

    The attributes are the header's fields. `segment_id`, `term`, `first_offset`, `publish_time_ms` and
    `durable_upto` are the broker's stamp, and meaningless before it is written.
    """

    cdef int open_body(self, object decompress) except -1:
        cdef const uint8_t* body = self.p + HEADER_SIZE
        if self.opened:
            return 0
        if self.p[AT_COMPRESSION] != COMPRESSION_NONE:
            if is_foreign(cipher_of(self.p)):
                raise foreign_error(self)
            raw = decompressed(decompress, self.p[AT_COMPRESSION], self.closed_body(), load32(self.p + AT_RAW_SIZE),
                               f"segment {self.segment_id}, offset {self.first_offset}")
            if self.opened:  # by another thread meanwhile, whose columns may be in use already
                return 0
            self.raw, body = raw, <const uint8_t*> PyBytes_AS_STRING(raw)
        if not map_columns(&self.columns, self.p, body):
            raise_fault(FAULT_LAYOUT, self.segment_id, self.first_offset)
        self.opened = True
        return 0

    cdef bytes value_at(self, uint32_t i):
        cdef int32_t start
        self.check_message(i)
        start = self.columns.value_offsets[i]
        return PyBytes_FromStringAndSize(
            <const char*> self.columns.values + start, self.columns.value_offsets[i + 1] - start
        )

    cdef object key_at(self, uint32_t i):
        cdef int32_t start
        self.check_message(i)
        if self.columns.key_offsets is NULL:
            return None
        start = self.columns.key_offsets[i]
        return PyBytes_FromStringAndSize(
            <const char*> self.columns.keys + start, self.columns.key_offsets[i + 1] - start
        )

    cdef dict properties_at(self, uint32_t i):
        cdef int32_t start
        self.check_message(i)
        if self.columns.property_offsets is NULL:
            return {}
        start = self.columns.property_offsets[i]
        found = unpack(self.columns.properties + start, self.columns.property_offsets[i + 1] - start)
        if found is None:
            where = f"segment {self.segment_id}, offset {self.first_offset + i}"
            raise CorruptionError(f"{where}: the properties are not a map of text to text")
        return found

    cdef object event_time_ms_at(self, uint32_t i):
        self.check_message(i)
        if self.columns.event_times is NULL or self.columns.event_times[i] == NO_TIME:
            return None
        return self.columns.event_times[i]

    cdef uint64_t sequence_at(self, uint32_t i) noexcept nogil:
        self.check_message(i)
        return self.first_sequence + (i if self.columns.sequences is NULL else self.columns.sequences[i])

    cdef int64_t publish_ms(self) noexcept nogil:
        return <int64_t> load64(self.p + AT_PUBLISH_TIME)

    cdef object published_at(self):
        if self.published is None:
            self.published = instant(self.publish_ms())
        return self.published

    cdef object producer(self):
        cdef uint16_t size = load16(self.p + AT_PRODUCER_NAME_SIZE)
        if self.name_text is None:
            name = PyBytes_FromStringAndSize(<const char*> self.columns.producer_name, size)
            self.name_text = name.decode("utf-8", "backslashreplace")
        return self.name_text

    def __init__(self, buffer):
        """The entry at the start of `buffer`. Checks the header only. Raises CorruptionError."""
        cdef Lease lease = hold(buffer)
        cdef Fault fault = check_header(lease.start, lease.size)
        cdef Entry made
        if fault != FAULT_NONE:
            raise_fault(fault, unknown(), unknown())
        made = entry_at(lease, lease.start)
        self.lease, self.p, self.size, self.count = lease, made.p, made.size, made.count
        self.segment_id, self.first_offset = made.segment_id, made.first_offset
        self.first_sequence = made.first_sequence
        self.opened, self.raw, self.name_text, self.published = False, None, None, None

    @property
    def flags(self):
        """Bits: 1 keyed, 2 transactional, 4 properties, 8 event times, 16 sequences, 32 deliver-at."""
        return self.p[AT_FLAGS]

    @property
    def compression(self):
        """0 none, 1 lz4, 2 zstd."""
        return self.p[AT_COMPRESSION] & COMPRESSION_MASK

    @property
    def encrypted(self):
        """Whether its body is encrypted, and only its consumers can open it."""
        return self.p[AT_COMPRESSION] & ENCRYPTED != 0

    @property
    def foreign(self):
        """Whether only clients of Apache Pulsar can read it: it passes as encrypted then."""
        return is_foreign(cipher_of(self.p))

    @property
    def raw_size(self):
        """Bytes of the body once decompressed."""
        return load32(self.p + AT_RAW_SIZE)

    @property
    def bucket_min(self):
        """The smallest bucket hash of its messages."""
        return load16(self.p + AT_BUCKET_MIN)

    @property
    def bucket_max(self):
        """The largest bucket hash of its messages."""
        return load16(self.p + AT_BUCKET_MAX)

    @property
    def segment_hash_min(self):
        """The smallest segment hash of its messages."""
        return load16(self.p + AT_SEGMENT_HASH_MIN)

    @property
    def segment_hash_max(self):
        """The largest segment hash of its messages."""
        return load16(self.p + AT_SEGMENT_HASH_MAX)

    @property
    def producer_id(self):
        """XXH64 of the producer's name, seed 42."""
        return load64(self.p + AT_PRODUCER_ID)

    @property
    def last_sequence(self):
        """The sequence id of the last message."""
        return load64(self.p + AT_LAST_SEQUENCE)

    @property
    def txn(self):
        """(high, low) of the transaction's id, or None."""
        if not self.p[AT_FLAGS] & TRANSACTIONAL:
            return None
        return load64(self.p + AT_TXN_HIGH), load64(self.p + AT_TXN_LOW)

    @property
    def term(self):
        """The term of the broker that stamped it."""
        return load32(self.p + AT_TERM)

    @property
    def publish_time_ms(self):
        """When the broker stamped it, in milliseconds since 1970."""
        return self.publish_ms()

    @property
    def durable_upto(self):
        """The offset up to which the segment was known durable when this was stamped."""
        return load64(self.p + AT_DURABLE_UPTO)

    @property
    def producer_name(self):
        """The producer's name. It is in the body: a compressed entry must have been opened by messages() first."""
        self.open_body(None)
        return self.producer()

    def data(self):
        """A copy of the whole entry."""
        return PyBytes_FromStringAndSize(<const char*> self.p, self.size)

    def compressed_body(self):
        """A read-only view of the stored body, without padding. Valid while this Entry lives."""
        size = self.size - HEADER_SIZE - self.p[AT_PADDING]
        return PyMemoryView_FromMemory(<char*> self.p + HEADER_SIZE, size, 0x100)

    cdef object closed_body(self):
        if self.p[AT_COMPRESSION] & ENCRYPTED:
            return PyMemoryView_FromMemory(<char*> self.p, self.size, 0x100)
        return self.compressed_body()

    def largest_message(self, decompress=None):
        """Bytes of the key, the value and the packed properties of the message that has most of them.

        `decompress` and errors as of messages(). Values are not looked at, only where they begin and end.
        """
        cdef int32_t largest = 0, size
        cdef uint32_t i
        self.open_body(decompress)
        with nogil:
            for i in range(self.count):
                size = self.columns.value_offsets[i + 1] - self.columns.value_offsets[i]
                if self.columns.key_offsets is not NULL:
                    size += self.columns.key_offsets[i + 1] - self.columns.key_offsets[i]
                if self.columns.property_offsets is not NULL:
                    size += self.columns.property_offsets[i + 1] - self.columns.property_offsets[i]
                largest = max(largest, size)
        return largest

    def messages(self, decompress=None):
        """Every message as an EntryMessage, one by one: for inspection and repair. Raises CorruptionError.

        decompress is called as decompress(codec, body, raw_size) and returns exactly raw_size bytes; where the codec
        has the bit 4, the entry is encrypted, and `body` is all of it, as its header is authenticated with the body.
        """
        cdef EntryMessage message
        cdef list found = []
        cdef uint32_t i
        self.open_body(decompress)
        for i in range(self.count):
            message = EntryMessage.__new__(EntryMessage)
            message.key, message.value = self.key_at(i), self.value_at(i)
            message.properties, message.sequence_id = self.properties_at(i), self.sequence_at(i)
            message.event_time_ms = self.event_time_ms_at(i)
            if self.columns.deliver_at is not NULL and self.columns.deliver_at[i] != NO_TIME:
                message.deliver_at_ms = self.columns.deliver_at[i]
            found.append(message)
        return found

    def __len__(self):
        return self.count

    def __repr__(self):
        return f"<Entry segment={self.segment_id} offset={self.first_offset} count={self.count} size={self.size}>"


cdef Fault check_entries(const uint8_t* start, size_t n, bint check_bodies, size_t* at) noexcept nogil:
    cdef Fault fault
    while at[0] < n:
        fault = check_header(start + at[0], n - at[0])
        if fault == FAULT_NONE and check_bodies:
            fault = check_body(start + at[0])
        if fault != FAULT_NONE:
            return fault
        at[0] += load32(start + at[0] + AT_SIZE)
    return FAULT_NONE


cdef Lease _checked(object buffer, bint check_bodies):
    cdef Lease lease = hold(buffer)
    cdef size_t at = 0
    cdef Fault fault
    if lease.size < GIL_FREE_BYTES:
        fault = check_entries(lease.start, lease.size, check_bodies, &at)
    else:
        with nogil:
            fault = check_entries(lease.start, lease.size, check_bodies, &at)
    if fault != FAULT_NONE:
        raise CorruptionError(f"byte {at} of the block: {FAULTS[fault]}")
    return lease


def walk(buffer):
    """Every Entry of a block of whole entries back to back, headers checked and bodies not. Raises CorruptionError."""
    cdef Lease lease = _checked(buffer, False)
    cdef Py_ssize_t at = 0
    cdef Entry entry
    cdef list found = []
    while at < lease.size:
        entry = entry_at(lease, lease.start + at)
        found.append(entry)
        at += entry.size
    return found


def verify(buffer):
    """Check the header and body checksums of entries back to back, as producers sent them. Returns how many there are.

    Raises CorruptionError naming the byte where the bad entry begins.
    """
    cdef Lease lease = _checked(buffer, True)
    cdef Py_ssize_t at = 0, count = 0
    while at < lease.size:
        at += load32(lease.start + at + AT_SIZE)
        count += 1
    return count


def compress(data, int codec, compressor):
    """The entry `data` with its body compressed by `compressor(body) -> bytes`; `data` itself where that saves nothing.

    An entry with deliver-at times is returned as it is: the broker has to read them. Raises InvalidArgumentError for an
    unknown codec or a compressed entry.
    """
    cdef Entry entry = Entry(data)
    cdef uint32_t packed_size, size
    cdef uint8_t* p
    if not COMPRESSION_LZ4 <= codec <= COMPRESSION_ZSTD or entry.p[AT_COMPRESSION] != COMPRESSION_NONE:
        raise InvalidArgumentError(
            f"codec must be 1 (lz4) or 2 (zstd), and the entry uncompressed, got codec {codec} and an entry of "
            f"compression {entry.p[AT_COMPRESSION]}")
    packed = b"" if entry.p[AT_FLAGS] & DELIVER_AT else compressor(entry.compressed_body())
    packed_size = PyBytes_GET_SIZE(packed)
    size = HEADER_SIZE + pad8(packed_size)
    if not packed_size or size >= entry.size:
        return data
    made = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t*> PyBytes_AS_STRING(made)
    memcpy(p, entry.p, HEADER_SIZE)
    memcpy(p + HEADER_SIZE, PyBytes_AS_STRING(packed), packed_size)
    memset(p + HEADER_SIZE + packed_size, 0, size - HEADER_SIZE - packed_size)
    store32(p + AT_SIZE, size)
    p[AT_COMPRESSION] = codec
    p[AT_PADDING] = size - HEADER_SIZE - packed_size
    seal(p)
    return made
