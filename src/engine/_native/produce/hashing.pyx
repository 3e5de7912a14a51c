# cython: language_level=3
"""The hash of a key, which chooses the segment and the bucket inside it.

The upper half of a key's unmasked 32-bit hash is its segment hash, the lower half its bucket hash, so that the keys
of one segment spread over all of its buckets. XXH64 with seed 42 (upper 32 bits) is the default; Murmur3 x86
32-bit with seed 0 is what other systems' clients compute, some of which take its lower half for the segment.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from engine._native.produce.columns cimport Column, View, view_get
from engine.errors import InvalidArgumentError

cdef extern from "hash.h" nogil:
    uint64_t xxh64_hash(const uint8_t* p, size_t n, uint64_t seed) noexcept
    uint32_t murmur3_hash(const uint8_t* p, size_t n, uint32_t seed) noexcept
    uint32_t key32_hash(const uint8_t* p, size_t n, int algorithm) noexcept

XXH64 = KEY_XXH64
MURMUR3 = KEY_MURMUR3
MURMUR3_LOW = KEY_MURMUR3_LOW
KEY_HASHES = {"xxh64": XXH64, "murmur3": MURMUR3, "murmur3-low": MURMUR3_LOW}  # by name in metadata


cdef uint32_t key32_of(const uint8_t* key, size_t size, int algorithm) noexcept nogil:
    return key32_hash(key, size, algorithm)


cdef enum:
    HASHED_WITHOUT_GIL = 65536    # bytes, from which on other threads may run meanwhile


def xxh64(data, uint64_t seed=42):
    """The 64-bit XXH64 of a buffer of bytes."""
    cdef Py_buffer view
    cdef uint64_t found
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < HASHED_WITHOUT_GIL:
            return xxh64_hash(<const uint8_t*> view.buf, view.len, seed)
        with nogil:
            found = xxh64_hash(<const uint8_t*> view.buf, view.len, seed)
        return found
    finally:
        PyBuffer_Release(&view)


def murmur3_32(data, uint32_t seed=0):
    """The 32-bit Murmur3 (x86) of a buffer of bytes."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return murmur3_hash(<const uint8_t*> view.buf, view.len, seed)
    finally:
        PyBuffer_Release(&view)


def key32(key, int algorithm=KEY_XXH64):
    """The 32-bit hash of one key: segment hash in the upper half, bucket hash in the lower.

    `key` is bytes, any buffer, or str (taken as UTF-8). InvalidArgumentError for anything else.
    """
    if isinstance(key, bytes) and 0 <= algorithm <= KEY_MURMUR3_LOW:
        return key32_hash(<const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), algorithm)
    return int(hash_keys((key,), algorithm)[0])


def hash_keys(keys, int algorithm=KEY_XXH64):
    """The 32-bit hashes of a column of keys, as uint32[n].

    `keys` is a list or tuple of bytes, str and buffers, a NumPy array of S, U, V, object or rows of uint8, or an
    Arrow array, plain or chunked, of binary or string. A null or anything else raises InvalidArgumentError.
    """
    import numpy as np  # slow to load, and seldom needed

    if not 0 <= algorithm <= KEY_MURMUR3_LOW:
        raise InvalidArgumentError(f"the key hash must be one of {KEY_HASHES}, got {algorithm}")
    cdef Column column = keys if isinstance(keys, Column) else Column(keys, name="keys", text=True)
    cdef uint32_t[::1] out = np.empty(max(column.count, 1), dtype=np.uint32)
    cdef Py_ssize_t at = 0, stop, bad
    while at < column.count:
        stop = column.window(at)
        with nogil:
            bad = hash_window(&column.view, at, stop, algorithm, &out[0])
        if bad >= 0:
            raise InvalidArgumentError(f"keys[{bad}] is null; only messages may be keyless, not hashes")
        at = stop
    return np.asarray(out)[:column.count]


# Hash messages at..stop of a window into out[at..stop]; index of a null, or -1.
cdef Py_ssize_t hash_window(const View* view, Py_ssize_t at, Py_ssize_t stop, int algorithm,
                            uint32_t* out) noexcept nogil:
    cdef const uint8_t* start = NULL
    cdef Py_ssize_t i, size
    for i in range(at, stop):
        size = view_get(view, i, &start)
        if size < 0:
            return i
        out[i] = key32_hash(start, size, algorithm)
    return -1
