# cython: language_level=3, auto_pickle=False
"""Parts of an entry: entries of their own, with consecutive messages of one that is too large for a consumer.

    entry    | header, stamp | offsets        | values                | name |       first offset 100, 6 messages
                               o0 .. o2..o5..o6  v0 v1 [v2 v3 v4] v5
    part     | header, stamp | 0 ..   o5-o2   | v2 v3 v4 | name |                first offset 102, 3 messages

A part is sealed and stamped under the salt of the entry's file, so that a consumer verifies and reads it like any other
entry. It has the offsets, sequences, times, keys and properties that its messages have in the entry, and the entry's
producer, transaction, term and range of buckets; it is not compressed. Parts are sent and never stored.

The checksums of a part are new ones. So that damage is never sealed again as data, the entry's own checksums and
columns are verified when it is opened, once for all of its parts.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from engine._native.format.body cimport Columns, Lease, decompressed, hold, map_columns
from engine._native.format.entry cimport (
    AT_COMPRESSION, AT_COUNT, AT_DURABLE_UPTO, AT_FIRST_OFFSET, AT_FIRST_SEQUENCE, AT_FLAGS, AT_LAG, AT_LAST_SEQUENCE,
    AT_PADDING, AT_PRODUCER_NAME_SIZE, AT_PUBLISH_TIME, AT_RAW_SIZE, AT_SEGMENT_ID, AT_SIZE, AT_TERM, COMPRESSION_NONE,
    FAULT_LAYOUT, FAULT_NONE, HEADER_SIZE, PRODUCER_HEADER_SIZE, Fault, check_body, check_header, check_stamp, floor_of,
    lag_of, load16, load32, load64, pad8, raise_fault, seal, stamp, store16, store32, store64,
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from engine.errors import InvalidArgumentError


@cython.final
cdef class OpenEntry:
    """An entry that parts are copied from.

    `entry`: the bytes of one whole entry, of which a copy is kept. `salt`: of the file that it was stamped for.
    `decompress(codec, body, raw_size)`: opens a compressed one. Raises CorruptionError where a checksum, the body or a
    column is damaged, UnsupportedError for a compressed entry without `decompress`.
    """

    def __init__(self, entry, uint32_t salt, decompress=None):
        cdef Fault fault
        cdef const uint8_t* body
        self.lease = hold(entry, copy=True)
        self.p, self.salt = self.lease.start, salt
        fault = check_header(self.p, self.lease.size)
        if fault == FAULT_NONE:
            fault = check_stamp(self.p, salt)
        if fault == FAULT_NONE:
            fault = check_body(self.p)
        if fault != FAULT_NONE:
            raise_fault(fault, 0, 0)
        self.count, self.first = load32(self.p + AT_COUNT), load64(self.p + AT_FIRST_OFFSET)
        self.nbytes, body = self.lease.size, self.p + HEADER_SIZE
        if self.p[AT_COMPRESSION] != COMPRESSION_NONE:
            packed = memoryview(self.lease.view.obj)[HEADER_SIZE : load32(self.p + AT_SIZE) - self.p[AT_PADDING]]
            self.raw = decompressed(
                decompress, self.p[AT_COMPRESSION], packed, load32(self.p + AT_RAW_SIZE), f"offset {self.first}"
            )
            self.nbytes, body = self.nbytes + len(self.raw), <const uint8_t*> PyBytes_AS_STRING(self.raw)
        if not map_columns(&self.columns, self.p, body):
            raise_fault(FAULT_LAYOUT, load64(self.p + AT_SEGMENT_ID), self.first)

    def part_size(self, uint64_t start, uint64_t stop):
        """The bytes that part() returns."""
        cdef Shape shape
        self.check_range(start, stop)
        self.measure(&shape, <uint32_t> (start - self.first), <uint32_t> (stop - self.first))
        return shape.size

    def part(self, uint64_t start, uint64_t stop):
        """An entry with the messages of the offsets `start` up to `stop`. Raises InvalidArgumentError for others."""
        cdef Shape shape
        cdef bytes part
        self.check_range(start, stop)
        self.measure(&shape, <uint32_t> (start - self.first), <uint32_t> (stop - self.first))
        part = PyBytes_FromStringAndSize(NULL, shape.size)
        self.copy(
            <uint8_t*> PyBytes_AS_STRING(part), &shape, <uint32_t> (start - self.first), <uint32_t> (stop - self.first)
        )
        return part

    cdef int check_range(self, uint64_t start, uint64_t stop) except -1:
        if not self.first <= start < stop <= self.first + self.count:
            raise InvalidArgumentError(
                f"a part must be a range of the offsets {self.first} to {self.first + self.count}, "
                f"got {start} to {stop}"
            )
        return 0

    cdef void measure(self, Shape* shape, uint32_t start, uint32_t stop) noexcept nogil:
        cdef size_t n = stop - start
        cdef const Columns* c = &self.columns
        shape.offsets_size = pad8(4 * (n + 1))
        shape.keys_size = c.key_offsets[stop] - c.key_offsets[start] if c.key_offsets is not NULL else 0
        shape.values_size = c.value_offsets[stop] - c.value_offsets[start]
        shape.properties_size = 0
        shape.size = HEADER_SIZE + shape.offsets_size + pad8(shape.values_size)
        if c.key_offsets is not NULL:
            shape.size += shape.offsets_size + pad8(shape.keys_size)
        shape.size += (8 * n if c.event_times is not NULL else 0) + (8 * n if c.deliver_at is not NULL else 0)
        shape.size += pad8(4 * n) if c.sequences is not NULL else 0
        if c.property_offsets is not NULL:
            shape.properties_size = c.property_offsets[stop] - c.property_offsets[start]
            shape.size += shape.offsets_size + pad8(shape.properties_size)
        shape.size += pad8(load16(self.p + AT_PRODUCER_NAME_SIZE))

    cdef void copy(self, uint8_t* to, Shape* shape, uint32_t start, uint32_t stop) noexcept nogil:
        cdef uint32_t n = stop - start
        cdef const Columns* c = &self.columns
        cdef uint8_t* at = to + HEADER_SIZE
        memset(to, 0, shape.size)
        if c.key_offsets is not NULL:
            at = _copy_offsets(at, c.key_offsets, start, stop)
        at = _copy_offsets(at, c.value_offsets, start, stop)
        if c.key_offsets is not NULL:
            at = _copy(at, c.keys + c.key_offsets[start], shape.keys_size)
        at = _copy(at, c.values + c.value_offsets[start], shape.values_size)
        if c.event_times is not NULL:
            at = _copy(at, <const uint8_t*> (c.event_times + start), 8 * <size_t> n)
        if c.sequences is not NULL:
            at = _copy_sequences(at, c.sequences, start, stop)
        if c.deliver_at is not NULL:
            at = _copy(at, <const uint8_t*> (c.deliver_at + start), 8 * <size_t> n)
        if c.property_offsets is not NULL:
            at = _copy_offsets(at, c.property_offsets, start, stop)
            at = _copy(at, c.properties + c.property_offsets[start], shape.properties_size)
        _copy(at, c.producer_name, load16(self.p + AT_PRODUCER_NAME_SIZE))
        _write_header(to, self.p, shape.size, c.sequences, start, stop)
        seal(to)
        stamp(
            to, self.salt, load32(self.p + AT_TERM), self.first + start, <int64_t> load64(self.p + AT_PUBLISH_TIME),
            load64(self.p + AT_DURABLE_UPTO), load64(self.p + AT_SEGMENT_ID),
        )


cdef uint8_t* _copy(uint8_t* to, const uint8_t* column, size_t size) noexcept nogil:
    memcpy(to, column, size)
    return to + pad8(size)


cdef uint8_t* _copy_offsets(uint8_t* to, const int32_t* offsets, uint32_t start, uint32_t stop) noexcept nogil:
    cdef uint32_t i, n = stop - start
    cdef int32_t* copied = <int32_t*> to
    for i in range(n + 1):
        copied[i] = offsets[start + i] - offsets[start]
    return to + pad8(4 * (<size_t> n + 1))


cdef uint8_t* _copy_sequences(uint8_t* to, const uint32_t* sequences, uint32_t start, uint32_t stop) noexcept nogil:
    cdef uint32_t i, n = stop - start
    cdef uint32_t* copied = <uint32_t*> to
    for i in range(n):
        copied[i] = sequences[start + i] - sequences[start]
    return to + pad8(4 * <size_t> n)


cdef void _write_header(
    uint8_t* to, const uint8_t* p, size_t size, const uint32_t* sequences, uint32_t start, uint32_t stop
) noexcept nogil:
    cdef uint64_t before = load64(p + AT_FIRST_SEQUENCE)
    cdef uint64_t first = before + (start if sequences is NULL else sequences[start])
    cdef uint64_t last = before + (stop - 1 if sequences is NULL else sequences[stop - 1])
    memcpy(to, p, PRODUCER_HEADER_SIZE)
    to[AT_COMPRESSION], to[AT_PADDING] = COMPRESSION_NONE, 0
    store32(to + AT_SIZE, <uint32_t> size)
    store32(to + AT_COUNT, stop - start)
    store32(to + AT_RAW_SIZE, <uint32_t> (size - HEADER_SIZE))
    store16(to + AT_LAG, lag_of(first, floor_of(before, load16(p + AT_LAG))))
    store64(to + AT_FIRST_SEQUENCE, first)
    store64(to + AT_LAST_SEQUENCE, last)
