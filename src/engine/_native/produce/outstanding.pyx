# cython: language_level=3
"""Entries that a producer has in flight: how they enter, and how they leave when they are acknowledged.

    enter() ──> outstanding, in the order of flights ──> acknowledge(): futures end, room is given back, and what is
                                                         stable rises

What is *stable*: every message below a sequence is stored. It rises over whole flights, and no more after a failure,
since a later message that is stored would hide the one that is not.
"""
from collections import deque

cimport cython

from engine.errors import EngineError


@cython.final
cdef class SentTogether:
    """Entries that were sent together, in one flight."""


cdef class Outstanding:
    """Loop thread only. Waiters are futures of either kind (asyncio's or concurrent.futures')."""

    def __init__(self, batcher, memory, window, loop, double send_timeout, make_id):
        """`make_id(segment id, offset)`: what a message's future ends with."""
        self.batcher, self.memory, self.window, self.loop = batcher, memory, window, loop
        self.send_timeout, self.make_id = send_timeout, make_id
        self.outstanding, self.origins, self.pieces, self.renewed = {}, {}, {}, {}
        self.stable, self.flushes, self.room = deque(), deque(), deque()
        self.complete = True

    def __len__(self):
        return len(self.outstanding)

    def __contains__(self, entry):
        return entry in self.outstanding or entry in self.origins

    def enter(self, entries not None):
        """Add entries that are sent together, with the deadline that they share."""
        cdef SentTogether flight = SentTogether.__new__(SentTogether)
        cdef Py_ssize_t size = 0
        cdef double deadline = self.loop.time() + self.send_timeout
        if self.outstanding and deadline < (<SentTogether>next(reversed(self.outstanding.values()))).deadline:
            raise EngineError("the deadlines of what is in flight never fall")
        self.ordinal += 1
        self.flights += 1
        flight.ordinal, flight.deadline, flight.left = self.ordinal, deadline, len(entries)
        for entry in entries:
            self.outstanding[entry] = flight
            scope = entry.scope
            if scope is not None:
                scope.entry_entered(bool(entry.waiters))
            self.entries_sent += 1
            self.messages_sent += entry.count
            size += entry.pending
        self.bytes_sent += size
        self.window.used += size
        if self.sweep is None and self.outstanding:
            self.sweep = self.loop.call_at(deadline, self.expire)

    def all_entered(self, upto):
        """Every message with a sequence below `upto` has entered: what is stable follows once these have left."""
        if not self.complete or not self.ordinal:
            return
        if not self.outstanding:
            self.stable.clear()
            self.batcher.floor = upto
            return
        if self.stable and self.stable_last == self.ordinal:
            self.stable.pop()
        self.stable.append((self.ordinal, upto))
        self.stable_last = self.ordinal

    def acknowledge(self, entries not None, offsets not None, long long end=-1):
        """The broker has these durable at these first offsets (-1: a duplicate whose offset it no longer knows). `end`:
        of the segment when the producer came to it; what has a lower offset was there. -1: that is not known.
        """
        cdef Py_ssize_t freed = 0, messages = 0, at = 0, count
        cdef long long first_offset
        cdef bint ended = False
        cdef list waiters
        measured = self.window.measured
        if len(entries) != len(offsets):
            raise EngineError(f"there must be an offset for each entry, got {len(offsets)} for {len(entries)}")
        for entry in entries:
            first_offset = offsets[at]
            at += 1
            if not self.take_out(entry):
                continue
            freed += entry.pending
            if entry is measured:
                ended = True
            count = entry.count
            messages += count
            if first_offset < end:
                self.messages_duplicate += count
            waiters = entry.waiters
            if waiters is not None:
                self.resolve(entry, waiters, first_offset)
        self.messages_acknowledged += messages
        self.window.acknowledged += freed
        if ended:
            self.window.end(self.loop.time())
        self.left(freed, messages)

    # False: it was out of time before, and its futures have ended.
    cpdef bint take_out(self, entry) except -1:
        """One entry leaves, or a piece of one; False: it had left before."""
        if self.renewed:
            self.renewed.pop(entry, None)
        cdef SentTogether flight = self.outstanding.pop(entry, None)
        if flight is None:
            return self.piece_left(entry)
        flight.left -= 1
        if not flight.left:
            self.flights -= 1
        scope = entry.scope
        if scope is not None:
            scope.entry_left(bool(entry.waiters))
        return True

    # Whether it was a piece in flight; with the last one the whole entry leaves.
    cdef bint piece_left(self, piece) except -1:
        origin = self.origins.pop(piece, None)
        if origin is None:
            return False
        group = self.pieces[origin]
        del group[piece]
        if not group:
            del self.pieces[origin]
            self.take_out(origin)
        return True

    cdef int resolve(self, entry, list waiters, long long first_offset) except -1:
        segment_id = entry.segment_id
        for future, index in waiters:
            if not future.done():
                future.set_result(self.make_id(segment_id, first_offset + index if first_offset >= 0 else -1))
        return 0

    cpdef left(self, Py_ssize_t freed, Py_ssize_t messages):
        """Entries have left, and what they held is free."""
        self.window.used = self.window.used - freed if self.outstanding else 0
        if messages:
            self.batcher.release(freed, messages)
            if self.memory.waiting:
                self.memory.room_came()
        if self.room:
            self.room_came()
        if self.flushes:
            self.wake_flushes()
        if self.stable:
            self.raise_stable()

    # The first flight of which something is outstanding.
    cpdef long long oldest(self) except -1:
        """The ordinal of the first flight of which something is outstanding, or of the next one."""
        if self.outstanding:
            return (<SentTogether>next(iter(self.outstanding.values()))).ordinal
        return self.ordinal + 1

    # Entries sealed from now on carry how far everything is stored; after a failure that is raised no more.
    cdef int raise_stable(self) except -1:
        cdef long long first = self.oldest()
        while self.stable and self.stable[0][0] < first:
            upto = self.stable.popleft()[1]
            if self.complete:
                self.batcher.floor = upto
        return 0

    cdef int wake_flushes(self) except -1:
        cdef long long first = self.oldest()
        while self.flushes and self.flushes[0][0] < first:
            self.end_flush(self.flushes.popleft()[1])
        return 0

    def expire(self):
        """The deadline of the oldest entry has come; for heirs."""

    def end_flush(self, future):
        """What a flush has waited for has left; for heirs."""

    def room_came(self):
        """Something was freed, and something waits for room; for heirs."""
