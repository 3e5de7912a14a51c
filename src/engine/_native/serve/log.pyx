# cython: language_level=3
"""Entries back to back, as in a log file: check and stamp them, cut blocks out of them, scan them.

The life of an entry in the log, and the function for each step:

1. entries() checks what a producer sent, before any of it is stored: header and body checksums of all, then what is in
   them (structure.pyx), then transaction and producer. It returns a Claim of each for duplicate detection.
2. stamp() writes term, offsets and time into the broker's half of each header, in place. The checksum of that half is
   seeded with the file's salt, so that what an earlier file left on the same blocks of the disk never counts as an
   entry of this one.
3. cut() finds the block for a reader: skip the entries that end at or below its offset, then take whole entries up to
   `bytes_max`. Stamp, segment and the continuity of offsets are checked again on the way, bodies where asked.
4. Scan reads a file again after a crash:

       file    | header | entry | entry | entry | torn entry | zeros written ahead
                                                ^ position: all before it is good

   It is fed the file in pieces. Of each entry it checks header, stamp, segment, that its offset is the expected next
   one, and the body checksum, in this order; then it notes a line of the sparse index every `step` bytes, and the
   newest entries of each lane (producer, kind, bucket) for duplicate detection, in an open-addressing hash table.
   It stops at `end_offset`, or at the first fault; an entry that is not complete yet (FAULT_SHORT) asks for more bytes.

   What a fault means is decided in `storage`. find_durable() searches behind it, on every 8th byte as entries are
   multiples of 8, for an entry that states that an offset beyond the fault was durable already: then acknowledged data
   is damaged. Else the fault is the torn tail of a write that was never acknowledged, and is cut off.

Nothing here opens, reads or writes a file: `storage` brings the bytes. See docs/formats/log.md.
"""
from engine import limits
from engine.errors import InvalidArgumentError

from engine._native.format cimport entry as e
from engine._native.format.body cimport Lease, hold
from engine._native.format.cipher cimport cipher_of, is_part
from engine._native.format.entry cimport Fault, load16, load32, load64
from engine._native.format.structure cimport FLAW_NONE, Flaw, check_structure, raise_flaw
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

FAULT_SHORT = e.FAULT_SHORT
# Faults under a good header checksum: the bytes were written as they stand, so they are never a torn tail.
FAULTS_DELIBERATE = (e.FAULT_VERSION, e.FAULT_LAYOUT)

cdef uint32_t KINDS = e.KEYED | e.TRANSACTIONAL


cdef class Claim:
    """The fields of an entry's header that decide where it may be stored and whether it is a duplicate."""

    def __init__(self, position, size, count, kind, bucket_min, bucket_max, segment_hash_min, segment_hash_max,
                 producer_id, first_sequence, last_sequence, floor=0):
        self.position = position
        self.size = size
        self.count = count
        self.kind = kind
        self.bucket_min = bucket_min
        self.bucket_max = bucket_max
        self.segment_hash_min = segment_hash_min
        self.segment_hash_max = segment_hash_max
        self.producer_id = producer_id
        self.first_sequence = first_sequence
        self.last_sequence = last_sequence
        self.floor = floor


# Of a chunk which others follow, the sequences are the door's own: they rise beside those of the producer.
cdef inline uint32_t _kind_of(const uint8_t* p) noexcept nogil:
    return p[e.AT_FLAGS] & KINDS | (PART if is_part(cipher_of(p)) else 0)


cdef Claim _claim_at(const uint8_t* p, size_t position):
    cdef Claim claim = Claim.__new__(Claim)
    claim.position = position
    claim.size = load32(p + e.AT_SIZE)
    claim.count = load32(p + e.AT_COUNT)
    claim.kind = _kind_of(p)
    claim.bucket_min = load16(p + e.AT_BUCKET_MIN)
    claim.bucket_max = load16(p + e.AT_BUCKET_MAX)
    claim.segment_hash_min = load16(p + e.AT_SEGMENT_HASH_MIN)
    claim.segment_hash_max = load16(p + e.AT_SEGMENT_HASH_MAX)
    claim.producer_id = load64(p + e.AT_PRODUCER_ID)
    claim.first_sequence = load64(p + e.AT_FIRST_SEQUENCE)
    claim.last_sequence = load64(p + e.AT_LAST_SEQUENCE)
    claim.floor = e.floor_of(claim.first_sequence, load16(p + e.AT_LAG))
    return claim


