# cython: language_level=3
"""The progress of one attachment to a segment, bucket by bucket."""
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from engine._native.format.entry cimport Entry
from engine._native.format.ranges cimport Ring


cdef struct Mark:
    uint64_t acknowledged             # everything of the bucket below this offset is acknowledged
    bint arrived                      # an entry of it was received


# Changed with the GIL held only, and without releasing it in between.
@cython.final
cdef class BucketMarks:
    # Fixed.
    cdef readonly uint64_t segment_id
    cdef readonly bint keyed          # positions are kept per bucket: the segment is shared
    cdef Ring ring                    # the buckets' ends
    cdef uint64_t first_key           # of bucket 0 in a position vector; the others follow
    # One per bucket.
    cdef Mark* marks

    # The bucket that an entry of this segment is stamped with.
    cdef uint32_t bucket_of(self, Entry entry) noexcept
    # The key of a bucket's position in a vector; of the segment's, where buckets are not kept apart.
    cdef uint64_t key_of(self, uint32_t bucket) noexcept
