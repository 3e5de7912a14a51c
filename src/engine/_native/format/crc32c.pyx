# cython: language_level=3
"""CRC32C (Castagnoli), by the processor's instruction where there is one.

crc32c.h computes on the raw register; this module adds the inversion at both ends that the standard asks for. The
algorithm, three interleaved streams or eight tables, is told there. crc32c_prepare() fills the tables and chooses the
way once, while this module is imported.
"""
from libc.stdint cimport uint8_t, uint32_t


cdef extern from "crc32c.h" nogil:
    void crc32c_prepare() noexcept
    bint crc32c_has_hardware() noexcept
    uint32_t crc32c_raw(uint32_t crc, const uint8_t* p, size_t n) noexcept
    uint32_t crc32c_by_table(uint32_t crc, const uint8_t* p, size_t n) noexcept


crc32c_prepare()
HARDWARE = crc32c_has_hardware()


cdef uint32_t crc32c_update(uint32_t crc, const void* data, size_t n) noexcept nogil:
    return ~crc32c_raw(~crc, <const uint8_t*> data, n)


def crc32c(const uint8_t[::1] data not None, uint32_t crc=0):
    """The CRC32C of any contiguous buffer of bytes, continuing `crc` (0 at the start)."""
    cdef size_t n = data.shape[0]
    if n == 0:
        return crc
    with nogil:
        crc = crc32c_update(crc, &data[0], n)
    return crc


def crc32c_portable(const uint8_t[::1] data not None, uint32_t crc=0):
    """crc32c() by tables, as a processor without the instruction computes it."""
    cdef size_t n = data.shape[0]
    return crc if n == 0 else <uint32_t> ~crc32c_by_table(~crc, &data[0], n)