def entries(data not None, bint check_body=True, transaction=None, producer=None, bint several=False):
    """A Claim for each of the whole entries in a buffer.

    check_body: check bodies and what is in them, too, and `transaction`; False for entries that were stored before.
    transaction: the (number, attempt) that every entry must belong to, None: to none. several: each entry is in one of
    its own instead, which the caller has read. producer: the id of the producer
    that every entry must name, None for any. Raises CorruptionError, MessageTooLargeError; InvalidArgumentError for an
    entry of another transaction or producer.
    """
    cdef Lease lease = hold(data)  # columns are checked where they lie, and need their alignment
    cdef size_t n = lease.size, at = 0, bad = 0
    cdef const uint8_t* start = lease.start
    cdef Flaw flaw = FLAW_NONE
    cdef Fault fault
    cdef uint64_t high = 0, low = 0, sender = 0
    cdef bint inside = transaction is not None
    if inside:
        high, low = transaction
    if producer is not None:
        sender = producer
    if n == 0:
        raise InvalidArgumentError("an append must have at least one entry, got none")
    with nogil:
        fault = e.check_entries(start, n, check_body, &bad)
        if fault == e.FAULT_NONE and check_body:
            flaw = _find_flaw(start, n, &bad)
    if fault != e.FAULT_NONE:
        e.raise_fault(fault, e.unknown(), e.unknown())
    if flaw != FLAW_NONE:
        raise_flaw(flaw, start + bad)
    cdef list found = []
    while at < n:
        if check_body and not several and not _is_in(start + at, inside, high, low):
            raise InvalidArgumentError(
                "an entry must be in the transaction that its frame names, got one in another or in none")
        if producer is not None and load64(start + at + e.AT_PRODUCER_ID) != sender:
            raise InvalidArgumentError(
                f"producer_id of an entry must be {hex(sender)}, that of the attached producer, got "
                f"{hex(load64(start + at + e.AT_PRODUCER_ID))}")
        found.append(_claim_at(start + at, at))
        at += load32(start + at + e.AT_SIZE)
    return found


cdef inline bint _is_in(const uint8_t* p, bint inside, uint64_t high, uint64_t low) noexcept nogil:
    if not p[e.AT_FLAGS] & e.TRANSACTIONAL:
        return not inside
    return inside and load64(p + e.AT_TXN_HIGH) == high and load64(p + e.AT_TXN_LOW) == low


# The first flaw inside entries whose checksums hold, and `bad`: where its entry begins.
cdef Flaw _find_flaw(const uint8_t* start, size_t n, size_t* bad) noexcept nogil:
    cdef Flaw flaw
    bad[0] = 0
    while bad[0] < n:
        flaw = check_structure(start + bad[0])
        if flaw != FLAW_NONE:
            return flaw
        bad[0] += load32(start + bad[0] + e.AT_SIZE)
    return FLAW_NONE


def stamp(uint8_t[::1] data not None, uint32_t salt, uint32_t term, uint64_t first_offset, int64_t publish_time_ms,
          uint64_t durable_upto, uint64_t segment_id, size_t start=0):
    """Stamp whole entries, checked before, from position `start` on, in place. Returns the offset after the last.

    The offsets follow each other from `first_offset`, one per message.
    """
    cdef size_t n = data.shape[0], at = start
    cdef uint8_t* p
    with nogil:
        while at + e.HEADER_SIZE <= n:
            p = &data[at]
            e.stamp(p, salt, term, first_offset, publish_time_ms, durable_upto, segment_id)
            first_offset += load32(p + e.AT_COUNT)
            at += load32(p + e.AT_SIZE)
    return first_offset


