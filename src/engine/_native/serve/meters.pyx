# cython: language_level=3
"""Counters that are moved with each frame, each append, each commit.

What is decided by them is their heirs': `broker/pools`, which are called once a limit is passed.
"""
from asyncio import get_running_loop
from collections import deque
from itertools import accumulate

from libc.stdint cimport int64_t, uint64_t

SLOT_S = 0.5
SLOTS = 10  # a rate is averaged over so many slots, or one less

cdef double SLOT = SLOT_S
cdef Py_ssize_t MARKS = SLOTS


cdef class Buckets:
    """Counts values by bucket. Loop thread only. observe() costs one bisection."""

    def __init__(self, bounds):
        """`bounds` rise. Values above the last bound are only in the total count."""
        self.bounds = tuple(bounds)
        self.ends = [float(bound) for bound in self.bounds]
        self.counted = [0] * (len(self.bounds) + 1)

    def observe(self, double value):
        """Count a value."""
        self.count(value)

    cdef int count(self, double value) except -1:
        cdef Py_ssize_t low = 0, high = len(self.ends), middle
        while low < high:
            middle = (low + high) // 2
            if <double>self.ends[middle] < value:
                low = middle + 1
            else:
                high = middle
        self.counted[low] += 1
        self.total += value
        return 0

    def sums(self):
        """For each bound, the values at or below it, and all values."""
        return tuple(accumulate(self.counted))


cdef class Tally:
    """Messages and bytes, and what they were when each of the last slots of time began."""

    def __init__(self, time):
        """`time`: seconds, monotonic."""
        self.time = time
        self.marks = deque()

    def count(self, uint64_t messages, uint64_t size):
        """Add to the totals."""
        self.add(messages, size)

    cdef int add(self, uint64_t messages, uint64_t size) except -1:
        cdef int64_t slot = <int64_t>(<double>self.time() / SLOT)
        marks = self.marks
        if slot != self.slot or not marks:
            marks.append((slot, self.messages, self.bytes))
            self.slot = slot
            if len(marks) > MARKS:
                marks.popleft()
        self.messages += messages
        self.bytes += size
        return 0


cdef class Usage:
    """Bytes in use. Above the limit its heir is asked, and while it holds something, with each that is freed."""

    def __init__(self, int64_t limit):
        self.limit = limit

    def take(self, int64_t size, connection):
        """The connection has sent `size` bytes."""
        self.in_flight += size
        if self.in_flight > self.limit:
            self.passed(connection)

    def free(self, int64_t size):
        """`size` bytes are durable, or refused."""
        self.in_flight -= size
        if self.holding:
            self.fell()

    def is_busy(self):
        """Whether messages wait to become durable: other work is then spread over more turns of the loop."""
        return self.in_flight > 0

    def passed(self, connection):
        """A connection has sent what is above the limit."""
        raise NotImplementedError

    def fell(self):
        """Something was freed while connections wait."""
        raise NotImplementedError


cdef class TurnFrames:
    """Frames of all connections in one turn of the loop. Its heir is asked for each that is over the budget."""

    def __init__(self, int64_t budget):
        self.budget = budget

    cpdef int frame(self, object connection) except -1:
        """Count one frame of a connection."""
        self.add(1)
        if self.frames > self.budget:
            self.passed(connection)
        return 0

    def counted(self, int64_t frames):
        """Count so many; all of this turn."""
        self.add(frames)
        return self.frames

    cdef int add(self, int64_t frames) except -1:
        self.frames += frames
        if not self.counting:
            self.counting = True
            get_running_loop().call_soon(self._turn_ends)
        return 0

    def _turn_ends(self):
        self.counting = False
        self.frames = 0

    def passed(self, connection):
        """A connection has sent a frame that is over the budget."""
        raise NotImplementedError


cdef class Marks:
    """When the newest commits of a segment became durable, on the monotonic clock."""

    def add(self, uint64_t first_offset, double now):
        """A commit that begins at the offset has just become durable."""
        self.note(first_offset, now)

    cdef void note(self, uint64_t first_offset, double now) noexcept:
        self.firsts[self.count % NEWEST] = first_offset
        self.times[self.count % NEWEST] = now
        self.count += 1

    def since(self, uint64_t offset):
        """When the message at an offset became durable; None: before the commits that are remembered."""
        cdef uint64_t at = self.count, oldest = self.count - NEWEST if self.count > NEWEST else 0
        while at > oldest:
            at -= 1
            if self.firsts[at % NEWEST] <= offset:
                return self.times[at % NEWEST]
        return None
