# cython: language_level=3
"""The transactional entries of a block, by their headers: readers need them to withhold open and aborted messages."""
from engine._native.format.entry cimport Fault, load32, load64
from engine._native.format cimport entry as e
from libc.stdint cimport uint8_t, uint64_t

from typing import NamedTuple


class Transacted(NamedTuple):
    """One transactional entry: its offsets `first`..`last`, the term of its stamp, its transaction and its producer."""

    first: int
    last: int
    term: int
    number: int
    attempt: int
    producer: int
    first_sequence: int
    last_sequence: int


cdef int _check(const uint8_t* p, size_t room) except -1:
    cdef Fault fault = e.check_header(p, room)
    if fault != e.FAULT_NONE:
        e.raise_fault(fault, e.unknown(), e.unknown())
    return 0


def transacted(const uint8_t[::1] data not None):
    """The transactional entries of a block, as Transacted. Raises CorruptionError."""
    cdef size_t n = data.shape[0], at = 0
    cdef const uint8_t* p
    cdef uint64_t first
    cdef list found = []
    while at < n:
        p = &data[at]
        _check(p, n - at)
        if p[e.AT_FLAGS] & e.TRANSACTIONAL:
            first = load64(p + e.AT_FIRST_OFFSET)
            found.append(Transacted(
                first, first + load32(p + e.AT_COUNT) - 1, load32(p + e.AT_TERM), load64(p + e.AT_TXN_HIGH),
                load64(p + e.AT_TXN_LOW), load64(p + e.AT_PRODUCER_ID), load64(p + e.AT_FIRST_SEQUENCE),
                load64(p + e.AT_LAST_SEQUENCE),
            ))
        at += load32(p + e.AT_SIZE)
    return found


def size_below(const uint8_t[::1] data not None, uint64_t limit):
    """How many bytes at the front of a block are entries that begin below an offset. Raises CorruptionError."""
    cdef size_t n = data.shape[0], at = 0
    cdef const uint8_t* p
    while at < n:
        p = &data[at]
        _check(p, n - at)
        if load64(p + e.AT_FIRST_OFFSET) >= limit:
            break
        at += load32(p + e.AT_SIZE)
    return at
