# cython: language_level=3
"""CRC32C (Castagnoli), by the processor's instruction where there is one."""
from libc.stdint cimport uint32_t

# Continue `crc` (0 at the start) over n bytes. Usable without the GIL.
cdef uint32_t crc32c_update(uint32_t crc, const void* data, size_t n) noexcept nogil
