# cython: language_level=3, auto_pickle=False
"""The body of an entry: the buffer it lies in, how it is decompressed, and where its columns begin."""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from engine._native.format.layout cimport (
    AT_COUNT, AT_FLAGS, AT_PRODUCER_NAME_SIZE, AT_RAW_SIZE, DELIVER_AT, EVENT_TIMES, KEYED, PROPERTIES, SEQUENCES,
    load16, load32, pad8,
)
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

from engine.errors import CorruptionError, DecryptionError, InvalidArgumentError, UnsupportedError


@cython.final
cdef class Lease:
    """One buffer, held for as long as any entry points into it."""

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef Lease hold(object buffer, bint copy=False):
    cdef Lease lease = Lease.__new__(Lease)
    try:
        PyObject_GetBuffer(buffer, &lease.view, PyBUF_SIMPLE)
    except (TypeError, BufferError) as error:
        kind = type(buffer).__name__
        raise InvalidArgumentError(f"entries must be read from contiguous bytes, got {kind}") from error
    lease.held = True
    lease.start = <const uint8_t*> lease.view.buf
    lease.size = lease.view.len
    if copy or <uintptr_t> lease.start % 8 != 0:
        return hold(PyBytes_FromStringAndSize(<const char*> lease.start, lease.size))
    return lease


cdef bytes decompressed(object decompress, int codec, object body, uint32_t raw_size, object where):
    if decompress is None:
        raise UnsupportedError(f"{where}: the entry is compressed (codec {codec}) and no decompressor was given")
    try:
        raw = decompress(codec, body, raw_size)
    except (MemoryError, DecryptionError):
        raise
    except Exception as error:
        raise CorruptionError(f"{where}: the body does not decompress: {error}") from error
    if type(raw) is not bytes:
        raise CorruptionError(f"{where}: the body decompressed to {type(raw).__name__}, not to bytes")
    if len(raw) != raw_size:
        raise CorruptionError(f"{where}: the body decompressed to {len(raw)}, not to {raw_size} bytes")
    return raw


cdef inline bint _rises_from_zero(const int32_t* offsets, uint32_t n) noexcept nogil:
    # Without a branch, so that the compiler does eight at a time. When no offset is negative, a difference has the top
    # bit set exactly where the offsets fall.
    cdef const uint32_t* o = <const uint32_t*> offsets
    cdef uint32_t wrong = 0, i
    for i in range(n):
        wrong |= o[i + 1] | (o[i + 1] - o[i])
    return o[0] == 0 and wrong >> 31 == 0


cdef bint map_columns(Columns* columns, const uint8_t* header, const uint8_t* body) noexcept nogil:
    cdef uint32_t n = load32(header + AT_COUNT)
    cdef uint64_t room = load32(header + AT_RAW_SIZE), offsets_size = pad8(4 * (<size_t> n + 1)), at = 0
    cdef uint8_t flags = header[AT_FLAGS]
    memset(columns, 0, sizeof(Columns))
    if offsets_size * (2 if flags & KEYED else 1) > room:
        return False
    if flags & KEYED:
        columns.key_offsets = <const int32_t*> body
        at = offsets_size
    columns.value_offsets = <const int32_t*> (body + at)
    at += offsets_size
    if flags & KEYED:
        if not _rises_from_zero(columns.key_offsets, n):
            return False
        columns.keys = body + at
        at += pad8(columns.key_offsets[n])
    if not _rises_from_zero(columns.value_offsets, n):
        return False
    columns.values = body + at
    at += pad8(columns.value_offsets[n])
    if flags & EVENT_TIMES:
        columns.event_times = <const int64_t*> (body + at)
        at += 8 * <uint64_t> n
    if flags & SEQUENCES:
        columns.sequences = <const uint32_t*> (body + at)
        at += pad8(4 * <size_t> n)
    if flags & DELIVER_AT:
        columns.deliver_at = <const int64_t*> (body + at)
        at += 8 * <uint64_t> n
    if flags & PROPERTIES:
        if at + offsets_size > room:
            return False
        columns.property_offsets = <const int32_t*> (body + at)
        at += offsets_size
        if not _rises_from_zero(columns.property_offsets, n):
            return False
        columns.properties = body + at
        at += pad8(columns.property_offsets[n])
    columns.producer_name = body + at
    at += pad8(load16(header + AT_PRODUCER_NAME_SIZE))
    return at == room
