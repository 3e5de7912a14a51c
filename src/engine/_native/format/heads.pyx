# cython: language_level=3, auto_pickle=False
"""The headers of entries in a block, for code that routes, counts and times entries and never opens them."""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from engine._native.format.cipher cimport CIPHER_FOREIGN_PLAIN, CIPHER_FOREIGN_PLAIN_PART, cipher_of, is_foreign
from engine._native.format.envelope cimport AT_GROUP, AT_GROUP_PLACE, GROUP_BEGINS
from engine._native.format.layout cimport (
    AT_COMPRESSION, AT_COUNT, AT_FIRST_OFFSET, AT_FIRST_SEQUENCE, AT_FLAGS, AT_LAST_SEQUENCE, AT_PRODUCER_ID,
    AT_PUBLISH_TIME, AT_SIZE, DELIVER_AT, ENCRYPTED, HEADER_SIZE, load32, load64,
)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from engine.errors import CorruptionError


@cython.final
cdef class Head:
    """One entry of a block: bytes `start` up to `stop`, and what its header says."""

    def __repr__(self):
        return f"Head(bytes {self.start}..{self.stop}, offsets {self.first}..{self.last})"


cdef Head _head(const uint8_t* p, Py_ssize_t at):
    cdef Head head = Head.__new__(Head)
    head.start, head.stop = at, at + <Py_ssize_t> load32(p + AT_SIZE)
    head.first = load64(p + AT_FIRST_OFFSET)
    head.last = head.first + load32(p + AT_COUNT) - 1
    head.producer = load64(p + AT_PRODUCER_ID)
    head.first_sequence, head.last_sequence = load64(p + AT_FIRST_SEQUENCE), load64(p + AT_LAST_SEQUENCE)
    head.publish_time_ms = <int64_t> load64(p + AT_PUBLISH_TIME)
    head.delayed = p[AT_FLAGS] & DELIVER_AT != 0
    return head


# The entry at byte `at` of a block of `size` bytes, `p` in memory, is whole and not empty.
cdef int _check_room(const uint8_t* p, Py_ssize_t size, Py_ssize_t at) except -1:
    cdef uint32_t said = 0, count = 0
    if size - at >= <Py_ssize_t> HEADER_SIZE:
        said, count = load32(p + AT_SIZE), load32(p + AT_COUNT)
    if said < HEADER_SIZE or <Py_ssize_t> said > size - at or count == 0:
        raise CorruptionError(f"an entry of {said} bytes and {count} messages at byte {at} of {size}")
    return 0


def head_of(block):
    """The first entry of a block; None when the block is shorter than a header."""
    cdef Py_buffer view
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    try:
        return None if view.len < <Py_ssize_t> HEADER_SIZE else _head(<const uint8_t*> view.buf, 0)
    finally:
        PyBuffer_Release(&view)


def entry_heads(block):
    """All entries of a block, in order. Raises CorruptionError where sizes and counts do not add up.

    Checksums are not looked at: a reader has done that.
    """
    cdef Py_buffer view
    cdef Py_ssize_t at = 0
    cdef const uint8_t* p
    cdef list heads = []
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    try:
        while at < view.len:
            p = <const uint8_t*> view.buf + at
            _check_room(p, view.len, at)
            heads.append(_head(p, at))
            at += load32(p + AT_SIZE)
        return heads
    finally:
        PyBuffer_Release(&view)


def span_of(block):
    """(producer, lowest, highest sequence id) of the entries of a block, at least one, all of one producer.

    Raises CorruptionError as entry_heads() does, and for a block without entries.
    """
    cdef Py_buffer view
    cdef Py_ssize_t at = 0
    cdef const uint8_t* p
    cdef uint64_t producer = 0, low = <uint64_t> -1, high = 0
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    try:
        while at < view.len or at == 0:
            p = <const uint8_t*> view.buf + at
            _check_room(p, view.len, at)
            if at == 0:
                producer = load64(p + AT_PRODUCER_ID)
            low, high = min(low, load64(p + AT_FIRST_SEQUENCE)), max(high, load64(p + AT_LAST_SEQUENCE))
            at += load32(p + AT_SIZE)
        return producer, low, high
    finally:
        PyBuffer_Release(&view)


def all_encrypted(block):
    """Whether each entry of a block is encrypted, as its header and envelope say. Of bytes that are no entry: False."""
    cdef Py_buffer view
    cdef Py_ssize_t at = 0
    cdef const uint8_t* p
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    try:
        while at + <Py_ssize_t> HEADER_SIZE <= view.len:
            p = <const uint8_t*> view.buf + at
            if not p[AT_COMPRESSION] & ENCRYPTED or load32(p + AT_SIZE) < HEADER_SIZE:
                return False
            at += load32(p + AT_SIZE)
            if at > view.len or cipher_of(p) in (0, CIPHER_FOREIGN_PLAIN, CIPHER_FOREIGN_PLAIN_PART):
                return False
        return at == view.len
    finally:
        PyBuffer_Release(&view)


def groups_in(const uint8_t[::1] block not None):
    """{where an entry begins: (its group, whether it is the first one)} of a block of whole entries, mostly empty.

    The entries of one group go to one queue consumer. Headers must have been checked before.
    """
    cdef size_t at = 0, n = block.shape[0]
    cdef const uint8_t* body
    cdef dict found = {}
    while at + HEADER_SIZE <= n:
        if block[at + AT_COMPRESSION] & ENCRYPTED and load32(&block[at + AT_SIZE]) <= n - at:
            body = &block[at] + HEADER_SIZE
            if is_foreign(cipher_of(&block[at])) and body[AT_GROUP_PLACE]:
                found[at] = load64(body + AT_GROUP), body[AT_GROUP_PLACE] == GROUP_BEGINS
        at += max(load32(&block[at + AT_SIZE]), <uint32_t> HEADER_SIZE)
    return found


def apparent_heads(block):
    """The entries of a block as far as it looks like entries; the last may claim bytes that are not there."""
    cdef Py_buffer view
    cdef Py_ssize_t at = 0
    cdef const uint8_t* p
    cdef list heads = []
    PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
    try:
        while at + <Py_ssize_t> HEADER_SIZE <= view.len:
            p = <const uint8_t*> view.buf + at
            heads.append(_head(p, at))
            if load32(p + AT_SIZE) < HEADER_SIZE:
                break
            at += load32(p + AT_SIZE)
        return heads
    finally:
        PyBuffer_Release(&view)
