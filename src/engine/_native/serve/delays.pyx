# cython: language_level=3
"""When the messages of an entry are to be delivered, read from its deliver-at column; values are not touched.

An entry with that column is never compressed, and an encrypted one has a copy of it in its envelope, so that the
segment's broker can read it without decompressing anything.
"""
from engine._native.format.body cimport Columns, Lease, hold, map_columns
from engine._native.format.envelope cimport AT_DELIVER_AT, envelope_fits
from engine._native.format.entry cimport (
    AT_COMPRESSION, AT_COUNT, AT_FIRST_OFFSET, AT_FLAGS, AT_SIZE, COMPRESSION_NONE, DELIVER_AT, ENCRYPTED,
    FAULT_NONE, HEADER_SIZE, Fault, check_header, load32, load64, raise_fault, unknown,
)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from engine.errors import InvalidArgumentError

# A message that is due much later is checked again after at least this part of its delay: (1 - 2 / PARTS).
cdef enum:
    PARTS = 64


def has_delays(const uint8_t[::1] block not None):
    """Whether an entry of a block of whole entries has a deliver-at column. Headers must have been checked before."""
    cdef size_t at = 0, n = block.shape[0]
    while at + HEADER_SIZE <= n:
        if block[at + AT_FLAGS] & DELIVER_AT:
            return True
        at += max(load32(&block[at + AT_SIZE]), <uint32_t> HEADER_SIZE)
    return False


def withheld(entry, now_ms, tick_ms):
    """Runs [first, stop) of offsets that are not due at `now_ms`, with the time to check each of them again.

    Returns (time, first, stop) in milliseconds since 1970 and offsets, by offset. The time is never before `now_ms`.
    For messages due soon it is the first whole multiple of `tick_ms` at which they are due. For messages due much later
    it is earlier and coarse, so that any number of messages share few times; check them again then. An entry without
    the column, or whose columns contradict each other (which its consumer reports), withholds nothing. Raises
    CorruptionError where no entry begins, InvalidArgumentError for a tick below 1.
    """
    cdef Lease lease = hold(entry)
    cdef const uint8_t* p = lease.start
    cdef Fault fault = check_header(p, lease.size)
    cdef Columns columns
    cdef int64_t now = now_ms, tick = tick_ms, time, before = 0
    cdef uint64_t first = 0, offset
    cdef uint32_t i, n
    cdef bint inside = False
    cdef list runs = []
    if fault != FAULT_NONE:
        raise_fault(fault, unknown(), unknown())
    if tick < 1:
        raise InvalidArgumentError(f"tick_ms must be at least 1, got {tick}")
    if not p[AT_FLAGS] & DELIVER_AT:
        return runs
    if p[AT_COMPRESSION] & ENCRYPTED:
        if not envelope_fits(p):
            return runs
        columns.deliver_at = <const int64_t*> (p + HEADER_SIZE + AT_DELIVER_AT)
    elif p[AT_COMPRESSION] != COMPRESSION_NONE or not map_columns(&columns, p, p + HEADER_SIZE):
        return runs
    offset, n = load64(p + AT_FIRST_OFFSET), load32(p + AT_COUNT)
    for i in range(n):
        time = _look_at(columns.deliver_at[i], now, tick) if columns.deliver_at[i] > now else 0
        if inside and (columns.deliver_at[i] <= now or time != before):
            runs.append((before, first, offset + i))
            inside = False
        if columns.deliver_at[i] > now and not inside:
            inside, before, first = True, time, offset + i
    if inside:
        runs.append((before, first, offset + n))
    return runs


# When to check a message again that is due at `due`, later than `now`.
cdef int64_t _look_at(int64_t due, int64_t now, int64_t tick) noexcept nogil:
    cdef uint64_t delay = <uint64_t> due - <uint64_t> now
    cdef uint64_t width = <uint64_t> tick
    cdef int64_t rest
    while width < delay // PARTS:
        width *= 2
    if width == <uint64_t> tick:
        rest = due % tick
        return due if rest == 0 else due - rest + tick
    return due - due % <int64_t> width