def cut(const uint8_t[::1] data not None, uint32_t salt, uint64_t segment_id, uint64_t offset, size_t bytes_max,
        bint check_body=True, upto=None):
    """Cut the block for a reader at `offset` out of stamped entries that start where `data` does.

    Returns (start, stop, first_offset, next_offset, messages, missing). The block is data[start:stop], whole entries
    of which the first one holds `offset` or, where that is not in the buffer, is the first after it: at least one
    entry, otherwise at most `bytes_max`. An incomplete entry at the end of the buffer is left out, and so is what
    begins at or above `upto`. When not even one entry is complete, start == stop, and `missing` is the bytes from
    `start` that it takes. Raises CorruptionError for the first entry, if it fails a check.
    """
    cdef size_t n = data.shape[0], at = 0, start = 0, missing = 0
    cdef uint64_t first = 0, after = 0, messages = 0, expected = e.unknown()
    cdef uint64_t end = e.unknown() if upto is None else upto
    cdef Fault fault = e.FAULT_NONE
    cdef const uint8_t* p
    with nogil:
        while at < n:
            p = &data[at]
            fault = e.check_header(p, n - at)
            if fault == e.FAULT_SHORT:
                missing = load32(p + e.AT_SIZE) if n - at >= e.HEADER_SIZE else e.HEADER_SIZE
                fault = e.FAULT_NONE
                break
            if fault == e.FAULT_NONE:
                fault = _check_place(p, salt, segment_id, expected)
            if fault != e.FAULT_NONE:
                break
            expected = load64(p + e.AT_FIRST_OFFSET) + load32(p + e.AT_COUNT)
            if expected <= offset:
                at += load32(p + e.AT_SIZE)
                start = at
                continue
            if load64(p + e.AT_FIRST_OFFSET) >= end or (
                    at > start and at - start + load32(p + e.AT_SIZE) > bytes_max):
                break
            if check_body:
                fault = e.check_body(p)
                if fault != e.FAULT_NONE:
                    expected = load64(p + e.AT_FIRST_OFFSET)
                    break
            if messages == 0:
                first = load64(p + e.AT_FIRST_OFFSET)
            messages += load32(p + e.AT_COUNT)
            after = expected
            at += load32(p + e.AT_SIZE)
    if fault != e.FAULT_NONE:
        if messages == 0:
            e.raise_fault(fault, segment_id, offset if expected == e.unknown() else expected)
        at = min(at, n)                          # serve what is good before the fault; the next read raises it
    return (start, at if messages else start, first, after, messages, 0 if messages else missing)


cdef Fault _check_place(const uint8_t* p, uint32_t salt, uint64_t segment_id, uint64_t expected) noexcept nogil:
    cdef Fault fault = e.check_stamp(p, salt)
    if fault != e.FAULT_NONE:
        return fault
    if load64(p + e.AT_SEGMENT_ID) != segment_id:
        return e.FAULT_SEGMENT
    if expected != e.unknown() and load64(p + e.AT_FIRST_OFFSET) != expected:
        return e.FAULT_ORDER
    return e.FAULT_NONE


def find_durable(const uint8_t[::1] data not None, uint32_t salt, uint64_t segment_id, uint64_t above):
    """Search every 8th byte for an entry of this file that states that an offset larger than `above` was durable.

    Returns its position in the buffer, or -1. Only its header has to be inside the buffer.
    """
    cdef size_t n = data.shape[0], at = 0
    cdef const uint8_t* p
    cdef int64_t found = -1
    cdef Fault fault
    with nogil:
        while at + e.HEADER_SIZE <= n:
            p = &data[at]
            if load32(p) == e.MAGIC:
                fault = e.check_header(p, n - at)
                if (fault == e.FAULT_NONE or fault == e.FAULT_SHORT) and _check_place(
                        p, salt, segment_id, e.unknown()) == e.FAULT_NONE and load64(p + e.AT_DURABLE_UPTO) > above:
                    found = at
                    break
            at += 8
    return found


