# cython: language_level=3
"""Finds the range of a 16-bit ring that holds a hash: the segment of a topic, the bucket of a segment."""
cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from engine.errors import InvalidArgumentError
from engine.limits import BUCKETS_PER_SEGMENT_MAX, HASH_RING_SIZE, SEGMENTS_PER_TOPIC_MAX

cdef enum:
    GOLDEN = 40503                # 65,536 over the golden ratio: its multiples spread evenly over the ring


# Build a ring of inclusive ends; InvalidArgumentError names `what` unless they tile it.
cdef int ring_set(Ring* ring, list ends, str what) except -1:
    cdef uint32_t i
    cdef int slot
    last = ends[len(ends) - 1] if ends else None
    if last != HASH_RING_SIZE - 1:
        raise InvalidArgumentError(f"{what}: the last range must end at {HASH_RING_SIZE - 1}, got {last}")
    if ends[0] < 0 or any(b <= a for a, b in zip(ends, ends[1:])):
        raise InvalidArgumentError(f"{what}: the ends of ranges must rise, from 0 at least, got {ends}")
    ring.ends = <uint16_t*> PyMem_Malloc(len(ends) * sizeof(uint16_t))
    if ring.ends is NULL:
        raise MemoryError()
    ring.count = len(ends)
    for i in range(ring.count):
        ring.ends[i] = ends[i]
    i = 0
    for slot in range(SLOTS):
        while ring.ends[i] < slot << 6:
            i += 1
        ring.first[slot] = i
    return 0


# The inclusive ends of ranges that start at `starts` and tile the ring.
cdef list ends_of(starts, str what):
    starts = list(starts)
    if not starts or starts[0] != 0:
        raise InvalidArgumentError(f"{what}: the first range must start at 0, got {starts[:1]}")
    return [start - 1 for start in starts[1:]] + [HASH_RING_SIZE - 1]


@cython.final
cdef class RangeTable:
    """A value for each range of the ring 0..65,535; range i goes from starts[i] to just before starts[i + 1].

    InvalidArgumentError unless starts[0] is 0, the starts rise, and there are as many values.
    """

    def __cinit__(self, starts, values):
        self.values = list(values)
        if len(self.values) != len(starts):
            raise InvalidArgumentError(f"{len(starts)} ranges need as many values, got {len(self.values)}")
        ring_set(&self.ring, ends_of(starts, "range table"), "range table")

    def __dealloc__(self):
        PyMem_Free(self.ring.ends)

    def __len__(self):
        return self.ring.count

    def lookup(self, uint16_t hash):  # noqa: A002
        """The value of the range that holds `hash`."""
        return self.values[ring_find(&self.ring, hash)]

    def lookup_many(self, const uint16_t[::1] hashes not None):
        """The values for uint16[n], as int64[n] (the values must be ints)."""
        import numpy as np  # slow to load, and seldom needed

        cdef Py_ssize_t i, n = hashes.shape[0]
        cdef int64_t[::1] values = np.asarray(self.values, dtype=np.int64)
        out = np.empty(n, dtype=np.int64)
        cdef int64_t[::1] target = out
        with nogil:
            for i in range(n):
                target[i] = values[ring_find(&self.ring, hashes[i])]
        return out


