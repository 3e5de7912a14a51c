# cython: language_level=3, auto_pickle=False
"""Received blocks checked into entries, good and bad; bodies are decompressed when their turn comes.

Each entry of a block is checked in this order: header, stamp, body checksum, place (segment and offsets). A bad entry
does not cost its neighbours. As long as its stamp checksum holds, its size and offsets are those the broker wrote, so
it can be skipped and named: it becomes an Entry with a `failure`, and the check resumes behind it. Where the stamp
does not hold, no later entry of the block can be found: one Entry of unknown size stands for all of the rest.
"""
from cpython.bytes cimport PyBytes_AS_STRING
from engine._native.format.body cimport Lease, hold
from engine._native.format.entry cimport (
    AT_COMPRESSION, AT_COUNT, AT_FIRST_OFFSET, AT_SEGMENT_ID, AT_SIZE, COMPRESSION_NONE, FAULT_BODY_CRC,
    FAULT_HEADER_CRC, FAULT_LAYOUT, FAULT_NONE, FAULT_ORDER, FAULT_SEGMENT, GIL_FREE_BYTES, HEADER_SIZE, Entry,
    check_body, check_header, check_stamp, entry_at, load32, load64, store32, store64,
)
from engine._native.format.layout cimport Fault
from engine._native.consume.message cimport Slice, whole
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from engine.errors import CorruptionError, DecryptionError
from engine.limits import ENTRY_MESSAGES_MAX

from engine._native.format.entry import FAULTS

cdef uint64_t OFFSET_MAX = <uint64_t> 1 << 62
cdef uint32_t COUNT_MAX = ENTRY_MESSAGES_MAX


cdef Fault check_block(
    const uint8_t* start, const uint8_t** p, const uint8_t* end, uint32_t salt, uint64_t segment_id,
    uint64_t* next_offset
) noexcept nogil:
    cdef Fault fault
    while p[0] < end:
        fault = check_header(p[0], end - p[0])
        if fault == FAULT_NONE:
            fault = check_stamp(p[0], salt)
        if fault == FAULT_NONE:
            fault = check_body(p[0])
        if fault == FAULT_NONE:
            fault = _check_place(start, p[0], segment_id, next_offset[0])
        if fault != FAULT_NONE:
            return fault
        next_offset[0] = load64(p[0] + AT_FIRST_OFFSET) + load32(p[0] + AT_COUNT)
        p[0] += load32(p[0] + AT_SIZE)
    return FAULT_NONE


cdef Fault _check_place(
    const uint8_t* start, const uint8_t* p, uint64_t segment_id, uint64_t next_offset
) noexcept nogil:
    cdef uint64_t first = load64(p + AT_FIRST_OFFSET), count = load32(p + AT_COUNT)
    if load64(p + AT_SEGMENT_ID) != segment_id:
        return FAULT_SEGMENT
    if first > OFFSET_MAX or first + count <= next_offset or (p != start and first < next_offset):
        return FAULT_ORDER
    return FAULT_NONE


# Whether a bad entry's size and offsets can be relied on.
cdef bint _is_bounded(
    Fault fault, const uint8_t* start, const uint8_t* p, const uint8_t* end, uint32_t salt, uint64_t segment_id,
    uint64_t next_offset
) noexcept nogil:
    if fault != FAULT_HEADER_CRC and fault != FAULT_BODY_CRC and fault != FAULT_LAYOUT:
        return False
    if end - p < HEADER_SIZE or check_stamp(p, salt) != FAULT_NONE or load32(p + AT_SIZE) > <size_t> (end - p):
        return False
    return (1 <= load32(p + AT_COUNT) <= COUNT_MAX
            and _check_place(start, p, segment_id, next_offset) == FAULT_NONE)


