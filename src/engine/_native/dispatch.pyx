# cython: language_level=3
"""Routes the entries of a block to the owners of their buckets."""
from engine._native.body cimport Lease, hold
from engine._native.entry cimport (
    AT_BUCKET_MAX, AT_BUCKET_MIN, AT_COUNT, AT_FIRST_OFFSET, AT_SEGMENT_ID, AT_SIZE, FAULT_NONE, Fault, check_header,
    load16, load32, load64, raise_fault, unknown,
)
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from engine.errors import CorruptionError, InvalidArgumentError
from engine.limits import BUCKETS_PER_SEGMENT_MAX

cdef uint32_t BUCKETS_MAX = BUCKETS_PER_SEGMENT_MAX


# A run being collected: entries back to back with one owner.
cdef struct Run:
    int32_t owner
    Py_ssize_t start
    uint64_t first_offset
    uint64_t messages


def route(block, const uint16_t[::1] ends not None, const int32_t[::1] owners not None):
    """Runs of consecutive entries with one owner, by the bucket range each entry is stamped with.

    block: whole entries back to back, whose checksums the reader has verified (headers are checked again here).
    ends: the segment's inclusive bucket ends, rising, the last 65535. owners: one per bucket, -1 where the bucket is
    withheld. Both are read as buffers: array("H"), array("i"), or NumPy uint16 and int32.

    Returns (owner, start, stop, first_offset, messages) per run: bytes start..stop of the block. Raises CorruptionError
    naming the entry whose range lies in two buckets; InvalidArgumentError when ends or owners are not as said.
    """
    cdef Lease lease = hold(block)
    cdef const uint8_t* p
    cdef Py_ssize_t at = 0
    cdef uint32_t bucket, buckets = ends.shape[0]
    cdef int32_t owner
    cdef Run run
    cdef Fault fault
    cdef list runs = []
    _check_arguments(ends, owners)
    run.owner, run.start, run.first_offset, run.messages = 0, 0, 0, 0
    while at < lease.size:
        p = lease.start + at
        fault = check_header(p, lease.size - at)
        if fault != FAULT_NONE:
            raise_fault(fault, unknown(), unknown())
        bucket = bucket_of(&ends[0], buckets, load16(p + AT_BUCKET_MIN))
        if ends[bucket] < load16(p + AT_BUCKET_MAX):
            _refuse(p, bucket, ends[bucket])
        owner = owners[bucket]
        if run.messages and owner != run.owner:
            runs.append((run.owner, run.start, at, run.first_offset, run.messages))
            run.messages = 0
        if not run.messages:
            run.owner, run.start, run.first_offset = owner, at, load64(p + AT_FIRST_OFFSET)
        run.messages += load32(p + AT_COUNT)
        at += load32(p + AT_SIZE)
    if run.messages:
        runs.append((run.owner, run.start, at, run.first_offset, run.messages))
    return runs


cdef int _check_arguments(const uint16_t[::1] ends, const int32_t[::1] owners) except -1:
    cdef Py_ssize_t buckets = ends.shape[0]
    if not 1 <= buckets <= BUCKETS_MAX or owners.shape[0] != buckets or ends[buckets - 1] != 0xFFFF:
        raise InvalidArgumentError(
            f"a segment has 1 to {BUCKETS_MAX} buckets, the last ends at 65535, and each has an owner: "
            f"{buckets} ends, {owners.shape[0]} owners, the last end {ends[buckets - 1] if buckets else None}"
        )
    return 0


cdef int _refuse(const uint8_t* p, uint32_t bucket, uint16_t end) except -1:
    raise CorruptionError(
        f"segment {load64(p + AT_SEGMENT_ID)}, offset {load64(p + AT_FIRST_OFFSET)}: the entry's bucket hashes "
        f"{load16(p + AT_BUCKET_MIN)}..{load16(p + AT_BUCKET_MAX)} leave bucket {bucket}, which ends at {end}"
    )
