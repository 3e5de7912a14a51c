# cython: language_level=3, auto_pickle=False
"""`Permits`: the credit for messages of a queue consumer, over all its segments and topics.

Credit for messages counts what is not acknowledged, so that what one consumer holds and does not work on goes to the
others:

    granted, not arrived  |  queued  |  with the program  |  acknowledged, or handed back
    <---- open ---------->|<------------ held ----------->|
    <--------------------- window ----------------------->

The window is a number (`receive_queue_size`), or follows the consumer's pace.

* **Segments.** Credit is open at each segment, and cannot be taken back from one. Each gets an equal part of the
  window, at least one message. While the consumer holds something, the parts that are used up are filled as far as what
  it holds leaves room, in turn; when it holds nothing, each segment has credit for one message at least, since the next
  one may come from any of them. So up to a window, or one message of each segment, may come beyond the window.
* **Few frames.** Credit is granted when there is room for half of a narrow window, or for a quarter of a wide one.
* **Receiving without acknowledging.** A receive that waits while the program has all that has arrived is a request for
  more: what the program has then is *excused*, it does not count any more, and counts as done. Otherwise a program that
  acknowledges at the end, or works on many messages at once, would wait for ever.

`Pace`: a window of as many messages as the consumer works off in WORK_S: enough to hide the way to the broker and back,
and little enough that the rest of the work is left to others. It is measured whenever a window's worth of messages is
done, or WORK_S of work has passed:

    window = messages done / seconds of work x WORK_S,  at least 1, at most STEP times the last one, at least 1 / STEP

*Done* are messages that were acknowledged or handed back, and those that the program keeps unacknowledged while it asks
for more. *Work* is the time in which the consumer has messages, queued or with the program. The time in which it has
none is not counted: it says how busy the topic is, and how far the broker.

It begins with one message, since nothing is known yet; a consumer that needs 10 microseconds for each has the widest
window after nine measurements. The steps are bounded both ways, so that one message that was quick, or one pause of the
machine, does not decide alone.

A plain model is `tests/reference/permits_reference.py`.
"""
from engine.errors import InvalidArgumentError
from engine.limits import RECEIVE_QUEUE_MESSAGES

from engine._native.format.invariants cimport engine_check
from libc.math cimport rint
from libc.stdint cimport int64_t

WORK_S = 0.2
STEP = 4

cdef double WORK = WORK_S
cdef int64_t STEPS = STEP
cdef double LEAST_S = 1e-9  # on a clock that does not move
cdef int64_t NARROW = 32


cpdef int64_t worth_granting(int64_t window):
    """For how many messages a FLOW frame is sent."""
    return (window + 1) // 2 if window < NARROW else window // 4


cdef class Pace:
    """`most`: the widest window. Times are seconds of any clock that does not go back. Loop thread only."""

    def __init__(self, int64_t most):
        self.window, self.most = 1, most

    cpdef begin(self, double now):
        """The consumer has messages."""
        if not self.working:
            self.working, self.since = True, now

    cpdef pause(self, double now):
        """It has none."""
        if self.working:
            self.work += now - self.since
            self.working = False

    cpdef done(self, int64_t messages, double now):
        """So many more are done."""
        cdef double work = self.work, pace
        if self.working:
            work += now - self.since
        self.counted += messages
        if self.counted < self.window and work < WORK:
            return
        pace = rint(self.counted * WORK / max(work, LEAST_S))
        pace = min(pace, <double> min(STEPS * self.window, self.most))
        self.window = min(max(<int64_t> pace, (self.window + STEPS - 1) // STEPS, 1), self.most)
        self.counted, self.work, self.since = 0, 0.0, now


cdef class Permits:
    """`size`: the window, at least 1; None: it follows the pace, measured by the clock `now`. Loop thread only."""

    def __init__(self, size, now not None):
        if size is not None and size < 1:
            raise InvalidArgumentError(f"size must be at least 1, got {size}")
        self.size = 0 if size is None else size
        self.pace = Pace(RECEIVE_QUEUE_MESSAGES)
        self.now = now
        self.open, self.low = {}, {}

    @property
    def window(self):
        """In messages."""
        return self.width()

    def admit(self, attachment not None):
        """Delivery begins there."""
        self.open[attachment] = 0
        self.low[attachment] = None
        self.grant()

    def leave(self, attachment not None):
        """It is lost, or left."""
        self.open.pop(attachment, None)
        self.low.pop(attachment, None)

    def arrived(self, attachment not None, int64_t messages):
        """So much of its credit is used."""
        self.came(attachment, messages)

    cdef int came(self, object attachment, int64_t messages) except -1:
        cdef int64_t left
        credit = self.open.get(attachment)
        if credit is not None:
            left = <int64_t> credit - messages
            self.open[attachment] = left
            if 2 * left <= self.part():
                self.low.setdefault(attachment)
        return 0

    cpdef change(self, int64_t held, int64_t done=0):
        """The consumer holds so many more messages than before, or fewer; so many of these are done."""
        cdef Pace pace = self.pace
        if held > 0 and not self.held:
            pace.begin(self.now())
        self.held += held
        if done:
            pace.done(max(done - self.excused, 0), self.now())
        self.excused = max(min(self.excused - done, self.held), 0)
        engine_check(0 <= self.excused <= self.held, b"no more is excused than is held")
        if not self.held and pace.working:
            pace.pause(self.now())
        self.grant()

    cpdef ask(self):
        """A receive waits, and nothing is queued."""
        if self.excused < self.held:
            self.pace.done(self.held - self.excused, self.now())
            self.excused = self.held
        self.grant()

    cdef int64_t width(self) noexcept:
        return self.size or self.pace.window

    cdef int64_t part(self) noexcept:
        return max(self.width() // max(<int64_t> len(self.open), 1), 1)

    cdef int grant(self) except -1:
        cdef int64_t window, held, room, part, least, more, credit
        if not self.low:
            return 0
        window, held = self.width(), self.held - self.excused
        room = window - held
        if held and room < worth_granting(window):
            return 0
        part, least = self.part(), 0 if held else 1
        for attachment in list(self.low):
            credit = self.open[attachment]
            more = max(min(part, room), least) - credit
            if more > 0:
                credit += more
                self.open[attachment] = credit
                room -= more
                attachment.announced_window = None if self.size else window
                attachment.grant(more, 0)
            if 2 * credit > part:
                del self.low[attachment]
            elif room <= 0 and not least:
                return 0
        return 0