def offset_at_time(const uint8_t[::1] data not None, int64_t time_ms):
    """The first offset of the first entry of a block that was published at or after a time, -1 for none."""
    cdef size_t n = data.shape[0], at = 0
    while at + e.HEADER_SIZE <= n:
        if <int64_t>load64(&data[at] + e.AT_PUBLISH_TIME) >= time_ms:
            return load64(&data[at] + e.AT_FIRST_OFFSET)
        at += load32(&data[at] + e.AT_SIZE)
    return -1


def raise_fault(int fault, uint64_t segment_id, uint64_t offset):
    """Raise the CorruptionError for the `fault` of a Scan."""
    e.raise_fault(<Fault>fault, segment_id, offset)


cdef class Scan:
    """Scans a file's entries in order, checks each as a whole, and gathers what a segment needs to continue."""

    def __cinit__(self, uint32_t salt, uint64_t segment_id, uint64_t first_offset, uint64_t position, bucket_ends,
                  end_offset=None, uint64_t step=limits.LOG_INDEX_BYTES_STEP):
        self.salt = salt
        self.segment_id = segment_id
        self.step = step
        self.end_offset = e.unknown() if end_offset is None else end_offset
        self.next_offset = first_offset
        self.position = position
        self.time_ms = 0
        self.bucket_count = len(bucket_ends)
        if not 0 < self.bucket_count <= 1024:
            raise InvalidArgumentError(f"a segment must have 1 to 1024 buckets, got {len(bucket_ends)}")
        for i, end in enumerate(bucket_ends):
            self.bucket_ends[i] = end

    def __dealloc__(self):
        free(self.marks)
        free(self.lanes)

    def feed(self, const uint8_t[::1] data not None):
        """Scan the entries at the front of `data`, which continues the file at `position`. Returns their bytes.

        Without a `fault` the rest is the beginning of an entry: feed it again, with what follows.
        """
        cdef size_t n = data.shape[0]
        cdef int64_t taken = 0
        if n and self.fault == 0:
            with nogil:
                taken = self.take(&data[0], n)
            if taken < 0:
                raise MemoryError
        return taken

    @property
    def finished(self):
        """Whether the end offset is reached."""
        return self.next_offset >= self.end_offset

    def marks_list(self):
        """The sparse index: (offset, position, time_ms) of the first entry in every `step` bytes."""
        cdef size_t i
        return [(self.marks[i].offset, self.marks[i].position, self.marks[i].time_ms) for i in range(self.mark_count)]

    def lanes_list(self):
        """[(producer_id, kind, bucket, [(first_sequence, last_sequence, offset, count), …oldest first], floor)]."""
        return [_lane_tuple(&self.lanes[i]) for i in range(self.lane_room) if self.lanes[i].entries]

    cdef int64_t take(self, const uint8_t* p, size_t n) noexcept nogil:
        cdef size_t at = 0
        cdef int fault
        while at < n and self.next_offset < self.end_offset:
            fault = self.check(p + at, n - at)
            if fault == e.FAULT_SHORT:
                break
            if fault != e.FAULT_NONE:
                self.fault = fault
                break
            if self.mark(p + at) < 0 or self.remember(p + at) < 0:
                return -1
            at += load32(p + at + e.AT_SIZE)
        return at

    cdef int check(self, const uint8_t* p, size_t room) noexcept nogil:
        cdef Fault fault = e.check_header(p, room)
        if fault == e.FAULT_NONE:
            fault = _check_place(p, self.salt, self.segment_id, self.next_offset)
        if fault == e.FAULT_NONE:
            fault = e.check_body(p)
        return fault

    cdef int mark(self, const uint8_t* p) noexcept nogil:
        cdef Mark* grown
        if self.mark_count and self.position - self.marks[self.mark_count - 1].position < self.step:
            return 0
        if self.mark_count == self.mark_room:
            self.mark_room = self.mark_room * 2 if self.mark_room else 16
            grown = <Mark*>realloc(self.marks, self.mark_room * sizeof(Mark))
            if grown == NULL:
                return -1
            self.marks = grown
        self.marks[self.mark_count].offset = load64(p + e.AT_FIRST_OFFSET)
        self.marks[self.mark_count].position = self.position
        self.marks[self.mark_count].time_ms = <int64_t>load64(p + e.AT_PUBLISH_TIME)
        self.mark_count += 1
        return 0

    cdef int remember(self, const uint8_t* p) noexcept nogil:
        cdef Lane* lane
        cdef Seen* seen
        if self.lane_count * 2 >= self.lane_room and self.grow_lanes() < 0:
            return -1
        lane = self.lane_of(load64(p + e.AT_PRODUCER_ID), _kind_of(p), self.bucket_of(load16(p + e.AT_BUCKET_MIN)))
        if lane.entries == 0:
            lane.producer_id = load64(p + e.AT_PRODUCER_ID)
            lane.kind = _kind_of(p)
            lane.bucket = self.bucket_of(load16(p + e.AT_BUCKET_MIN))
            self.lane_count += 1
        seen = &lane.recent[lane.entries % RECENT]
        seen.first_sequence = load64(p + e.AT_FIRST_SEQUENCE)
        seen.last_sequence = load64(p + e.AT_LAST_SEQUENCE)
        seen.offset = self.next_offset
        seen.count = load32(p + e.AT_COUNT)
        lane.floor = max(lane.floor, e.floor_of(seen.first_sequence, load16(p + e.AT_LAG)))
        lane.entries += 1
        self.entries += 1
        self.position += load32(p + e.AT_SIZE)
        self.next_offset += load32(p + e.AT_COUNT)
        self.durable_upto = max(self.durable_upto, load64(p + e.AT_DURABLE_UPTO))
        self.time_ms = max(self.time_ms, <int64_t>load64(p + e.AT_PUBLISH_TIME))
        self.term = max(self.term, load32(p + e.AT_TERM))
        return 0

    cdef Lane* lane_of(self, uint64_t producer_id, uint32_t kind, uint32_t bucket) noexcept nogil:
        cdef uint64_t mixed = (producer_id ^ (<uint64_t>bucket << 8) ^ kind) * <uint64_t>0x9E3779B97F4A7C15
        cdef size_t i = <size_t>(mixed >> 32) & (self.lane_room - 1)
        cdef Lane* lane
        while True:
            lane = &self.lanes[i]
            if lane.entries == 0 or (lane.producer_id == producer_id and lane.kind == kind and lane.bucket == bucket):
                return lane
            i = (i + 1) & (self.lane_room - 1)

    cdef int grow_lanes(self) noexcept nogil:
        cdef Lane* old = self.lanes
        cdef size_t i, old_room = self.lane_room, room = self.lane_room * 2 if self.lane_room else 8
        cdef Lane* grown = <Lane*>calloc(room, sizeof(Lane))
        if grown == NULL:
            return -1
        self.lanes = grown
        self.lane_room = room
        for i in range(old_room):
            if old[i].entries:
                self.lane_of(old[i].producer_id, old[i].kind, old[i].bucket)[0] = old[i]
        free(old)
        return 0

    cdef uint32_t bucket_of(self, uint16_t bucket_hash) noexcept nogil:
        cdef int low = 0, high = self.bucket_count - 1, middle
        while low < high:
            middle = (low + high) // 2
            if bucket_hash <= self.bucket_ends[middle]:
                high = middle
            else:
                low = middle + 1
        return low


cdef tuple _lane_tuple(const Lane* lane):
    cdef uint64_t i, oldest = lane.entries - RECENT if lane.entries > RECENT else 0
    recent = []
    for i in range(oldest, lane.entries):
        seen = lane.recent[i % RECENT]
        recent.append((seen.first_sequence, seen.last_sequence, seen.offset, seen.count))
    return (lane.producer_id, lane.kind, lane.bucket, recent, lane.floor)
