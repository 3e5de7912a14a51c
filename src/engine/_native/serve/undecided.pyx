# cython: language_level=3
"""Writes of transactions in one segment, from their appends to the decision: what happens to each of them as a rule.

append to the log ──────────> durable ──┐
operation record ───────────> found ────┴─> the write can be decided ──> answered
                    └ late                    └ duplicates

What is rare is decided by the heirs, in `broker/transactions`: records that may be late or missing, duplicates, appends
that fail, and what a crash has left (`append.py`, `buffer.py`).
"""
from operator import methodcaller

from engine._native.serve.flights cimport Flight
from engine._native.serve.groups cimport Appended
from libc.stdint cimport uint64_t


cdef class Span:
    """The sequence ids `low` to `high`, inclusive, of one producer.

    The entries of a frame lie in one span. Frames of two transactions never share one: a producer finishes the frames
    of a transaction before it goes on in another.
    """

    def __init__(self, uint64_t producer, uint64_t low, uint64_t high):
        self.producer = producer
        self.low = low
        self.high = high

    def covers(self, Span other not None):
        """Whether it contains the other one."""
        return self.producer == other.producer and self.low <= other.low and other.high <= self.high

    def __repr__(self):
        return f"<Span {self.low}..{self.high} of {hex(self.producer)}>"


cdef class Write:
    """The undecided messages `first` to `last`, inclusive, of one transaction."""

    def __init__(self, uint64_t first, uint64_t last):
        self.first = first
        self.last = last
        self.open = True

    def __lt__(self, Write other not None):
        return self.first < other.first

    def __repr__(self):
        return f"<Write {self.first}..{self.last}{'' if self.open else ' decided'}>"


cdef class FrameCounts:
    """The frames of one transaction on one connection: received, not in the log yet, not answered yet."""

    def begin(self):
        """A frame was received."""
        self.frames += 1
        self.unlogged += 1
        self.open += 1
        if self.waiting is not None:
            self.go_on()

    def logged(self):
        """A frame is durable in the log."""
        self.unlogged -= 1
        self.wake()

    def fail(self):
        """A frame will be refused."""
        self.failed = True
        self.wake()

    def answered(self, append):
        """A frame was answered, or refused."""
        self.over(append.cancelled() or append.exception() is not None)

    cdef int over(self, bint failed) except -1:
        self.open -= 1
        self.failed = self.failed or failed
        return self.wake()

    # Only when the outcome is known: each wake-up of the commit delays the remaining frames.
    cdef int wake(self) except -1:
        if self.waiting is not None and (self.failed or not self.unlogged):
            self.go_on()
        return 0

    cdef int go_on(self) except -1:
        if not self.waiting.done():
            self.waiting.set_result(None)
        return 0


cdef class PendingWrite:
    """Messages of one transaction from their append to the decision.

    `durable`: they are in the log, durably. `version`: of their operation record, None while there is none; final once
    `recorded`. A write that is both can be decided.
    """

    def __init__(self, number, attempt, Write write not None, uint64_t term, Span span not None):
        self.number = number
        self.attempt = attempt
        self.write = write
        self.term = term
        self.span = span
        self.parts = []

    @property
    def ready(self):
        """Whether it can be decided."""
        return self.durable and self.recorded

    cpdef add_record(self, object record):
        """Add a record of this write; the earliest one counts."""
        part, version = record.part, record.version
        if not self.parts or part not in self.parts:
            self.parts.append(part)
        self.version = version if self.version is None else min(self.version, version)

    cpdef found(self):
        """All its operation records are added."""
        self.recorded = True
        if self.until is not None and not self.until.done():
            self.until.set_result(None)


cdef class Undecided:
    """The appends of one segment that are not answered, and what is not decided. Loop thread only."""

    def __init__(self):
        self.writes = {}
        self.ended = {}
        self.confirming = {}
        self.landings = Landings(methodcaller("logged"))

    def became_ready(self, number):
        """A write of a transaction that has ended can be decided."""
        raise NotImplementedError

    def all_confirmed(self):
        """Every append is answered, or dropped."""
        raise NotImplementedError


cdef class PendingAppend:
    """One frame of a transaction, from its append until its answer. A `Waiter` of the log; loop thread only."""

    def __init__(self, Undecided buffer not None, number, FrameCounts sends, confirmed):
        self.buffer = buffer
        self.number = number
        self.sends = sends
        self.confirmed = confirmed

    # -- what is rare ------------------------------------------------------------------------------------------------

    def recorded_late(self):
        """The transaction had ended when the write was recorded."""
        raise NotImplementedError

    def log_failed(self):
        """The log does not have it: `error` is why."""
        raise NotImplementedError

    def check_places(self):
        """It is durable and recorded, perhaps late, or has duplicates."""
        raise NotImplementedError

    # -- from the log ------------------------------------------------------------------------------------------------

    def begin(self, Span span not None, PendingWrite write):
        """The log has taken it. `write`: None when all its entries are duplicates."""
        self.span = span
        self.write = write
        self.buffer.confirming[self] = None
        if self.places is not None:  # at once
            self.buffer.landings.add(self)

    def done(self):
        """Whether it has its answer."""
        return self.confirmed.done()

    def set_result(self, list places not None):
        """It is durable, at these places."""
        self.places = places
        if self.span is not None:
            self.buffer.landings.add(self)

    def set_exception(self, error):
        """The log has failed."""
        self.error = error
        if self.span is not None:
            self.buffer.landings.add(self)

    def logged(self):
        """In the turn behind: the log has it, durably, or has failed."""
        if self.confirmed.done():
            return
        if self.error is not None:
            self.log_failed()
            return
        if self.sends is not None:
            self.sends.logged()
        if self.write is not None:
            self.write.durable = True
        self.go_on()

    # -- from the operation record -----------------------------------------------------------------------------------

    @property
    def waits(self):
        """Whether the record is still wanted."""
        return not self.confirmed.done()

    def recorded(self, record):
        """Its operation record is durable."""
        if self.write is None or self.confirmed.done():
            return
        self.write.add_record(record)
        if record.late:
            self.recorded_late()
            return
        self.write.found()
        self.go_on()

    # -- both --------------------------------------------------------------------------------------------------------

    cpdef go_on(self):
        """Answer if it is durable and recorded."""
        cdef Appended place
        if self.write is not None:
            if not (self.write.durable and self.write.recorded):
                return
            if self.number in self.buffer.ended:
                self.buffer.became_ready(self.number)
        if self.places is None:
            return
        if self.late:
            self.check_places()
            return
        for place in self.places:
            if place.duplicate:
                self.check_places()
                return
        self.confirm()

    cdef int confirm(self) except -1:
        if type(self.confirmed) is Flight:
            (<Flight> self.confirmed).land(self.places, None)
        else:
            self.confirmed.set_result(self.places)
        return self.over(False)

    def accept(self):
        """Answer it with its places."""
        self.confirm()

    def refuse(self, error):
        """Answer it with an error."""
        self.confirmed.set_exception(error)
        self.over(True)

    def drop(self):
        """End without an answer; nothing if it has one."""
        if self.confirmed.cancel():
            self.over(True)

    cdef int over(self, bint failed) except -1:
        cdef dict confirming = self.buffer.confirming
        confirming.pop(self, None)
        if not confirming:
            self.buffer.all_confirmed()
        if self.sends is not None:
            self.sends.over(failed)
        return 0
