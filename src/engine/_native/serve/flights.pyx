# cython: language_level=3
"""Appends of a producer that are on their way to the disk, and what is acknowledged of them.

    append ──> Flight, in the producer's queue ──> durable: set_result(), for each of a group in one step of the loop
                                                       └──> the owner is told, and answers from the head: answered()

What is over is answered in the order in which it was sent, so a flight that is over waits for those before it.
"""
from collections import deque

from engine.errors import EngineError

from engine._native.serve.groups cimport Appended
from engine._native.serve.meters cimport Buckets, Tally, Usage


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
    return take_answered(in_flight, sequences, offsets, since)


cdef tuple take_answered(object in_flight, list sequences, list offsets, list since):
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


cdef class Sender:
    """A producer of a connection: plain frames are appended, and receipts follow in the order of sending.

    Its heir has what is in a transaction, limited, refused, or to be told otherwise.
    """

    def __init__(self, connection, ident, hosted, name):
        environment = hosted.environment
        self.connection = connection
        self.ident = ident
        self.hosted = hosted
        self.name = name
        self.in_flight = deque()
        self.sequences, self.offsets = [], []
        self.latency = environment.latency.publish_to_durable_s
        self.publish = environment.publish
        self.incoming = hosted.incoming

    def send(self, payload, transaction=None, attempt=None):
        """Append the entries of one frame. `transaction`, `attempt`: of all of them."""
        cdef Flight flight
        if (transaction is None and self.held is None and self.limited is None and not self.refusing
                and not self.hosted.encrypted_only):
            flight = self.begin(payload)
            if flight.over:
                self.ended_at_once(flight)
        else:
            self.send_otherwise(payload, transaction, attempt)

    def append_plain(self, payload):
        """Append a frame that is in no transaction, where nothing is held. Its flight."""
        return self.begin(payload)

    cdef Flight begin(self, object payload):
        cdef Flight flight = Flight.__new__(Flight)
        hosted = self.hosted
        environment = hosted.environment
        self.publish.in_flight += <Py_ssize_t>len(payload)
        if self.publish.in_flight > self.publish.limit:
            self.publish.passed(self.connection.pressure)
        flight.owner = self
        flight.payload = payload
        flight.since = environment.latency.now()
        flight.tell = environment.landings.add
        self.in_flight.append(flight)
        hosted.segment.append_for(flight, payload, self.name, hosted.term)
        return flight

    def answer(self):
        """Answer appends that have ended, in the order of sending.

        Appends that became durable together have all ended when the first of them is answered.
        """
        self.landed()

    cdef int landed(self) except -1:
        cdef list since = []
        cdef double now = self.hosted.environment.latency.now(), begun
        while self.in_flight:
            messages, size = take_answered(self.in_flight, self.sequences, self.offsets, since)
            if size:
                self.publish.free(size)
                self.count(messages, size)
            if not self.in_flight:
                break
            head = self.in_flight[0]
            if type(head) is Flight and not (<Flight>head).over:
                break
            if not self.answer_head(head, since):
                break
        for begun in since:
            self.latency.count(now - begun)
        self.send_receipts()
        if self.ending is not None and not self.in_flight:
            self.close(self.ending)
        return 0

    def count(self, messages, size):
        """Count what is durable."""
        self.incoming.add(messages, size)
        if self.limited is not None:
            self.limited.stored(messages, size)

    def send_receipts(self):
        """One receipt for all entries that became durable together."""
        cdef list sequences = self.sequences, offsets = self.offsets
        if sequences and not self.closed:
            self.sequences, self.offsets = [], []
            if self.limited is None or not self.limited.withholds(sequences, offsets):
                self.send_receipt(sequences, offsets)

    # What an heir does

    def send_otherwise(self, payload, transaction, attempt):
        """Append a frame that is in a transaction, or that something is in the way of."""
        raise NotImplementedError

    def ended_at_once(self, append):
        """An append has ended before it was under way."""
        raise NotImplementedError

    def answer_head(self, head, list since):
        """Answer an append that has failed, or that is no Flight; False if it has not ended."""
        raise NotImplementedError

    def send_receipt(self, list sequences, list offsets):
        """Of entries that are durable, in their order."""
        raise NotImplementedError

    def close(self, error=None):
        """End the attachment; an error is sent to the client."""
        raise NotImplementedError


cdef class SendHandler:
    """The handler of SEND: the producer that it names appends its entries."""

    def __init__(self, unattached):
        """`unattached(connection, header, payload)`: where the connection has no such producer."""
        self.unattached = unattached

    def __call__(self, connection, header, payload):
        producer = connection.producers.get(header.producer_id)
        if producer is None:
            self.unattached(connection, header, payload)
        elif header.several:
            producer.send_several(payload)
        else:
            producer.send(payload, header.transaction, header.attempt)
