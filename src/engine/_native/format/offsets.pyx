# cython: language_level=3
"""Sets of offsets, and the ranges that stand for them in a frame's header.

Acknowledgements travel as inclusive ranges [first, last] and are kept as a BitMap64 (a roaring bitmap): dense where
offsets are dense, small where they are few.

    a list of pairs  --- pack() --->  few: the list; PACKED_MIN or more: 16 bytes for each pair
    offset_set()     <---             either form, checked; short runs as single offsets in one call, long ones by range
    runs()                            a BitMap64 back to maximal ranges

offset_set() reads what a peer sent: every pair is checked against the segment's end before anything is allocated for
it, and ranges may touch and overlap, as the result is a set. Adding a range is a call for each, adding an array is one
call for all of it, so that runs below RUN_MIN are cheaper as single offsets.
"""
from cpython.array cimport array, resize_smart
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_CheckExact
from engine._native.format.entry cimport load64
from libc.stdint cimport uint8_t, uint64_t

from sys import byteorder

from pyroaring import BitMap64

from engine.errors import InvalidArgumentError

# Runs shorter than RUN_MIN are added as single offsets, see above.
cdef enum:
    RUN_MIN = 32
    PAIR = 16  # on the wire: do not change
    PACKED_MIN = 16  # ranges; fewer are not worth packing


cpdef uint64_t overlap(object ranges, uint64_t start, uint64_t stop) except? 0:
    """How many of the offsets [start, stop) are in these inclusive ranges, which do not overlap each other."""
    cdef uint64_t first, last, found = 0
    for first, last in ranges:
        if first < stop and last >= start:
            found += min(last + 1, stop) - max(first, start)
    return found


def range_set(first, last):
    """The offsets first..last, both inclusive, as a BitMap64."""
    found = BitMap64()
    found.add_range(first, last + 1)
    return found


def offset_set(ranges, end):
    """The offsets of inclusive [first, last] pairs below `end`, which may touch and overlap, as a BitMap64.

    `ranges`: a list, or the bytes of pack(). Raises InvalidArgumentError, naming the pair, for what is malformed or
    lies elsewhere.
    """
    cdef uint64_t limit = end, first = 0, last = 0, offset
    cdef array single = array("Q")
    cdef Py_ssize_t i, count = 0, room = 0, pairs
    cdef list runs = []
    cdef const uint8_t* packed = NULL
    if isinstance(ranges, bytes):
        if len(<bytes> ranges) % PAIR:
            raise InvalidArgumentError(f"packed ranges must have {PAIR} bytes each, got {len(ranges)} bytes")
        packed = ranges
        pairs = len(<bytes> ranges) // PAIR
    elif isinstance(ranges, list):
        pairs = len(<list> ranges)
    else:
        raise InvalidArgumentError(f"ranges must be a list or bytes, got {type(ranges).__name__}")
    for i in range(pairs):
        if packed is not NULL:
            first, last = load64(packed + i * PAIR), load64(packed + i * PAIR + 8)
        elif not _read((<list> ranges)[i], &first, &last):
            raise InvalidArgumentError(f"a range must be [first, last], got {ranges[i]!r:.80}")
        if not first <= last < limit:
            raise InvalidArgumentError(f"a range must be within the segment's [0, {end - 1}], got [{first}, {last}]")
        if last - first >= RUN_MIN:
            runs.append((first, last + 1))
            continue
        if count + RUN_MIN > room:
            room = 2 * room + 4 * RUN_MIN
            resize_smart(single, room)
        for offset in range(first, last + 1):
            single.data.as_ulonglongs[count] = offset
            count += 1
    resize_smart(single, count)
    found = BitMap64(single)
    for first, last in runs:
        found.add_range(first, last)
    return found


cdef bint _read(object pair, uint64_t* first, uint64_t* last) except -1:
    cdef object low, high
    if type(pair) is list and len(<list> pair) == 2:
        low, high = (<list> pair)[0], (<list> pair)[1]
    elif type(pair) is tuple and len(<tuple> pair) == 2:
        low, high = (<tuple> pair)[0], (<tuple> pair)[1]
    else:
        return False
    if not (PyLong_CheckExact(low) and PyLong_CheckExact(high)):
        return False
    try:
        first[0] = PyLong_AsUnsignedLongLong(low)
        last[0] = PyLong_AsUnsignedLongLong(high)
    except OverflowError:
        return False
    return True


def bucket_positions(pairs, uint64_t buckets, uint64_t end, name):
    """(bucket, position) of each pair from a client: of so many buckets, and offsets of a segment up to its end.

    Raises InvalidArgumentError.
    """
    cdef list found = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise InvalidArgumentError(f"`buckets` must have pairs [bucket, position], got {pair!r:.80}")
        bucket, position = pair
        if not (PyLong_CheckExact(bucket) and PyLong_CheckExact(position)):
            raise InvalidArgumentError(f"`buckets` must have pairs [bucket, position], got {pair!r:.80}")
        if not 0 <= bucket < buckets:
            raise InvalidArgumentError(f"a bucket of {name} must be 0 to {buckets - 1}, got {bucket}")
        check_position(position, end)
        found.append((bucket, position))
    return found


cpdef int check_position(object position, uint64_t end) except -1:
    """Raise InvalidArgumentError unless it is an offset of a segment, or its end."""
    if not 0 <= position <= end:
        raise InvalidArgumentError(f"a position must be 0 to {end}, the end of the segment, got {position}")
    return 0


def pack(list ranges not None):
    """Ranges for a frame's header: few as the list, many as bytes, two little-endian u64 each."""
    cdef array flat
    cdef uint64_t first = 0, last = 0
    cdef Py_ssize_t i, n = len(ranges)
    if n < PACKED_MIN:
        return ranges
    flat = array("Q")
    resize_smart(flat, 2 * n)
    for i in range(n):
        if not _read(ranges[i], &first, &last):
            raise InvalidArgumentError(f"a range must be [first, last], got {ranges[i]!r:.80}")
        flat.data.as_ulonglongs[2 * i], flat.data.as_ulonglongs[2 * i + 1] = first, last
    if byteorder != "little":
        flat.byteswap()
    return flat.tobytes()


def runs(offsets):
    """The maximal inclusive runs [first, last] of a BitMap64, in order."""
    if not offsets:
        return []
    first, last = offsets.min(), offsets.max()
    if last - first + 1 == len(offsets):
        return [[first, last]]
    return _runs_of(offsets.to_array())


cdef list _runs_of(const uint64_t[::1] offsets):
    cdef Py_ssize_t i, n = offsets.shape[0]
    cdef uint64_t first = offsets[0]
    cdef list found = []
    for i in range(1, n):
        if offsets[i] != offsets[i - 1] + 1:
            found.append([first, offsets[i - 1]])
            first = offsets[i]
    found.append([first, offsets[n - 1]])
    return found


cdef object _OFFSET_MAX = 1 << 63


cdef list ranges_of(object found, int width, str name):
    cdef list ranges = []
    for item in found:
        numbers = tuple(item)
        if len(numbers) != width or not all([type(n) is int and 0 <= n < _OFFSET_MAX for n in numbers]):
            shape = "first, last offset" if width == 2 else "first, last offset, count"
            raise InvalidArgumentError(f"{name} must be a list of ({shape}), got {item!r} in it")
        ranges.append(numbers)
    return ranges
