# cython: language_level=3
"""Appends of a producer that are on their way to the disk, and what is acknowledged of them.

    append ──> Flight, in the producer's queue ──> durable: set_result(), for each of a group in one step of the loop
                                                       └──> the owner is told, and answers from the head: answered()

What is over is answered in the order in which it was sent, so a flight that is over waits for those before it.
"""
from engine._native.serve.groups cimport Appended

from engine.errors import EngineError


cdef class Flight:
    """One append: what is told of its end, with the methods of a future that appends use."""

    def __init__(self, owner, payload, double since, tell):
        """`tell(owner)` is called once it is over: it may not answer at once."""
        self.owner = owner
        self.payload = payload
        self.since = since
        self.tell = tell

    def done(self):
        """Whether it is over."""
        return self.over

    def cancelled(self):
        """Whether it was dropped, unanswered."""
        return self.dropped

    def cancel(self):
        """Drop it without an answer; False if it is over."""
        if self.over:
            return False
        self.over = self.dropped = True
        self.tell(self.owner)
        return True

    def set_result(self, places):
        """Its entries are durable at these places."""
        self.land(places, None)

    def set_exception(self, error):
        """It has failed."""
        self.land(None, error)

    def result(self):
        """The places of its entries."""
        return self.places

    def exception(self):
        """Why it has failed; None where it has not, or is not over."""
        return self.error

    cdef int land(self, list places, object error) except -1:
        if self.over:
            raise EngineError("an append ends once")
        self.over, self.places, self.error = True, places, error
        self.tell(self.owner)
        return 0


def answered(in_flight not None, list sequences not None, list offsets not None, list since not None):
    """Take what is durable off the head of a deque of flights and (future, payload, since), up to the first that is not
    a Flight, is not over, has failed, or was dropped. (messages, bytes) of what was taken.

    `sequences`, `offsets`: get the first sequence and offset of each entry. `since`: gets when each append began.
    """
    cdef Flight flight
    cdef Appended place
    cdef size_t messages = 0, size = 0
    while in_flight:
        head = in_flight[0]
        if type(head) is not Flight:
            break
        flight = head
        if not flight.over or flight.dropped or flight.error is not None:
            break
        in_flight.popleft()
        size += <size_t>len(flight.payload)
        since.append(flight.since)
        for place in flight.places:
            sequences.append(place.first_sequence)
            offsets.append(place.first_offset)
            messages += place.count
    return messages, size
