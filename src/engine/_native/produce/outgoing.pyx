# cython: language_level=3
"""What repeats with each entry that a producer sends: turns of the loop, frames, and receipts.

    the batcher has something ──> Turns: send_open(), pump() ──> Outgoing of each segment: transmit() ──> frames
    a frame of receipts ──> Outgoing: what was sent leaves from the head ──> Turns: open batches may be sent

Here is what is done for each message. Where something else happens (no attachment, a refusal, a transaction), a method
of the heir is called.
"""
from asyncio import get_running_loop
from collections import deque

from engine.limits import MIB

SEND_FRAME_BYTES = 1 * MIB
FLIGHTS_MAX = 2  # not answered; at this number, batches are left open (see the client's outbox)
WINDOW_MIN = 4 * MIB  # bytes that may always be in flight (see the client's window)
MEASURED_MIN = WINDOW_MIN // 16  # with less in flight nothing is measured: the window is far from full, and calls cost

cdef Py_ssize_t FRAME_BYTES = SEND_FRAME_BYTES
cdef Py_ssize_t FLIGHTS = FLIGHTS_MAX
cdef long long MEASURED = MEASURED_MIN


cdef class Queued:
    """Loop thread only."""

    def __init__(self):
        self.queue = deque()
        self.sent = deque()

    cpdef list next_frame(self, in_flight, credit, bint joint):
        """The head of the queue, at most a frame full and of one transaction, without what has run out of time.

        `joint`: of several transactions, or of none. `credit`: taken from; the frame ends with the entry that exceeds
        it.
        """
        cdef list entries = []
        cdef Py_ssize_t size = 0, own
        queue, first = self.queue, None
        while queue:
            entry = queue[0]
            own = len(entry.data)
            scope = entry.scope
            if entries:
                if size + own > FRAME_BYTES:
                    break
                if scope is not first and not (joint and scope is not None and first is not None):
                    break
            queue.popleft()
            if entry in in_flight:
                if not entries:
                    first = scope
                entries.append(entry)
                size += own
                if credit is not None and not credit.take(entry.count, own):
                    break
        return entries


cdef class Outgoing:
    """Loop thread only."""

    def __init__(self, owner, Queued backlog not None, header_of, receipt, str joint_feature not None):
        """`header_of(producer_id=, entries=)`: the header of a frame of entries. `receipt`: the type of what says that
        entries are stored. `joint_feature`: that of a broker that takes several transactions in a frame.
        """
        self.owner, self.backlog = owner, backlog
        self.header_of, self.receipt, self.joint_feature = header_of, receipt, joint_feature
        self.sends = True
        self.end = -1

    cpdef transmit(self):
        """Send what is queued, as far as the connection takes it; attach first where there is no attachment."""
        link, queue = self.link, self.backlog.queue
        if link is None:
            self.unattached()
            return
        if not self.sends or not queue:
            return
        connection, credit, in_flight = link.connection, self.credit, self.owner.in_flight
        window = in_flight.window
        sent = self.backlog.sent
        if not sent:
            self.sent_bytes = self.answered_bytes = 0
        while queue and connection.writable and (credit is None or credit.left):
            if sent and self.sent_bytes - self.answered_bytes > <long long>window.size:
                return  # receipts are under way, and the rest follows them
            entries = self.backlog.next_frame(in_flight, credit, self.joint_feature in connection.features)
            if entries:
                self.send_frame(connection, entries, window)
                if credit is not None:
                    in_flight.renew(entries)
                sent.extend(entries)

    cdef int send_frame(self, connection, list entries, window) except -1:
        cdef list payload = []
        cdef long long size = 0
        for entry in entries:
            size += <long long>entry.pending
            payload.append(entry.data)
        self.sent_bytes += size
        if window.measured is None and <long long>window.used >= MEASURED:
            window.send(entries[0], get_running_loop().time())
        header = self.header_of(producer_id=self.link.ident, entries=len(entries))
        if entries[0].scope is not None:
            header = self.in_transactions(connection, header, entries)
        connection.stream.send(header, payload)
        return 0

    def frame_received(self, header, payload):
        """Receipts, or what the segment's owner says else."""
        if isinstance(header, self.receipt):
            self.receive(header.sequences, header.offsets)
        else:
            self.other_received(header)

    # The entries of these sequences are stored at these offsets. They leave from the head, as they were sent.
    cdef int receive(self, list sequences, list offsets) except -1:
        cdef list entries = []
        cdef object sent = self.backlog.sent, owner = self.owner
        if owner.failure is not None:
            return 0
        for sequence in sequences:
            if not sent or sent[0].first_sequence != sequence:
                self.out_of_step(sequence)
                offsets = offsets[:len(entries)]
                break
            entry = sent.popleft()
            entries.append(entry)
            self.answered_bytes += <long long>entry.pending
        owner.in_flight.acknowledge(entries, offsets, self.end)
        owner.receipts_came()
        if not self.sends:
            self.answered()
        elif self.backlog.queue:
            self.transmit()
        return 0

    def unattached(self):
        """There is something to send, or to claim, perhaps, and no attachment; for heirs."""

    def in_transactions(self, connection, header, entries):
        """The header of a frame of entries of which the first is in a transaction; for heirs."""

    def other_received(self, header):
        """A frame that is no receipt; for heirs."""

    def out_of_step(self, sequence):
        """A receipt for an entry that is not the oldest one sent; for heirs."""

    def answered(self):
        """Receipts came while nothing may be sent; for heirs."""