@cython.final
cdef class Routes:
    """The route of every hash of a topic, under one layout.

    `starts` and `segment_ids` are the active segments by range start; `bucket_ends[i]` are the inclusive ends of the
    buckets of segment i. InvalidArgumentError unless the segments tile their ring and the buckets of each tile theirs.
    `seed`: of the producer; where its turns of keyless entries begin, so that many producers of few messages spread.
    """

    def __cinit__(self, starts, segment_ids, bucket_ends, uint64_t seed=0):
        starts, segment_ids = list(starts), list(segment_ids)
        bucket_ends = [tuple(ends) for ends in bucket_ends]
        _check_counts(starts, segment_ids, bucket_ends)
        ring_set(&self.segments, ends_of(starts, "segments"), "segments")
        self.targets_count = len(starts)
        self.targets = <Target*> PyMem_Calloc(len(starts), sizeof(Target))
        self.rings = <Ring*> PyMem_Calloc(len(starts), sizeof(Ring))
        if self.targets is NULL or self.rings is NULL:
            raise MemoryError()
        rings = {}
        for i, segment_id in enumerate(segment_ids):
            self.add(i, starts[i], segment_id, bucket_ends[i], rings)
            self.targets[i].turns = <uint32_t> (seed >> 32) & 0xFFFF
        self.turn = <uint32_t> (seed % len(starts))

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.rings_count):
            PyMem_Free(self.rings[i].ends)
        PyMem_Free(self.rings)
        PyMem_Free(self.targets)
        PyMem_Free(self.segments.ends)

    def find(self, uint32_t hash):  # noqa: A002
        """(segment id, bucket) for a key's 32-bit hash."""
        cdef const Target* target = target_of(self, route(self, hash))
        return target.segment_id, route(self, hash) - target.base

    def turn_keyless(self):
        """(segment id, bucket, 32-bit hash) for the next entry of keyless messages."""
        cdef uint32_t hash  # noqa: A001
        cdef const Target* target = route_keyless(self, &hash)
        return target.segment_id, ring_find(target.ring, <uint16_t> hash), hash

    cdef int add(self, uint32_t i, uint16_t start, uint32_t segment_id, tuple ends, dict rings) except -1:
        cdef Target* target = &self.targets[i]
        if ends not in rings:
            ring_set(&self.rings[self.rings_count], list(ends), f"buckets of segment {segment_id}")
            rings[ends] = self.rings_count
            self.rings_count += 1
        target.ring = &self.rings[<uint32_t> rings[ends]]
        target.segment_id, target.start, target.end = segment_id, start, self.segments.ends[i]
        target.base, target.buckets = self.builders, target.ring.count
        self.builders += target.buckets
        return 0


def _check_counts(starts, segment_ids, bucket_ends):
    """Raise InvalidArgumentError unless there is one id and one boundary list per segment, within the limits."""
    if not len(starts) == len(segment_ids) == len(bucket_ends):
        raise InvalidArgumentError(
            f"{len(starts)} segments need as many ids and bucket lists, got {len(segment_ids)} and {len(bucket_ends)}")
    if len(starts) > SEGMENTS_PER_TOPIC_MAX:
        raise InvalidArgumentError(
            f"a topic must have at most {SEGMENTS_PER_TOPIC_MAX} active segments, got {len(starts)}")
    if any(len(ends) > BUCKETS_PER_SEGMENT_MAX for ends in bucket_ends):
        raise InvalidArgumentError(
            f"a segment must have at most {BUCKETS_PER_SEGMENT_MAX} buckets, got {max(map(len, bucket_ends))}")
    if len(set(segment_ids)) != len(segment_ids):
        raise InvalidArgumentError(f"segment ids must differ, got {segment_ids}")


cdef const Target* route_keyless(Routes routes, uint32_t* hash) noexcept nogil:
    cdef Target* target = &routes.targets[routes.turn]
    cdef uint32_t spread = <uint32_t> ((<uint64_t> target.turns * GOLDEN) & 0xFFFF)
    hash[0] = (target.start + (((target.end - target.start + 1) * spread) >> 16)) << 16 | spread
    target.turns += 1
    routes.turn = (routes.turn + 1) % routes.targets_count
    return target


cdef const Target* target_of(Routes routes, uint32_t builder) noexcept nogil:
    cdef uint32_t low = 0, high = routes.targets_count - 1, middle
    while low < high:
        middle = (low + high + 1) // 2
        if routes.targets[middle].base <= builder:
            low = middle
        else:
            high = middle - 1
    return &routes.targets[low]
