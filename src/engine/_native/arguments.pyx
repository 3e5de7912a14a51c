# cython: language_level=3, auto_pickle=False
"""What the caller of a producer hands over, checked: the parts of one message, or columns of many."""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from collections.abc import Mapping
from datetime import timedelta

from engine._native.builder cimport Message
from engine._native.columns cimport Column, instant_ms
from engine._native.columns import instants_ms

from engine.errors import InvalidArgumentError, MessageTooLargeError
from engine.limits import KEY_SIZE_MAX, MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef uint64_t SEQUENCE_MAX = (<uint64_t> 1 << 63) - 1


@cython.final
cdef class MessageColumns:
    """Values, keys and event times of `count` messages, checked; see Batcher.add_columns()."""

    def __cinit__(self, values, keys=None, event_times=None):
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

    def __len__(self):
        return self.count


def _check_length(what, have, need):
    if have != need:
        raise InvalidArgumentError(f"{need} values need as many {what}, not {have}")


cdef const char* utf8(object text, Py_ssize_t* size) except NULL:
    try:
        return PyUnicode_AsUTF8AndSize(text, size)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"the key is not valid Unicode: {error}") from None


# Open a buffer; InvalidArgumentError says what the argument `name` should have been.
cdef int open_buffer(str name, object given, Py_buffer* view, bint text) except -1:
    wanted = "bytes, a buffer" + (" or str" if text else "")
    if not PyObject_CheckBuffer(given):
        hint = "; encode it, for example value.encode()" if isinstance(given, str) else ""
        raise InvalidArgumentError(f"the {name} must be {wanted}, not {type(given).__name__}{hint}")
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
        raise InvalidArgumentError(f"sequence_id must be an int, not {type(given).__name__}")
    if not least <= given <= SEQUENCE_MAX:
        raise InvalidArgumentError(
            f"sequence_id must be greater than the last one, {<int64_t> least - 1}, and below 2**63; not {given}")
    return given


cdef dict _checked_properties(object properties):
    cdef dict found
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise InvalidArgumentError(f"properties must be a mapping of str to str, not {type(properties).__name__}")
    found = properties if type(properties) is dict else dict(properties)
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(f"properties must be a mapping of str to str, not {name!r} to {value!r}")
    return found


cdef size_t _text_size(object text) except 0:
    cdef Py_ssize_t n
    try:
        PyUnicode_AsUTF8AndSize(text, &n)
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"a property is not valid Unicode: {error}") from None
    return n + (1 if n < 32 else 2 if n < 256 else 3)


# Write a str of at most PROPERTIES_SIZE_MAX bytes as msgpack; where the next thing goes.
cdef uint8_t* _put_text(uint8_t* at, object text) except NULL:
    cdef Py_ssize_t n
    cdef const char* utf8 = PyUnicode_AsUTF8AndSize(text, &n)
    if n < 32:
        at[0] = <uint8_t> (0xA0 | n)
        at += 1
    elif n < 256:
        at[0], at[1] = 0xD9, <uint8_t> n
        at += 2
    else:
        at[0], at[1], at[2] = 0xDA, <uint8_t> (n >> 8), <uint8_t> (n & 255)
        at += 3
    memcpy(at, utf8, n)
    return at + n


# The msgpack map of a message's properties.
cdef bytes pack_properties(dict properties):
    cdef size_t size = 1 if len(properties) < 16 else 3
    cdef bytes packed
    cdef uint8_t* at
    for name, value in properties.items():
        size += _text_size(name) + _text_size(value)
    check_size("properties", size, PROPERTIES_SIZE_MAX)
    packed = PyBytes_FromStringAndSize(NULL, size)
    at = <uint8_t*> PyBytes_AS_STRING(packed)
    if len(properties) < 16:
        at[0] = <uint8_t> (0x80 | len(properties))
        at += 1
    else:
        at[0], at[1], at[2] = 0xDE, <uint8_t> (len(properties) >> 8), <uint8_t> (len(properties) & 255)
        at += 3
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
        raise InvalidArgumentError(f"deliver_after must be seconds, 0 or more, or a timedelta; not {after!r}")
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
