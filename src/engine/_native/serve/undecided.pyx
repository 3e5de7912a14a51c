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
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from engine._native.format cimport entry as e
from engine._native.format.entry cimport load32, load64
from libc.stdint cimport uint8_t, uint64_t
from libc.stdio cimport snprintf

from engine.errors import CorruptionError, InvalidArgumentError


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


cdef class Run:
    """Entries of a frame that follow each other in one transaction and attempt."""

    def __repr__(self):
        return f"<Run of {self.entries} entries, bytes {self.start}..{self.stop}, in {self.number:016x}>"


def runs_of(frame):
    """The Runs of a frame of whole entries, in order. Checksums are not looked at.

    Raises CorruptionError where sizes do not add up; InvalidArgumentError for an entry that is in no transaction.
    """
    cdef Py_buffer view
    cdef Py_ssize_t at = 0, size
    cdef const uint8_t* p
    cdef uint64_t high, low, number = 0, attempt = 0
    cdef list runs = []
    cdef Run run = None
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        while at < view.len:
            p = <const uint8_t*> view.buf + at
            size = <Py_ssize_t> load32(p + e.AT_SIZE) if view.len - at >= <Py_ssize_t> e.HEADER_SIZE else 0
            if size < <Py_ssize_t> e.HEADER_SIZE or size > view.len - at:
                raise CorruptionError(f"the entry at byte {at} of a frame claims {size} bytes of {view.len - at}")
            if not p[e.AT_FLAGS] & e.TRANSACTIONAL:
                raise InvalidArgumentError("each entry of a frame of several transactions must be in one")
            high, low = load64(p + e.AT_TXN_HIGH), load64(p + e.AT_TXN_LOW)
            if run is None or high != number or low != attempt:
                number, attempt = high, low
                run = Run.__new__(Run)
                run.number, run.attempt, run.start, run.entries = number, attempt, at, 0
                run.span = Span(
                    load64(p + e.AT_PRODUCER_ID), load64(p + e.AT_FIRST_SEQUENCE), load64(p + e.AT_LAST_SEQUENCE))
                runs.append(run)
            run.span.low = min(run.span.low, load64(p + e.AT_FIRST_SEQUENCE))
            run.span.high = max(run.span.high, load64(p + e.AT_LAST_SEQUENCE))
            at += size
            run.stop, run.entries = at, run.entries + 1
        return runs
    finally:
        PyBuffer_Release(&view)


cdef class Write:
    """The undecided messages `first` to `last`, inclusive, of one transaction."""

    def __init__(self, uint64_t first, uint64_t last):
        self.first = first
        self.last = last
        self.open = True

    def __repr__(self):
        return f"<Write {self.first}..{self.last}{'' if self.open else ' decided'}>"


cdef enum:
    CLOSED_KEPT_MAX = 256  # closed items in front of the open ones, before these move to the front


cdef class OpenWrites:
    """The undecided writes of one segment, by their offsets. Loop thread only.

    They are added in order, but for what recovery finds, and most are decided in order: so the first open one is found
    in one step.
    """

    def __cinit__(self):
        self.items = []

    def __len__(self):
        return self.count

    @property
    def first(self):
        """The first undecided offset; None: there is none."""
        return (<Write> self.items[self.head]).first if self.head < len(self.items) else None

    cpdef Write add(self, uint64_t first, uint64_t last):
        """A write of these offsets, inclusive."""
        cdef Write write = Write(first, last)
        cdef Py_ssize_t at = len(self.items)
        while at > self.head and (<Write> self.items[at - 1]).first > first:
            at -= 1
        if at == len(self.items):
            self.items.append(write)
        else:
            self.items.insert(at, write)
        self.count += 1
        return write

    cpdef close(self, Write write):
        """It is decided, or was not appended after all. Once for each."""
        write.open = False
        self.count -= 1
        while self.head < len(self.items) and not (<Write> self.items[self.head]).open:
            self.head += 1
        if self.head == len(self.items) or self.head > CLOSED_KEPT_MAX:
            del self.items[:self.head]
            self.head = 0


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
        self.add_part(record.part, record.version)

    cdef int add_part(self, object part, object version) except -1:
        if not self.parts or part not in self.parts:
            self.parts.append(part)
        self.version = version if self.version is None else min(self.version, version)
        return 0

    # Whether it is visible, given how the transaction has ended; None: its header is gone. As operation_counts() of
    # model.transactions.
    cdef bint is_visible(self, object view) except -1:
        if view is None or self.version is None or self.version > view.version:
            return False
        header = view.header
        return header.state == "COMMITTED" if header.accepted is None else header.counts(self.attempt)

    cpdef found(self):
        """All its operation records are added."""
        self.recorded = True
        if self.until is not None and not self.until.done():
            self.until.set_result(None)