def take_block(payload, uint32_t salt, uint64_t segment_id, int64_t expect_offset=-1):
    """(entries, rest) of a payload of whole entries back to back, every checksum verified.

    salt: of the file the entries were stamped for. expect_offset: no entry may end at or below it (-1: any). The
    columns of uncompressed entries are verified too; compressed ones stay closed until open_slice(). A bad entry has a
    `failure`. `rest` is None, or, where a bad entry's size is not certain, an entry that stands for it and all that
    follows. The entries keep `payload` alive, which must not change.
    """
    cdef Lease lease = hold(payload)
    cdef const uint8_t* at = lease.start
    cdef const uint8_t* p = lease.start
    cdef const uint8_t* end = lease.start + lease.size
    cdef uint64_t next_offset = 0 if expect_offset < 0 else expect_offset
    cdef Fault fault = FAULT_NONE
    cdef Entry entry
    cdef list entries = []
    while True:
        if end - p < GIL_FREE_BYTES:
            fault = check_block(lease.start, &p, end, salt, segment_id, &next_offset)
        else:
            with nogil:
                fault = check_block(lease.start, &p, end, salt, segment_id, &next_offset)
        while at < p:
            entry = entry_at(lease, at)
            _open_if_plain(entry)
            entries.append(entry)
            at += entry.size
        if fault == FAULT_NONE:
            return entries, None
        if not _is_bounded(fault, lease.start, p, end, salt, segment_id, next_offset):
            return entries, damaged_entry(segment_id, next_offset, FAULTS[fault])
        entry = entry_at(lease, p)
        entry.failure = FAULTS[fault]
        entries.append(entry)
        next_offset = entry.first_offset + entry.count
        p += entry.size
        at = p


cdef int _open_if_plain(Entry entry) except -1:
    if entry.p[AT_COMPRESSION] == COMPRESSION_NONE:
        try:
            entry.open_body(None)
        except CorruptionError:
            entry.failure = FAULTS[FAULT_LAYOUT]
    return 0


def damaged_entry(uint64_t segment_id, uint64_t offset, str failure not None):
    """An entry of one message, without size, that stands for what cannot be read from `offset` on, and says why."""
    cdef bytes header = bytes(HEADER_SIZE)
    cdef uint8_t* p = <uint8_t*> PyBytes_AS_STRING(header)
    cdef Lease lease
    cdef Entry entry
    store32(p + AT_COUNT, 1)
    store64(p + AT_SEGMENT_ID, segment_id)
    store64(p + AT_FIRST_OFFSET, offset)
    lease = hold(header)
    entry = entry_at(lease, lease.start)
    entry.failure = failure
    return entry


def first_value(Entry entry not None, decompress):
    """The value of the first message; None for a bad entry. A compressed entry is closed again."""
    if entry.failure is not None:
        return None
    if entry.opened:
        return entry.value_at(0)
    try:
        entry.open_body(decompress)
        return entry.value_at(0)
    except (CorruptionError, DecryptionError):
        return None  # reported when its turn comes
    finally:
        entry.opened, entry.raw = False, None


cdef int open_slice(Slice slice, object decompress) except -1:
    cdef Entry entry = slice.entry
    cdef int opens = 0
    if entry.failure is None and not entry.opened:
        try:
            opens = 1
            entry.open_body(decompress)
        except CorruptionError as error:
            entry.failure = str(error).partition(": ")[2]  # it begins with the place
    if entry.failure is not None:
        raise CorruptionError(f"segment {entry.segment_id}, offset {entry.first_offset}: {entry.failure}")
    slice.value_offsets, slice.values = entry.columns.value_offsets, entry.columns.values
    return opens


cdef int close_slices(list items, Py_ssize_t head) except -1:
    cdef Slice slice, made
    cdef Entry opened, closed
    if head == len(items) or not opened_bytes(items[head]):
        return 0
    opened = (<Slice> items[head]).entry
    closed = entry_at(opened.lease, opened.p)
    while head < len(items) and (<Slice> items[head]).entry is opened:
        slice = items[head]
        made = whole(closed, slice.start, slice.stop, slice.redelivered, slice.place)
        made.weight = slice.weight
        items[head] = made
        head += 1
    return 0


cdef bint open_next(Slice slice, object decompress, Py_ssize_t count, Py_ssize_t room) except -1:
    if count and room < 0 and slice.entry.opens_to():
        return False
    try:
        open_slice(slice, decompress)
    except (CorruptionError, DecryptionError):
        if not count:
            raise
        return False
    return True


cdef uint32_t opened_bytes(Slice slice) noexcept:
    return slice.entry.opens_to() if slice.entry.opened else 0
