# cython: language_level=3
"""Sets of offsets, and the ranges that stand for them in a frame's header."""
from cpython.array cimport array, resize_smart
from cpython.long cimport PyLong_AsUnsignedLongLong, PyLong_CheckExact
from libc.stdint cimport uint64_t

from pyroaring import BitMap64

from engine.errors import InvalidArgumentError

# Shorter runs are taken apart: each long one is a call of its own, all single offsets are one call together.
cdef enum:
    RUN_MIN = 32


def range_set(first, last):
    """The offsets first..last, both inclusive, as a BitMap64."""
    found = BitMap64()
    found.add_range(first, last + 1)
    return found


def offset_set(list ranges not None, end):
    """The offsets of inclusive [first, last] pairs below `end`, which may touch and overlap, as a BitMap64.

    Raises InvalidArgumentError, naming the pair, for what is malformed or lies elsewhere.
    """
    cdef uint64_t limit = end, first = 0, last = 0, offset
    cdef array single = array("Q")
    cdef Py_ssize_t count = 0, room = 0
    cdef list runs = []
    for pair in ranges:
        if not _read(pair, &first, &last):
            raise InvalidArgumentError(f"range {pair!r:.80} is malformed; [first, last] is right")
        if not first <= last < limit:
            raise InvalidArgumentError(f"range [{first}, {last}] is not within the segment's [0, {end - 1}]")
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
