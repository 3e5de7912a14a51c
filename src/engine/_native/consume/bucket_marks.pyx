# cython: language_level=3, auto_pickle=False
"""The progress of one attachment to a segment, bucket by bucket."""
cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uint32_t, uint64_t

from engine._native.format.entry cimport AT_BUCKET_MIN, Entry, load16
from engine._native.format.ranges cimport ring_find, ring_set

from engine.errors import InvalidArgumentError
from engine.limits import BUCKETS_PER_SEGMENT_MAX

# As in model/positions.py. Users store these numbers in message ids: do not change.
cdef enum:
    BUCKET_BITS = 10

cdef uint64_t BUCKET_FLAG = <uint64_t> 1 << 62
cdef uint64_t SEGMENTS_END = <uint64_t> 1 << 52

if BUCKETS_PER_SEGMENT_MAX > 1 << BUCKET_BITS:
    raise AssertionError(f"{BUCKETS_PER_SEGMENT_MAX} buckets do not fit {BUCKET_BITS} bits")


@cython.final
cdef class BucketMarks:
    """The buckets of one segment: what was received and acknowledged since the attachment began.

    ends: the segment's inclusive bucket ends, rising, the last 65535. keyed: position vectors hold a position for each
    bucket, as the segment is shared; else one for the segment. Raises InvalidArgumentError for other ends.
    """

    def __cinit__(self, uint64_t segment_id, ends, bint keyed):
        ends = list(ends)
        if not 1 <= len(ends) <= BUCKETS_PER_SEGMENT_MAX or segment_id >= SEGMENTS_END:
            raise InvalidArgumentError(
                f"segment {segment_id} must have 1 to {BUCKETS_PER_SEGMENT_MAX} buckets, got {len(ends)}")
        ring_set(&self.ring, ends, "buckets")
        self.segment_id, self.keyed = segment_id, keyed
        self.first_key = BUCKET_FLAG | segment_id << BUCKET_BITS
        self.marks = <Mark*> PyMem_Calloc(len(ends), sizeof(Mark))
        if self.marks is NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self.ring.ends)
        PyMem_Free(self.marks)

    def __len__(self):
        return self.ring.count

    cdef uint32_t bucket_of(self, Entry entry) noexcept:
        return ring_find(&self.ring, load16(entry.p + AT_BUCKET_MIN))

    cdef uint64_t key_of(self, uint32_t bucket) noexcept:
        return self.first_key + bucket if self.keyed else self.segment_id

    def acknowledge(self, uint32_t bucket, uint64_t position):
        """Record that everything of one bucket below `position` is acknowledged. Positions never fall."""
        self._check(bucket)
        self.marks[bucket].acknowledged = max(self.marks[bucket].acknowledged, position)

    def acknowledged(self, uint32_t bucket):
        """The offset below which everything of one bucket is acknowledged, as recorded here."""
        self._check(bucket)
        return self.marks[bucket].acknowledged

    def arrived(self, uint32_t bucket):
        """Whether an entry of one bucket was received."""
        self._check(bucket)
        return self.marks[bucket].arrived

    def _check(self, uint32_t bucket):
        if bucket >= self.ring.count:
            raise InvalidArgumentError(
                f"a bucket of segment {self.segment_id} must be below {self.ring.count}, got {bucket}")
