# cython: language_level=3
"""Readers that wait for messages to become durable.

Only WOKEN_PER_TURN are called in each turn of the loop: if a thousand readers wait for one message, its producer and
the next ones must not wait for everything that these readers do. A plain model is `tests/reference/tails_reference.py`.
"""
from asyncio import get_running_loop
from collections import deque

from libc.stdint cimport uint64_t

WOKEN_PER_TURN = 8

cdef Py_ssize_t WOKEN = WOKEN_PER_TURN
cdef uint64_t ALL = <uint64_t> -1


cdef class Waiter:
    """One that waits."""

    cpdef cancel(self):
        """It waits no more."""
        self.call = None


cdef class Waiters:
    """Loop thread only."""

    def __init__(self):
        self.waiting = []
        self.due = deque()

    def add(self, uint64_t offset, call, *, bint done=False):
        """Have call() called once, in a turn of the loop behind the first wake() above the offset; `done`: in the next.
        """
        return self.join(offset, call, done)

    cdef Waiter join(self, uint64_t offset, object call, bint done):
        cdef Waiter waiter = Waiter.__new__(Waiter)
        waiter.offset, waiter.call = offset, call
        if done:
            self.due.append(waiter)
            self.schedule()
        else:
            self.waiting.append(waiter)
        return waiter

    def wake(self, below=None):
        """Call those that wait for offsets below a limit, without one all, in the order of their arrival."""
        self.wake_below(ALL if below is None else below)

    cdef int wake_below(self, uint64_t below) except -1:
        cdef list waiting = self.waiting
        cdef Waiter waiter
        if not waiting:
            return 0
        self.waiting = []
        for waiter in waiting:
            if waiter.call is None:
                continue
            if waiter.offset < below:
                self.due.append(waiter)
            else:
                self.waiting.append(waiter)
        if self.due:
            self.schedule()
        return 0

    cdef int schedule(self) except -1:
        if not self.scheduled:
            self.scheduled = True
            get_running_loop().call_soon(self._wake_some)
        return 0

    def _wake_some(self):
        cdef Py_ssize_t woken = 0, left = len(self.due)
        cdef Waiter waiter
        self.scheduled = False
        try:
            while left and woken < WOKEN:  # those that join meanwhile are due in the next turn
                left -= 1
                waiter = self.due.popleft()
                if waiter.call is not None:
                    call, waiter.call = waiter.call, None
                    woken += 1
                    call()
        finally:
            if self.due:
                self.schedule()