cdef class Turns:
    """Loop thread only."""

    def __init__(self, loop, double max_delay, bint seals, dict senders not None):
        """`max_delay`: the longest time, in seconds, that an open batch waits for a flight to be answered."""
        self.loop, self.max_delay, self.seals, self.senders = loop, max_delay, seals, senders

    def opened(self):
        """The batcher has an open batch again."""
        if <Py_ssize_t>self.in_flight.flights >= FLIGHTS or self.pumping:
            if self.delay is None:
                self.delay = self.loop.call_later(self.max_delay, self.send_open)
        else:
            self.turn()

    def sealed(self):
        """The batcher has sealed entries again."""
        if not self.pumping:
            self.pumping = True
            self.loop.call_soon(self.pump_due)

    def receipts_came(self):
        """Receipts arrived: if a flight is free, open batches are sent, after the callers that were just woken have
        added their messages.
        """
        if <Py_ssize_t>self.in_flight.flights < FLIGHTS:
            self.turn()

    cdef int turn(self) except -1:
        if not self.turning:
            self.turning = True
            self.loop.call_soon(self.turn_over)
        return 0

    def turn_over(self):
        """The next turn has come: what is open is sent."""
        self.turning = False
        self.send_open()

    def pump_due(self):
        """The next turn has come: what is sealed is sent, if that was not done meanwhile."""
        if self.pumping:
            self.pump()

    cpdef send_open(self):
        """Close every open batch and send it."""
        if self.delay is not None:
            self.delay.cancel()
            self.delay = None
        upto = self.batcher.next_sequence  # before the batches close: a message taken meanwhile stays open
        self.batcher.seal_all()
        self.pump()
        self.in_flight.all_entered(upto)

    cpdef pump(self):
        """Queue sealed entries at their senders and send."""
        cdef dict touched = {}  # in order, so that a simulation repeats
        cdef Outgoing sender
        self.pumping = False
        entries = self.batcher.take()
        if not entries:
            return
        if self.seals:
            self.pack(entries)
        self.in_flight.enter(entries)
        if self.failure is not None:
            self.in_flight.fail(entries, self.failure)
            return
        for entry in entries:
            sender = self.senders[entry.segment_id]
            sender.backlog.queue.append(entry)
            touched[sender] = None
        for one in touched:
            (<Outgoing>one).transmit()

    def pack(self, entries):
        """Change the bytes of sealed entries, as by compression; for heirs."""