cdef class Undecided:
    """The appends of one segment that are not answered, and what is not decided. Loop thread only."""

    def __init__(self, str segment not None, bytes segment_json not None):
        """`segment`: its name, also as in a record."""
        self.segment = segment
        self.segment_json = segment_json
        self.writes = {}
        self.ended = {}
        self.confirming = {}
        self.followed = set()
        self.landings = Landings(methodcaller("logged"))

    def begin_jointly(self, JointAppend joint not None, runs, answers, sends, list places not None, uint64_t term,
                      append_of, write_of):
        """Begin an append for each run of one frame, which the log has taken at `places`.

        `append_of`, `write_of`: the classes. The appends begin no records before they are durable.
        """
        cdef PendingAppend append
        cdef PendingWrite write
        cdef FrameCounts counts
        cdef Run run
        cdef Appended place
        cdef OpenWrites undecided = self.open_writes()
        cdef Py_ssize_t at = 0, i
        cdef uint64_t first, last
        cdef bint fresh
        for run, answer, counts in zip(runs, answers, sends, strict=True):
            counts.begin()
            append, write = append_of(self, run.number, counts, answer), None
            joint.add(append, run.entries)
            first, last, fresh = 0, 0, False
            for i in range(at, at + run.entries):
                place = places[i]
                if not place.duplicate:
                    if not fresh:
                        first, fresh = place.first_offset, True
                    last = <uint64_t> place.first_offset + place.count - 1
            at += run.entries
            if fresh:
                write = write_of(run.number, run.attempt, undecided.add(first, last), term, run.span)
                append.gathers = True
                pending = self.writes.get(run.number)
                if pending is None:
                    self.writes[run.number] = [write]
                else:
                    pending.append(write)
            append.begin(run.span, write)
        joint.begun()

    def hear(self, number, view):
        """The transaction has ended; None: its header is gone. Whether nothing of it is undecided any more."""
        self.ended[number] = view
        if not self.decided(number):
            return False
        del self.ended[number]
        self.followed.discard(number)
        return True

    cdef OpenWrites open_writes(self):
        if self.undecided is None:
            self.undecided = self.visibility.undecided_writes()  # always the same
        return self.undecided

    cpdef bint decided(self, number) except -1:
        """Decide what can be decided; whether that is all."""
        visibility = self.visibility
        parts = self.decide(number, self.open_writes(), visibility.decided, visibility.hidden)
        if parts is not None:
            self.settling.soon(parts)
            if not self.notifying:
                visibility.changed()
        return number not in self.writes

    def decide(self, number, OpenWrites undecided not None, decided, hidden):
        """Decide the writes of a transaction that has ended, where they can be decided.

        The parts of their records; None: no write could be decided, and what cannot be stays. `undecided`: those of the
        segment; `decided`, `hidden`: bitmaps that take the offsets.
        """
        cdef PendingWrite pending
        cdef Write write
        cdef list parts = None, left = []
        view = self.ended[number]
        for pending in self.writes.pop(number, ()):
            if not (pending.durable and pending.recorded):
                left.append(pending)
                continue
            write = pending.write
            if write.open:
                (decided if pending.is_visible(view) else hidden).add_range(write.first, write.last + 1)
                undecided.close(write)
            parts = pending.parts if parts is None else parts + pending.parts
        if left:
            self.writes[number] = left
        return parts

    cpdef gather(self, PendingAppend append):
        """Record the write of an append."""
        self.operations.gather(append.number, append)

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
        if self.gathers:
            self.gathers = False
            self.buffer.gather(self)  # before a commit behind it goes on, which records it
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
        if record.late:
            self.write.add_record(record)
            self.recorded_late()
            return
        self.is_recorded(record.part, record.version)

    cdef int is_recorded(self, object part, object version) except -1:
        self.write.add_part(part, version)
        self.write.found()
        self.go_on()
        return 0

    def recorded_in_time(self, part, version):
        """Its operation record is durable, this part of it, and was written before the transaction ended."""
        if self.write is not None and not self.confirmed.done():
            self.is_recorded(part, version)

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


