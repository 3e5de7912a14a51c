# cython: language_level=3, auto_pickle=False
"""Checks the arguments of a producer's callers: the parts of one message, or columns of many."""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from collections.abc import Mapping
from datetime import timedelta

from engine._native.produce.builder cimport Message
from engine._native.produce.columns cimport Column, instant_ms, view_get
from engine._native.produce.columns import instants_ms

from engine.errors import InvalidArgumentError, MessageTooLargeError
from engine.limits import KEY_SIZE_MAX, MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef uint64_t SEQUENCE_MAX = (<uint64_t> 1 << 63) - 1
cdef size_t PROPERTIES_MAX = PROPERTIES_SIZE_MAX


@cython.final
cdef class MessageColumns:
    """Values, keys, event times and properties of `count` messages, checked; see Batcher.add_columns()."""

    def __cinit__(self, values, keys=None, event_times=None, properties=None):
        self.values = Column(values, name="values")
        self.count = self.values.count
        self.values.check(MESSAGE_SIZE_MAX)
        if keys is not None:
            self.keys = Column(keys, name="keys", text=True, nullable=True)
            self.keys.check(KEY_SIZE_MAX)
            _check_length("keys", self.keys.count, self.count)
        if event_times is not None:
            self.times = instants_ms(event_times)
            self.event_times = <const int64_t*> <uintptr_t> self.times.ctypes.data
            _check_length("event times", len(self.times), self.count)
        if properties is not None:
            self.packed = _packed(properties)
            self.properties = <const uint8_t*> <uintptr_t> self.packed[0].ctypes.data
            self.property_ends = <const int64_t*> <uintptr_t> self.packed[1].ctypes.data
            _check_length("properties", len(self.packed[1]) - 1, self.count)

    def __len__(self):
        return self.count


def _check_length(what, have, need):
    if have != need:
        raise InvalidArgumentError(f"{need} values need as many {what}, got {have}")


# Maps of text to text, a list of mappings (None: empty) or an Arrow array, as (their msgpack, where each ends).
def _packed(source):
    import numpy as np  # slow to load, and seldom needed

    if isinstance(source, (list, tuple)):
        maps = [pack_properties(_checked_properties(one)) if one else b"" for one in source]
        ends = np.zeros(len(maps) + 1, np.int64)
        np.cumsum([len(one) for one in maps], out=ends[1:])
        return np.frombuffer(b"".join(maps), np.uint8), ends
    if not str(getattr(source, "type", "")).startswith("map<"):
        raise InvalidArgumentError(
            f"properties must be a list of mappings, or an Arrow array of maps, got {type(source).__name__}")
    if hasattr(source, "combine_chunks"):
        source = source.combine_chunks()
    if hasattr(source, "chunks"):  # one without any chunk stays chunked
        return _packed([None] * len(source))
    for child in (source.type.key_type, source.type.item_type):
        if str(child) not in ("string", "large_string", "string_view"):
            raise InvalidArgumentError(f"properties must map string to string, got {source.type}")
    return _pack_arrow(source)


# _packed() of one Arrow array. Sizes first, then bytes, both without the GIL.
cdef tuple _pack_arrow(object source):
    import numpy as np

    cdef Py_ssize_t i, n = len(source), fault = -1
    cdef Column names = Column(source.keys, name="names of properties")
    cdef Column texts = Column(source.items, name="properties", nullable=True)
    bounds = np.ascontiguousarray(source.offsets.to_numpy(), np.int32)
    valid = np.asarray(source.is_valid().to_numpy(zero_copy_only=False), np.uint8)
    ends = np.zeros(n + 1, np.int64)
    cdef const int32_t* at = <const int32_t*> <uintptr_t> bounds.ctypes.data
    cdef const uint8_t* there = <const uint8_t*> <uintptr_t> valid.ctypes.data
    cdef int64_t* end = <int64_t*> <uintptr_t> ends.ctypes.data
    cdef uint8_t* out
    cdef Py_ssize_t size
    if names.count == 0:
        return np.zeros(0, np.uint8), ends
    names.window(0)
    texts.window(0)
    with nogil:
        for i in range(n):
            size = _map_size(names, texts, at[i], at[i + 1]) if there[i] else 0
            if size < 0 or <size_t> size > PROPERTIES_MAX:
                fault = i
                break
            end[i + 1] = end[i] + size
    if fault >= 0 and size < 0:
        raise InvalidArgumentError(f"properties[{fault}] has a null")
    if fault >= 0:
        check_size("properties", size, PROPERTIES_SIZE_MAX)
    packed = np.empty(ends[n], np.uint8)
    out = <uint8_t*> <uintptr_t> packed.ctypes.data
    with nogil:
        for i in range(n):
            if end[i + 1] > end[i]:
                _put_map(out + end[i], names, texts, at[i], at[i + 1])
    return packed, ends


