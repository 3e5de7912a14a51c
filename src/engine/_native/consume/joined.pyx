# cython: language_level=3, auto_pickle=False
"""One column of many slices as one Arrow column: every text is copied once, into one piece."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from engine._native.consume.message cimport Slice
from libc.stdint cimport INT32_MAX, int32_t, uint8_t
from libc.string cimport memcpy

from engine.errors import InvalidArgumentError


cdef tuple join_texts(list slices, bint keys):
    cdef size_t count = 0, nulls = 0, size = 0, at = 0
    cdef const int32_t* offsets
    cdef Slice slice
    for slice in slices:
        offsets = _text_offsets(slice, keys)
        count += slice.stop - slice.start
        if offsets is NULL:
            nulls += slice.stop - slice.start
        else:
            size += offsets[slice.stop] - offsets[slice.start]
    if size > INT32_MAX:
        raise InvalidArgumentError(f"{size:,} bytes are more than one Arrow column of binary holds")
    ends = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
    texts = PyBytes_FromStringAndSize(NULL, size)
    valid = bytes((count + 7) // 8) if nulls else None
    cdef int32_t* end = <int32_t*> PyBytes_AS_STRING(ends)
    end[0] = 0
    for slice in slices:
        _append_texts(slice, keys, end, <uint8_t*> PyBytes_AS_STRING(texts))
        if valid is not None and _text_offsets(slice, keys) is not NULL:
            _set_bits(<uint8_t*> PyBytes_AS_STRING(valid), at, slice.stop - slice.start)
        at += slice.stop - slice.start
        end += slice.stop - slice.start
    return count, nulls, [valid, ends, texts]


cdef const int32_t* _text_offsets(Slice slice, bint keys) noexcept:
    return slice.entry.columns.key_offsets if keys else slice.entry.columns.value_offsets


# `end`: where the one before them ended; those of the slice go behind it.
cdef void _append_texts(Slice slice, bint keys, int32_t* end, uint8_t* texts) noexcept:
    cdef const int32_t* offsets = _text_offsets(slice, keys)
    cdef const uint8_t* source = slice.entry.columns.keys if keys else slice.entry.columns.values
    cdef Py_ssize_t i, n = slice.stop - slice.start
    cdef int32_t shift = end[0]
    if offsets is NULL:
        for i in range(n):
            end[i + 1] = shift
        return
    offsets += slice.start
    memcpy(texts + shift, source + offsets[0], offsets[n] - offsets[0])
    shift -= offsets[0]
    for i in range(n):
        end[i + 1] = offsets[i + 1] + shift


cdef void _set_bits(uint8_t* bits, size_t start, size_t count) noexcept:
    cdef size_t i
    for i in range(start, start + count):
        bits[i >> 3] |= 1 << (i & 7)
