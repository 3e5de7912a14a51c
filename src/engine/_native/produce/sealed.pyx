# cython: language_level=3, auto_pickle=False
"""Sealed entries on their way to the broker: made from open batches, or from entries that have to be rerouted.

    builder  -- build() -->  SealedEntry  -->  outbox: entry.compress()  -->  broker
                                  |
                                  |  the broker refuses it: its segment was sealed meanwhile
                                  +-- expand(), resplit(): each message to its builder under the new layout, build()
                                  |  the broker has stored some of its messages already
                                  +-- expand(), take_apart(): an entry for each message

*What is sealed.* build() chooses the bucket of keyless messages, writes header and columns from the builder into one
bytes object, and both checksums. From then on messages, order, sequence ids and hash range are fixed; of the header the
broker writes only its stamp.

*Compression* is not done here: a batcher is busy while it seals, and every thread that produces would wait for the
compressor. The client's outbox compresses the entries that it took, outside of the batcher's lock, and puts the result
into `data`.

*Rerouting* keeps what duplicate detection relies on. Keyed messages are split by their keys, and keep their sequence
ids. Keyless entries are moved whole, by the hash they were sealed with: the segment that owns that hash now inherited
the knowledge of the one that may have stored them.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MIN, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from engine._native.format.body cimport Columns, map_columns
from engine._native.produce.builder cimport (
    Builder, Message, builder_add, builder_free, builder_image_size, builder_write,
)
from engine._native.format.entry cimport (
    AT_BUCKET_MIN, AT_COMPRESSION, AT_FLAGS, AT_PADDING, AT_RAW_SIZE, AT_SEGMENT_HASH_MIN, AT_SIZE, COMPRESSION_NONE,
    FAULT_NONE, HEADER_SIZE, KEYED, TRANSACTIONAL, Entry, check_header, load16, load32, seal, store32,
)
from engine._native.format.ranges cimport Routes, Target, ring_find, route, route_keyless, target_of

from engine.errors import CorruptionError, InvalidArgumentError

cdef enum:
    GOLDEN = 40503                # odd, near 65,536 over the golden ratio: its multiples modulo 65,536 lie far apart
    SILVER = 27147                # another such number

cdef extern from "hash.h" nogil:
    uint32_t key32_hash(const uint8_t* p, size_t n, int algorithm) noexcept


cdef class TransactionScope:
    """The part of one client in one transaction: `number` is the transaction's id, `attempt_number` that of the
    attempt. Once `refusal` is an exception, batchers raise it for further messages.
    """

    def __init__(self, uint64_t number, uint64_t attempt_number):
        self.number, self.attempt_number = number, attempt_number

    def entry_entered(self, bint awaited):
        """An entry is under way. `awaited`: the id of a message in it is awaited."""
        self.under_way += 1
        self.entries += 1
        self.waited_for += awaited

    def entry_left(self, bint awaited):
        """An entry is answered or has failed. See left()."""
        self.waited_for -= awaited
        self.left()

    cpdef left(self):
        """Something was answered or has failed; in the latter case the scope gets the error in the same turn."""
        self.under_way -= 1
        if not self.under_way:
            self.all_left()

    def all_left(self):
        """Nothing is under way any more."""
        raise NotImplementedError

    def frame_sent(self, connection not None, Py_ssize_t entries):
        """Entries of it were written in one frame."""
        if self.wire is None:
            self.wire = connection
        elif self.wire is not connection:
            self.spread = True
        self.frames += 1
        self.on_wire += entries

    def scattered(self):
        """Something is sent again, or in pieces: the frames counted do not stand for all of it any more."""
        self.spread = True


@cython.final
cdef class SealedEntry:
    """One sealed entry: `data` is its bytes, `pending` the bytes to release() once its outcome is known."""

    def __repr__(self):
        return (
            f"SealedEntry(segment_id={self.segment_id}, bucket={self.bucket}, count={self.count}, "
            f"sequences={self.first_sequence}..{self.last_sequence}, size={len(self.data)})")


cdef SealedEntry build(Routes routes, Builder* b, uint32_t index, list waiters, bytes name, uint64_t producer_id,
                       TransactionScope scope):
    cdef SealedEntry entry = SealedEntry.__new__(SealedEntry)
    cdef const Target* target
    cdef uint32_t hash = 0  # noqa: A001
    entry.data = PyBytes_FromStringAndSize(NULL, builder_image_size(b, PyBytes_GET_SIZE(name)))
    if b.flags & KEYED:
        target = target_of(routes, index)
        entry.bucket = index - target.base
    else:
        target = route_steady(routes, b, producer_id, &hash) if b.block_bits else route_keyless(routes, &hash)
        entry.bucket = ring_find(target.ring, <uint16_t> hash)
        b.bucket_min = b.bucket_max = <uint16_t> hash
        b.segment_min = b.segment_max = <uint16_t> (hash >> 16)
    _enlist(b, scope)
    builder_write(b, <uint8_t*> PyBytes_AS_STRING(entry.data), name, producer_id)
    entry.segment_id, entry.keyed, entry.count = target.segment_id, b.flags & KEYED != 0, b.count
    entry.first_sequence, entry.last_sequence = b.first_sequence, b.last_sequence
    entry.pending, entry.scope = b.bytes, scope
    if waiters is not None:
        entry.waiters = list(zip(waiters[::2], waiters[1::2]))
    return entry


cdef void _enlist(Builder* b, TransactionScope scope) noexcept:
    if scope is not None:
        b.flags |= TRANSACTIONAL
        b.txn_high, b.txn_low = scope.number, scope.attempt_number


# The route of keyless messages that follows from their producer's name and sequence ids alone, so that a producer which
# sends them again after a restart sends them to the segment that can detect them. Consecutive blocks of a producer lie
# far apart on both rings, and so do the first blocks of many.
cdef const Target* route_steady(Routes routes, const Builder* b, uint64_t producer_id, uint32_t* hash) noexcept nogil:
    cdef uint64_t block = b.first_sequence >> b.block_bits
    cdef uint64_t upper = block * GOLDEN + producer_id, lower = ((block * SILVER) >> 3) + (producer_id >> 32)
    hash[0] = <uint32_t> (upper & 0xFFFF) << 16 | <uint32_t> (lower & 0xFFFF)
    return target_of(routes, route(routes, hash[0]))


cdef list take_apart(SealedEntry entry, int key_hash, bytes name, uint64_t producer_id):
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(entry.data)
    cdef Columns columns
    cdef Builder b
    cdef list entries = []
    cdef uint32_t i
    _open(entry, &columns)
    waiting = {index: waiter for waiter, index in entry.waiters or ()}
    for i in range(entry.count):
        memset(&b, 0, sizeof(Builder))
        try:
            entries.append(_single(entry, &b, &columns, i, key_hash, name, producer_id))
        finally:
            builder_free(&b)
        if i in waiting:
            (<SealedEntry> entries[i]).waiters = [(waiting[i], 0)]
    return entries


cdef SealedEntry _single(SealedEntry entry, Builder* b, const Columns* columns, uint32_t i, int key_hash, bytes name,
                         uint64_t producer_id):
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(entry.data)
    cdef SealedEntry made = SealedEntry.__new__(SealedEntry)
    cdef Message m
    _message_at(&m, columns, i, entry.first_sequence)
    m.hash = <uint32_t> load16(p + AT_SEGMENT_HASH_MIN) << 16 | load16(p + AT_BUCKET_MIN)
    if entry.keyed:
        m.hash = key32_hash(m.key, m.key_size, key_hash)
    if builder_add(b, &m) < 0:
        raise MemoryError()
    if entry.keyed:
        b.flags |= KEYED
    _enlist(b, entry.scope)
    made.data = PyBytes_FromStringAndSize(NULL, builder_image_size(b, PyBytes_GET_SIZE(name)))
    builder_write(b, <uint8_t*> PyBytes_AS_STRING(made.data), name, producer_id)
    made.segment_id, made.bucket, made.keyed, made.count = entry.segment_id, entry.bucket, entry.keyed, 1
    made.first_sequence = made.last_sequence = b.first_sequence
    made.pending, made.attempts, made.scope = b.bytes, entry.attempts, entry.scope
    return made


# Lay out the columns of an entry that is to be split.
cdef int _open(SealedEntry entry, Columns* columns) except -1:
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(entry.data)
    if check_header(p, PyBytes_GET_SIZE(entry.data)) != FAULT_NONE or p[AT_COMPRESSION] != COMPRESSION_NONE:
        raise InvalidArgumentError("an entry to be split must be whole and uncompressed")
    if not map_columns(columns, p, p + HEADER_SIZE):
        raise InvalidArgumentError("the columns of an entry to be split must add up to its body")
    return 0


cdef list resplit(Routes routes, SealedEntry entry, int key_hash, bytes name, uint64_t producer_id):
    cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(entry.data)
    cdef Columns columns
    _open(entry, &columns)
    if not p[AT_FLAGS] & KEYED:
        return [_moved(routes, entry, <uint32_t> load16(p + AT_SEGMENT_HASH_MIN) << 16 | load16(p + AT_BUCKET_MIN))]
    cdef Builder* builders = <Builder*> calloc(routes.builders, sizeof(Builder))
    cdef dict waiters = {}
    cdef list entries = []
    cdef SealedEntry made
    cdef uint32_t i
    if builders is NULL:
        raise MemoryError()
    try:
        _deal(routes, builders, waiters, entry, &columns, key_hash)
        for i in range(routes.builders):
            if builders[i].count:
                made = build(routes, &builders[i], i, waiters.get(i), name, producer_id, entry.scope)
                made.attempts = entry.attempts
                entries.append(made)
    finally:
        for i in range(routes.builders):
            builder_free(&builders[i])
        free(builders)
    return entries


# Every message of an entry to its builder, every waiter to its message's builder.
cdef int _deal(Routes routes, Builder* builders, dict waiters, SealedEntry entry, const Columns* columns,
               int key_hash) except -1:
    cdef dict waiting = {index: waiter for waiter, index in entry.waiters or ()}
    cdef uint64_t first = entry.first_sequence
    cdef uint32_t i, index
    cdef Message m
    for i in range(entry.count):
        _message_at(&m, columns, i, first)
        m.hash = key32_hash(m.key, m.key_size, key_hash)
        index = route(routes, m.hash)
        if builder_add(&builders[index], &m) < 0:
            raise MemoryError()
        builders[index].flags |= KEYED
        if i in waiting:
            waiters.setdefault(index, []).extend((waiting[i], builders[index].count - 1))
    return 0


cdef void _message_at(Message* m, const Columns* columns, uint32_t i, uint64_t first) noexcept nogil:
    m.value = columns.values + columns.value_offsets[i]
    m.value_size = columns.value_offsets[i + 1] - columns.value_offsets[i]
    m.key_size = 0
    if columns.key_offsets is not NULL:
        m.key = columns.keys + columns.key_offsets[i]
        m.key_size = columns.key_offsets[i + 1] - columns.key_offsets[i]
    m.sequence = first + (i if columns.sequences is NULL else columns.sequences[i])
    m.event_time = INT64_MIN if columns.event_times is NULL else columns.event_times[i]
    m.deliver_at = INT64_MIN if columns.deliver_at is NULL else columns.deliver_at[i]
    m.properties_size = 0
    if columns.property_offsets is not NULL:
        m.properties = columns.properties + columns.property_offsets[i]
        m.properties_size = columns.property_offsets[i + 1] - columns.property_offsets[i]


# An entry of keyless messages, for the segment that now owns the hash it was sealed with: duplicate detection knows it
# there, if an earlier attempt was stored.
cdef SealedEntry _moved(Routes routes, SealedEntry entry, uint32_t hash):  # noqa: A002
    cdef SealedEntry moved = SealedEntry.__new__(SealedEntry)
    cdef uint32_t index = route(routes, hash)
    cdef const Target* target = target_of(routes, index)
    moved.data = entry.data
    moved.segment_id, moved.bucket = target.segment_id, index - target.base
    moved.first_sequence, moved.last_sequence = entry.first_sequence, entry.last_sequence
    moved.count, moved.pending, moved.attempts = entry.count, entry.pending, entry.attempts
    moved.waiters, moved.scope = entry.waiters, entry.scope
    return moved


def expand(bytes data not None, decompress):
    """The uncompressed form of an entry; `data` itself where it is not compressed.

    decompress is called as decompress(codec, body, raw_size) and returns raw_size bytes. Raises CorruptionError.
    """
    cdef Entry entry = Entry(data)
    cdef uint8_t* p
    if entry.p[AT_COMPRESSION] == COMPRESSION_NONE:
        return data
    body = decompress(entry.p[AT_COMPRESSION], entry.closed_body(), load32(entry.p + AT_RAW_SIZE))
    if not PyBytes_CheckExact(body) or PyBytes_GET_SIZE(body) != load32(entry.p + AT_RAW_SIZE):
        raise CorruptionError(f"a body of {load32(entry.p + AT_RAW_SIZE)} bytes was decompressed to another size")
    made = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + PyBytes_GET_SIZE(body))
    p = <uint8_t*> PyBytes_AS_STRING(made)
    memcpy(p, entry.p, HEADER_SIZE)
    memcpy(p + HEADER_SIZE, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
    store32(p + AT_SIZE, <uint32_t> PyBytes_GET_SIZE(made))
    p[AT_COMPRESSION], p[AT_PADDING] = COMPRESSION_NONE, 0
    seal(p)
    return made