# Bytes of the map of these pairs, none for none; -1 if one is null.
cdef Py_ssize_t _map_size(Column names, Column texts, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef Py_ssize_t i, name_size, text_size, size = 1 if stop - start < 16 else 3
    cdef const uint8_t* text
    for i in range(start, stop):
        name_size, text_size = view_get(&names.view, i, &text), view_get(&texts.view, i, &text)
        if name_size < 0 or text_size < 0:
            return -1
        size += _cost(name_size) + _cost(text_size)
    return size if stop > start else 0


cdef void _put_map(uint8_t* at, Column names, Column texts, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef const uint8_t* text = NULL
    cdef Py_ssize_t i, size
    at = _put_count(at, stop - start)
    for i in range(start, stop):
        size = view_get(&names.view, i, &text)
        at = _put_bytes(at, text, size)
        size = view_get(&texts.view, i, &text)
        at = _put_bytes(at, text, size)


cdef const char* utf8(object text, Py_ssize_t* size) except NULL:
    try:
        return PyUnicode_AsUTF8AndSize(text, size)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"the key is not valid Unicode: {error}") from None


cdef int open_buffer(str name, object given, Py_buffer* view, bint text) except -1:
    wanted = "bytes, a buffer" + (" or str" if text else "")
    if not PyObject_CheckBuffer(given):
        hint = "; encode it, for example value.encode()" if isinstance(given, str) else ""
        raise InvalidArgumentError(f"the {name} must be {wanted}, got {type(given).__name__}{hint}")
    try:
        PyObject_GetBuffer(given, view, PyBUF_SIMPLE)
    except BufferError as error:
        raise InvalidArgumentError(f"the {name} must be {wanted} that is contiguous: {error}") from None
    return 0


cdef int check_size(str name, size_t size, size_t size_max) except -1:
    if size > size_max:
        raise MessageTooLargeError(f"the {name} is {size:,} bytes, over the limit of {size_max:,}; nothing was sent")
    return 0


cdef uint64_t checked_sequence(object given, uint64_t least) except? 0xFFFFFFFFFFFFFFFF:
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidArgumentError(f"sequence_id must be an int, got {type(given).__name__}")
    if not least <= given <= SEQUENCE_MAX:
        raise InvalidArgumentError(
            f"sequence_id must be greater than the last one, {<int64_t> least - 1}, and below 2**63, got {given}")
    return given


cdef dict _checked_properties(object properties):
    cdef dict found
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise InvalidArgumentError(f"properties must be a mapping of str to str, got {type(properties).__name__}")
    found = properties if type(properties) is dict else dict(properties)
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(f"properties must be a mapping of str to str, got {name!r} to {value!r}")
    return found


cdef size_t _text_size(object text) except 0:
    cdef Py_ssize_t n
    try:
        PyUnicode_AsUTF8AndSize(text, &n)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"a property is not valid Unicode: {error}") from None
    return _cost(n)


# Bytes of a text as msgpack, of at most PROPERTIES_SIZE_MAX.
cdef inline size_t _cost(size_t n) noexcept nogil:
    return n + (1 if n < 32 else 2 if n < 256 else 3)


cdef uint8_t* _put_count(uint8_t* at, size_t pairs) noexcept nogil:
    if pairs < 16:
        at[0] = <uint8_t> (0x80 | pairs)
        return at + 1
    at[0], at[1], at[2] = 0xDE, <uint8_t> (pairs >> 8), <uint8_t> (pairs & 255)
    return at + 3


# Write UTF-8 of at most PROPERTIES_SIZE_MAX bytes as msgpack; where the next thing goes.
cdef uint8_t* _put_bytes(uint8_t* at, const uint8_t* text, size_t n) noexcept nogil:
    if n < 32:
        at[0] = <uint8_t> (0xA0 | n)
        at += 1
    elif n < 256:
        at[0], at[1] = 0xD9, <uint8_t> n
        at += 2
    else:
        at[0], at[1], at[2] = 0xDA, <uint8_t> (n >> 8), <uint8_t> (n & 255)
        at += 3
    if n:
        memcpy(at, text, n)
    return at + n


cdef uint8_t* _put_text(uint8_t* at, object text) except NULL:
    cdef Py_ssize_t n
    cdef const char* utf8 = PyUnicode_AsUTF8AndSize(text, &n)
    return _put_bytes(at, <const uint8_t*> utf8, n)


# The msgpack map of a message's properties.
cdef bytes pack_properties(dict properties):
    cdef size_t size = 1 if len(properties) < 16 else 3
    cdef bytes packed
    cdef uint8_t* at
    for name, value in properties.items():
        size += _text_size(name) + _text_size(value)
    check_size("properties", size, PROPERTIES_SIZE_MAX)
    packed = PyBytes_FromStringAndSize(NULL, size)
    at = _put_count(<uint8_t*> PyBytes_AS_STRING(packed), len(properties))
    for name, value in properties.items():
        at = _put_text(_put_text(at, name), value)
    return packed


def _deliver_after(deliver_at, after, now_ms):
    if deliver_at is not None:
        raise InvalidArgumentError("give deliver_at or deliver_after, not both")
    if now_ms is None:
        raise InvalidArgumentError("deliver_after needs a clock; this batcher was given none: use deliver_at")
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e12:
        raise InvalidArgumentError(f"deliver_after must be seconds, 0 or more, or a timedelta, got {after!r}")
    return now_ms() + round(seconds * 1000)


cdef bytes fill_extras(Message* m, object pack, object now_ms, object properties, object event_time, object deliver_at,
                       object deliver_after):
    cdef bytes packed = None
    if event_time is not None:
        m.event_time = instant_ms(event_time, "event_time")
    if deliver_at is not None:
        m.deliver_at = instant_ms(deliver_at, "deliver_at")
    if deliver_after is not None:
        m.deliver_at = _deliver_after(deliver_at, deliver_after, now_ms)
    if properties is not None and properties:
        checked = _checked_properties(properties)
        packed = pack_properties(checked) if pack is None else pack(checked)
        m.properties, m.properties_size = <const uint8_t*> PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed)
        check_size("properties", m.properties_size, PROPERTIES_SIZE_MAX)
    return packed
