# cython: language_level=3
"""Checks, seals and stamps entries, and reads their parts; the picture of the bytes is in `layout.pxd`."""
cimport cython
from engine._native.format.body cimport Columns, Lease
from engine._native.format.layout cimport *
from engine._native.format.invariants cimport engine_check
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# Check one entry that starts at `p` with `room` readable bytes: magic, version, size, header_crc. The body is
# not touched. A fault never reads past `room`.
cdef Fault check_header(const uint8_t* p, size_t room) noexcept nogil
# Check body_crc of an entry whose header was checked and whose size fits.
cdef Fault check_body(const uint8_t* p) noexcept nogil
# Check n bytes of whole entries back to back, from `at`: headers and, where asked, body_crc. `at` is moved to the first
# bad entry, or to n.
cdef Fault check_entries(const uint8_t* start, size_t n, bint check_bodies, size_t* at) noexcept nogil
# Check stamp_crc under a file's salt.
cdef Fault check_stamp(const uint8_t* p, uint32_t salt) noexcept nogil
# Compute header_crc and body_crc of a complete entry (producer side).
cdef void seal(uint8_t* p) noexcept nogil
# Write the broker's part and stamp_crc.
cdef void stamp(uint8_t* p, uint32_t salt, uint32_t term, uint64_t first_offset, int64_t publish_time_ms,
                uint64_t durable_upto, uint64_t segment_id) noexcept nogil
# Raise CorruptionError for a fault, naming segment and offset; either may be unknown().
cdef int raise_fault(Fault fault, uint64_t segment_id, uint64_t offset) except -1

# One entry inside a buffer. Fixed after construction, except for what is filled in on first use.
@cython.final
cdef class Entry:
    # The bytes, and the lease that keeps them.
    cdef Lease lease
    cdef const uint8_t* p
    # Read once from the header, because they are needed for each message.
    cdef readonly uint32_t size
    cdef readonly uint32_t count
    cdef readonly uint64_t segment_id
    cdef readonly uint64_t first_offset
    cdef readonly uint64_t first_sequence
    # The body. `columns` means something once `opened`, which open_body() sets when both are there. `raw` is the body
    # where it had to be decompressed, else None.
    cdef bint opened
    cdef Columns columns
    cdef object raw
    # Why nothing in it can be read, as text; None while no fault is known.
    cdef readonly object failure
    # Made on first use.
    cdef object name_text
    cdef object published

    # Decompress the body where it is compressed, and lay out its columns. Raises CorruptionError; foreign_error().
    cdef int open_body(self, object decompress) except -1
    # What decompress() is given: the body without padding; of an encrypted entry all of it.
    cdef object closed_body(self)
    # Bytes of its body when decompressed; 0 where it is not compressed.
    cdef inline uint32_t opens_to(self) noexcept:
        return load32(self.p + AT_RAW_SIZE) if self.p[AT_COMPRESSION] else 0
    # The parts of message i. Invariant: opened, i < count. Checked by check_message(), with ENGINE_DEBUG=1.
    cdef inline void check_message(self, uint32_t i) noexcept nogil:
        engine_check(self.opened and i < self.count, b"a message is read from an entry that is open and has it")
    cdef bytes value_at(self, uint32_t i)
    cdef object key_at(self, uint32_t i)
    cdef dict properties_at(self, uint32_t i)
    cdef object event_time_ms_at(self, uint32_t i)
    cdef uint64_t sequence_at(self, uint32_t i) noexcept nogil
    cdef int64_t publish_ms(self) noexcept nogil
    cdef object published_at(self)
    cdef object producer(self)

# The error of a reader that is no client of Apache Pulsar, for an entry that only these can read.
cdef object foreign_error(Entry entry)
# The Entry that begins at `p`. Where its header failed a check, the caller sets `failure`. Invariant: a whole
# header is inside the lease. Checked by entry_at(), with ENGINE_DEBUG=1.
cdef Entry entry_at(Lease lease, const uint8_t* p)
# The instant so many milliseconds after 1970, in UTC.
cdef object instant(int64_t ms)