cdef enum:
    FACTS_SIZE_MAX = 256  # six numbers of 20 digits and their names


def record_of(list appends not None):
    """The record of the writes of several PendingAppends, of one transaction and none with an attempt; else None.

    What operations_to_json() makes of their operations: those behind the first say only where they differ from it.
    """
    cdef PendingAppend append
    cdef PendingWrite write, first = None
    cdef Span span
    cdef list more = []
    cdef bytes head = b"", segment
    cdef char text[FACTS_SIZE_MAX]
    cdef int size
    for append in appends:
        write, segment = append.write, append.buffer.segment_json
        span = write.span
        if write.attempt:
            return None
        if first is None:
            first = write
            size = snprintf(
                text, FACTS_SIZE_MAX,
                b',"term":%llu,"producer":%llu,"sequences":[%llu,%llu],"ranges":[[%llu,%llu]]',
                <unsigned long long> write.term, <unsigned long long> span.producer,
                <unsigned long long> span.low, <unsigned long long> span.high,
                <unsigned long long> write.write.first, <unsigned long long> write.write.last)
            head = b'{"kind":"write","segment":' + segment + text[:size]
        else:
            more.append(difference_of(write, segment, first, (<PendingAppend> appends[0]).buffer.segment_json))
    return head + b',"more":[' + b",".join(more) + b"]}" if more else head + b"}"


cdef bytes difference_of(PendingWrite write, bytes segment, PendingWrite first, bytes first_segment):
    cdef Span span = write.span, other = first.span
    cdef char text[FACTS_SIZE_MAX]
    cdef list said = []
    if segment != first_segment:
        said.append(b'"segment":' + segment)
    if write.term != first.term:
        said.append(text[:snprintf(text, FACTS_SIZE_MAX, b'"term":%llu', <unsigned long long> write.term)])
    if span.producer != other.producer:
        said.append(text[:snprintf(text, FACTS_SIZE_MAX, b'"producer":%llu', <unsigned long long> span.producer)])
    if span.low != other.low or span.high != other.high:
        said.append(text[:snprintf(
            text, FACTS_SIZE_MAX, b'"sequences":[%llu,%llu]',
            <unsigned long long> span.low, <unsigned long long> span.high)])
    if write.write.first != first.write.first or write.write.last != first.write.last:
        said.append(text[:snprintf(
            text, FACTS_SIZE_MAX, b'"ranges":[[%llu,%llu]]',
            <unsigned long long> write.write.first, <unsigned long long> write.write.last)])
    return b"{" + b",".join(said) + b"}"


cdef class JointAppend:
    """One append to the log of the frames of several transactions. A `Waiter` of the log; loop thread only.

    The log has all of it or nothing. From then on each transaction's append goes its own way.
    """

    def __init__(self):
        self.appends = []
        self.numbers = []

    def add(self, PendingAppend append not None, Py_ssize_t entries):
        """So many of its entries are this append's, behind those that were added before."""
        self.appends.append(append)
        self.numbers.append(entries)

    def begun(self):
        """All were added; the log may have answered before."""
        if self.places is not None:
            self.tell()

    def done(self):
        """Whether nothing of it waits any more."""
        cdef PendingAppend append
        for append in self.appends:
            if not append.done():
                return False
        return bool(self.appends)

    def set_result(self, list places not None):
        """All of it is durable, at these places."""
        self.places = places
        self.tell()

    def set_exception(self, error):
        """The log has failed. Each append has an error of its own: a traceback must not be shared between tasks."""
        cdef PendingAppend append
        self.error = error
        for append in self.appends:
            if not append.done():
                append.set_exception(type(error)(*error.args))

    cdef int tell(self) except -1:
        cdef PendingAppend append
        cdef Py_ssize_t at = 0, entries
        for append, entries in zip(self.appends, self.numbers):
            if not append.done():
                append.set_result(self.places[at:at + entries])
            at += entries
        return 0
