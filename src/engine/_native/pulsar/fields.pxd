# cython: language_level=3
"""Fields of Protocol Buffers, read without trusting them, and written.

A message is a sequence of fields: a tag (number << 3 | kind) as a varint, then the value. Kinds: 0 a varint, 1 eight
bytes, 2 a varint of a size and as many bytes, 5 four bytes.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    VARINT_SIZE_MAX = 10

# What is left to read. Invariant: p <= end. Checked by next_field(), which alone moves p, with ENGINE_DEBUG=1.
cdef struct Reading:
    const uint8_t* p
    const uint8_t* end

# One field. `number`: of a varint its value; of bytes, `data` and `size`.
cdef struct Field:
    uint32_t tag                  # number of the field
    uint32_t kind
    uint64_t number
    const uint8_t* data
    size_t size

cdef inline bint read_varint(Reading* at, uint64_t* value) noexcept nogil:
    cdef int i
    cdef uint8_t byte
    value[0] = 0
    for i in range(VARINT_SIZE_MAX):
        if at.p >= at.end:
            return False
        byte = at.p[0]
        at.p += 1
        value[0] |= <uint64_t> (byte & 0x7F) << (7 * i)  # of the tenth byte, what is above 64 bits is dropped
        if byte < 0x80:
            return True
    return False

# Read the next field. 1: there is one; 0: the end; -1: these bytes are no message.
cdef inline int next_field(Reading* at, Field* field) noexcept nogil:
    cdef uint64_t tag
    if at.p >= at.end:
        return 0
    if not read_varint(at, &tag) or tag >> 32:
        return -1
    field.tag, field.kind = <uint32_t> (tag >> 3), <uint32_t> (tag & 7)
    field.number, field.data, field.size = 0, NULL, 0
    if field.tag == 0:
        return -1
    if field.kind == 0:
        return 1 if read_varint(at, &field.number) else -1
    if field.kind == 2:
        if not read_varint(at, &field.number) or field.number > <uint64_t> (at.end - at.p):
            return -1
        field.size = <size_t> field.number
    elif field.kind == 1 or field.kind == 5:
        field.size = 8 if field.kind == 1 else 4
        if field.size > <size_t> (at.end - at.p):
            return -1
    else:
        return -1
    field.data = at.p
    at.p += field.size
    return 1

cdef inline size_t varint_size(uint64_t value) noexcept nogil:
    cdef size_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size

cdef inline uint8_t* put_varint(uint8_t* at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <uint8_t> (value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t> value
    return at + 1

# A field of bytes, of a number below 2^28.
cdef inline size_t bytes_size(uint32_t tag, size_t size) noexcept nogil:
    return varint_size(<uint64_t> tag << 3) + varint_size(size) + size

cdef inline uint8_t* put_bytes(uint8_t* at, uint32_t tag, const void* data, size_t size) noexcept nogil:
    at = put_varint(put_varint(at, <uint64_t> tag << 3 | 2), size)
    if size:
        memcpy(at, data, size)
    return at + size

cdef inline size_t number_size(uint32_t tag, uint64_t value) noexcept nogil:
    return varint_size(<uint64_t> tag << 3) + varint_size(value)

cdef inline uint8_t* put_number(uint8_t* at, uint32_t tag, uint64_t value) noexcept nogil:
    return put_varint(put_varint(at, <uint64_t> tag << 3), value)

cdef inline uint32_t load32_big(const uint8_t* p) noexcept nogil:
    return <uint32_t> p[0] << 24 | <uint32_t> p[1] << 16 | <uint32_t> p[2] << 8 | p[3]

cdef inline uint8_t* put32_big(uint8_t* at, uint32_t value) noexcept nogil:
    at[0], at[1] = <uint8_t> (value >> 24), <uint8_t> (value >> 16)
    at[2], at[3] = <uint8_t> (value >> 8), <uint8_t> value
    return at + 4
