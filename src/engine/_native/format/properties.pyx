# cython: language_level=3
"""A message's properties: one msgpack map of text to text, read without trusting it."""
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from engine._native.format.invariants cimport engine_check

cdef uint64_t TOP_BITS = <uint64_t> 0x80808080 << 32 | 0x80808080  # of eight bytes


cdef inline uint32_t _big_endian(const uint8_t* p, int width) noexcept nogil:
    cdef uint32_t number = 0
    cdef int i
    for i in range(width):
        number = number << 8 | p[i]
    return number


cdef int read_map(Cursor* at) noexcept nogil:
    cdef size_t room = at.end - at.p
    cdef uint32_t pairs
    cdef int width = 0
    if room == 0:
        return -1
    if at.p[0] & 0xF0 == 0x80:  # fixmap
        pairs = at.p[0] & 0x0F
    elif at.p[0] == 0xDE or at.p[0] == 0xDF:  # map 16, map 32
        width = 2 if at.p[0] == 0xDE else 4
        if room < <size_t> (1 + width):
            return -1
        pairs = _big_endian(at.p + 1, width)
    else:
        return -1
    if pairs > room:  # a pair is at least two bytes
        return -1
    at.p += 1 + width
    engine_check(at.p <= at.end, b"nothing is read behind the end of the properties")
    return pairs


cdef bint read_text(Cursor* at, const uint8_t** start, uint32_t* size) noexcept nogil:
    cdef size_t room = at.end - at.p
    cdef int width = 0
    if room == 0:
        return False
    if at.p[0] & 0xE0 == 0xA0:  # fixstr
        size[0] = at.p[0] & 0x1F
    elif 0xD9 <= at.p[0] <= 0xDB:  # str 8, str 16, str 32
        width = 1 << (at.p[0] - 0xD9)
        if room < <size_t> (1 + width):
            return False
        size[0] = _big_endian(at.p + 1, width)
    else:
        return False
    if size[0] > room - 1 - width:
        return False
    start[0] = at.p + 1 + width
    at.p = start[0] + size[0]
    engine_check(at.p <= at.end, b"nothing is read behind the end of the properties")
    return True


cdef bint measure(
    const uint8_t* p, size_t size, uint32_t* pairs, size_t* key_bytes, size_t* value_bytes
) noexcept nogil:
    cdef Cursor at
    cdef const uint8_t* text
    cdef uint32_t text_size = 0
    cdef int count, i
    if size == 0:
        return True
    at.p = p
    at.end = p + size
    count = read_map(&at)
    if count < 0:
        return False
    for i in range(count):
        if not read_text(&at, &text, &text_size) or not is_utf8(text, text_size):
            return False
        key_bytes[0] += text_size
        if not read_text(&at, &text, &text_size) or not is_utf8(text, text_size):
            return False
        value_bytes[0] += text_size
    pairs[0] += count
    return at.p == at.end


# As the Unicode standard has it: no code point in more bytes than it needs, no surrogates, none above U+10FFFF.
cdef bint is_utf8(const uint8_t* p, size_t size) noexcept nogil:
    cdef const uint8_t* end = p + size
    cdef uint64_t eight
    cdef uint32_t code
    cdef uint8_t beyond_ascii = 0
    cdef size_t at
    cdef int more, i
    for at in range(size):  # without a branch, so that the compiler does sixteen at a time
        beyond_ascii |= p[at]
    if beyond_ascii < 0x80:
        return True
    while p < end:
        if end - p >= 8:
            memcpy(&eight, p, 8)
            if eight & TOP_BITS == 0:
                p += 8
                continue
        if p[0] < 0x80:
            p += 1
            continue
        if p[0] < 0xC2 or p[0] > 0xF4:
            return False
        more = 1 if p[0] < 0xE0 else 2 if p[0] < 0xF0 else 3
        if end - p <= more:
            return False
        code = p[0] & (0x3F >> more)
        for i in range(1, more + 1):
            if p[i] & 0xC0 != 0x80:
                return False
            code = code << 6 | (p[i] & 0x3F)
        if (more == 2 and (code < 0x800 or 0xD800 <= code <= 0xDFFF)) or (
                more == 3 and not 0x10000 <= code <= 0x10FFFF):
            return False
        p += more + 1
    return True


cdef dict unpack(const uint8_t* p, size_t size):
    cdef Cursor at
    cdef const uint8_t* text
    cdef uint32_t text_size = 0
    cdef int count, i
    cdef dict found = {}
    if size == 0:
        return found
    at.p = p
    at.end = p + size
    count = read_map(&at)
    if count < 0:
        return None
    try:
        for i in range(count):
            if not read_text(&at, &text, &text_size):
                return None
            key = PyUnicode_DecodeUTF8(<const char*> text, text_size, NULL)
            if not read_text(&at, &text, &text_size):
                return None
            found[key] = PyUnicode_DecodeUTF8(<const char*> text, text_size, NULL)
    except UnicodeDecodeError:
        return None
    return found if at.p == at.end else None
