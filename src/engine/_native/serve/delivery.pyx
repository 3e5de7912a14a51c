# cython: language_level=3
"""Blocks on their way from a segment to a consumer: what repeats with each block.

    durable ──► Waiters ──► BlockReader ──► LoneOutlet.pump() ──► send_block() ──► the connection
                                 ▲                 │                                   │
                                 └── wait ◄── no more to read                 Outgoing: the turn's bytes

What is decided on that way is decided by the heirs: limits, parts of entries, messages to skip, the end of a segment
in broker/delivery; what to do where too much is sent, in broker/pools. Plain Python for the way of a consumer that
reads alone, and for the consumers of a queue, is `tests/reference/delivery_reference.py`. Those that share a segment by
bucket are in `dispatch.pyx`.
"""
from asyncio import get_running_loop
from collections import OrderedDict

from engine import limits
from engine._native.format.heads import entry_heads, groups_in, head_of
from engine._native.serve.delays import has_delays
from engine.errors import EngineError

from engine._native.format.heads cimport Head
from engine._native.serve.blocks cimport Block
from engine._native.serve.cursors cimport Acked
from engine._native.serve.meters cimport Buckets, Tally
from engine._native.serve.readers cimport BlockReader, ReadTurns
from libc.stdint cimport int64_t

TURN_BYTES = 2 * limits.MIB  # sent to all consumers in one turn of the loop, and one block to each that does not wait
CROWDED_TURN_BYTES = 512 * limits.KIB  # the same while others wait for their turn
CROWDED_BLOCK_SIZE = 256 * limits.KIB
SMALL_CREDIT = 256  # messages: a consumer with so few reads blocks of SMALL_READ_SIZE
SMALL_READ_SIZE = 64 * limits.KIB
TURNS_PER_BLOCK = 4  # of each consumer of a queue, in a block with many entries

cdef int64_t FEW = SMALL_CREDIT, LITTLE = SMALL_READ_SIZE
cdef int64_t WIDE = limits.ENTRY_MESSAGES_MAX
cdef int64_t TURN = TURN_BYTES, CROWDED_TURN = CROWDED_TURN_BYTES
cdef Py_ssize_t TURNS = TURNS_PER_BLOCK


cdef int64_t size_of(object payload) except -1:
    cdef int64_t size = 0
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return len(payload)
    for part in payload:
        size += len(part)
    return size


cdef class Outgoing:
    """Loop thread only."""

    def __init__(self, int64_t limit, ReadTurns reads not None):
        """`limit` 0: none. `reads`: from files."""
        self.limit = limit
        self.reads = reads
        self.waiting = OrderedDict()

    @property
    def block_size(self):
        """The size of the next block to a consumer; one entry may be larger."""
        cdef ReadTurns reads = self.reads
        if self.timer is not None or self.used + reads.bytes > self.limit > 0:
            return limits.SCARCE_BLOCK_SIZE
        return CROWDED_BLOCK_SIZE if len(self.waiting) > 1 or len(reads.queue) else limits.READ_BLOCK_SIZE

    @property
    def crowded(self):
        """Whether this turn's budget is spent, or connections wait for theirs."""
        return self.spent > self.budget() or len(self.waiting) > 0

    def sent(self, connection, payload):
        """A payload was handed to the connection's stream."""
        self.spent += size_of(payload)
        self.note(connection)
        self.begin_turn()
        if self.spent > self.budget():
            self.queue(connection)

    def queue(self, connection):
        """Let it go on in a later turn. One that waits already keeps its place."""
        connection.wait_turn()
        self.waiting.setdefault(connection)
        self.begin_turn()

    def note(self, connection):
        """Count the connection's unsent bytes anew; hold it back if the pool is full and they grew."""
        cdef int64_t unsent = connection.stream.unsent_bytes, noted = connection.noted
        if unsent > noted or (self.timer is None and unsent != noted):
            self.count(connection, unsent)

    cdef int64_t budget(self) except -1:
        return CROWDED_TURN if len(self.waiting) else TURN

    cdef int begin_turn(self) except -1:
        if not self.in_turn:
            self.in_turn = True
            get_running_loop().call_soon(self._next_turn)
        return 0

    def _next_turn(self):
        cdef Py_ssize_t left = len(self.waiting)
        self.spent = 0
        try:
            while left and self.spent <= self.budget():
                left -= 1
                connection, _ = self.waiting.popitem(last=False)
                connection.take_turn()
        finally:  # those that wait have their turns also where one has failed
            self.in_turn = False
            if len(self.waiting) or self.spent > 0:
                self.begin_turn()

    def count(self, connection, unsent):
        """Its unsent bytes are others than they were; for heirs."""
        raise NotImplementedError


cdef class DeliveryTimes:
    """Loop thread only."""

    def __init__(self, clock not None, Buckets durable_to_delivered_s not None):
        self.clock = clock
        self.now = clock.monotonic
        self.durable_to_delivered_s = durable_to_delivered_s

    def delivered(self, segment, data):
        """A block is sent for the first time; one that begins with delayed messages is not counted.

        The segment knows when its newest commits became durable. An older block counts with the time since its
        messages were received.
        """
        cdef Head head = head_of(data if isinstance(data, (bytes, bytearray, memoryview)) else data[0])
        cdef double age
        if head is None or head.delayed:
            return
        since = segment.marks.since(head.first)
        if since is None:
            age = (self.clock.time_ms() - head.publish_time_ms) / 1000.0
        else:
            age = <double>self.now() - <double>since
        self.durable_to_delivered_s.count(age if age > 0.0 else 0.0)


cdef class Outlet:
    """Loop thread only."""

    def __init__(self, connection, ident, hosted, subscription, header, Tally out not None, Tally sent not None):
        """`subscription`: None for a reader without one. `header`: the type of a block's."""
        self.connection = connection
        self.ident = ident
        self.hosted = hosted
        self.subscription = subscription
        self.header = header
        self.out = out
        self.sent = sent

    @property
    def ready(self):
        """Whether it may be sent another block now."""
        return self.is_ready()

    cdef bint is_ready(self) except -1:
        return self.messages_credit > 0 and self.bytes_credit > 0 and not self.closed and self.connection.writable

    cpdef bint has_room_for(self, int64_t messages) noexcept:
        """Whether so many may be sent to it at once."""
        return messages <= self.messages_credit or self.may_exceed(messages)

    cpdef bint may_exceed(self, int64_t messages) noexcept:
        """Whether so many may be sent without credit for all of them: a fast consumer gets whole blocks."""
        return self.window >= WIDE or (self.paced and 4 * messages <= self.window)

    def send_block(self, data, salt, int64_t messages, skip=None, redelivered=None):
        """Send whole entries. `messages`: those not skipped. `skip`, `redelivered`: ranges [first, last(, count)]."""
        self.send(data, salt, messages, skip, redelivered)

    cdef int send(self, object data, object salt, int64_t messages, object skip, object redelivered) except -1:
        cdef int64_t size = size_of(data)
        hosted = self.hosted
        self.messages_credit -= messages
        self.bytes_credit -= size
        self.out.add(messages, size)
        self.sent.add(messages, size)
        hosted.sent_messages += messages
        hosted.sent_bytes += size
        if not redelivered:
            hosted.environment.latency.delivered(hosted.segment, data)
        header = self.header(
            consumer_id=self.ident, segment_id=hosted.name.segment_id, salt=salt, messages=messages,
            skip=skip or None, redelivered=redelivered or None,
        )
        self.connection.send(header, data)
        return 0


cdef class LoneOutlet(Outlet):
    """Loop thread only."""

    def read_with(self, BlockReader reader not None, int64_t start):
        """What it reads with, and from where on; once, before pump()."""
        self.reader = reader
        self.next_offset = start
        self.acked = None if self.subscription is None else self.subscription.cursor

    def step(self, block):
        """A read or a wait has ended."""
        if self.closed:
            return
        if block is None:
            self.pump()
        else:
            self.block_read(block)

    def pump(self):
        """Send blocks until credit, the stream's room or the durable data run out."""
        if self.reader.pending is not None or self.pumping:
            return
        if self.waits_for is not None and self.is_waiting():
            return
        self.pumping = True
        try:
            self.send_all()
        finally:
            self.pumping = False

    cdef int send_all(self) except -1:
        cdef BlockReader reader = self.reader
        cdef Block block
        cdef Acked acked = self.acked
        cdef int64_t size
        while self.is_ready():
            if acked is not None and (self.next_offset < acked.position or acked.above):
                self.next_offset = self.subscription.due_from(self.next_offset)
            size = self.connection.block_size if self.messages_credit > FEW else LITTLE
            try:
                block = reader.next_block(self.next_offset, min(self.bytes_credit, size))
            except EngineError as e:
                self.close(e)
                return 0
            if block is None:
                break
            self.send_read(block)
        if reader.pending is None:
            self.at_end()
        return 0

    # All durable messages are sent, or the consumer takes no more now: wait for more, or report the end.
    cdef int at_end(self) except -1:
        segment = self.hosted.segment
        if segment.gaps.runs:
            self.next_offset = segment.gaps.skip(self.next_offset)
        if segment.sealed and self.next_offset >= <int64_t>segment.next_offset:
            self.end_reached()
        elif self.next_offset >= <int64_t>segment.durable_offset:
            self.reader.wait_at(self.next_offset)
        return 0

    def send_or_part(self, Block block not None):
        """Send a block that was read, or as much of it as there is credit for."""
        self.send_read(block)

    cdef int send_read(self, Block block) except -1:
        cdef int64_t messages = block.messages
        cdef list skip = None
        if not self.all_wanted(block):
            skip = self.skipped(block)
            for first, last in skip:
                messages -= <int64_t>last + 1 - <int64_t>first
        if messages <= self.messages_credit or self.paced or self.window >= WIDE:
            self.next_offset = block.next_offset
            self.send(block.joined(), block.salt, messages, skip, None)
        else:
            self.send_part(block, skip or [])
        return 0

    # Whether no message of a block is to be skipped, as far as that is seen at a glance.
    cdef bint all_wanted(self, Block block) except -1:
        cdef int64_t first = block.first_offset
        if first < self.part_end or self.hosted.transactions is not None or self.hosted.segment.gaps.runs:
            return False
        if self.acked is None:
            return True
        return self.acked.position <= first and not self.acked.above and not self.subscription.pending.offsets

    # What an heir does

    def block_read(self, block):
        """A block that was not in memory is there."""
        raise NotImplementedError

    def is_waiting(self):
        """Whether something that it waits for is not decided."""
        raise NotImplementedError

    def end_reached(self):
        """It has all of a sealed segment."""
        raise NotImplementedError

    def skipped(self, block):
        """Ranges [first, last] of a block that the consumer must not get, or was sent before."""
        raise NotImplementedError

    def send_part(self, block, list skip):
        """Send as much of a block as there is credit for."""
        raise NotImplementedError


cdef class QueueOutlets:
    """Loop thread only."""

    def __init__(self, subscription, reader_of, *, bint costly):
        """`reader_of(step)`: the reader."""
        self.subscription = subscription
        self.hosted = subscription.hosted
        self.consumers = []
        self.acked = subscription.cursor
        self.counts = subscription.redeliveries
        self.next_offset = self.asked = subscription.start
        self.reader = reader_of(self.step)
        self.costly = costly

    def pump(self):
        """Deal until credit, room or durable messages run out."""
        if self.pumping:
            return
        if self.together is not None:
            self.release()
        if self.replay and self.reader.waiting:
            self.reader.stop()
        self.pumping = True
        try:
            self.deal_all()
        except EngineError as e:
            self.close(e)
        finally:
            self.pumping = False
        if self.costly:
            self.check_shares()

    def step(self, block):
        """A read or a wait has ended. A block from disk is dealt if its first offset is still the first due."""
        if block is not None and self.ready() and self.asked == self.first_due():
            self.pumping = True
            try:
                self.deal(block, self.asked)
            except EngineError as e:
                self.close(e)
            finally:
                self.pumping = False
        self.pump()

    cpdef list ready(self):
        """The consumers that may be sent messages: those with credit, of the best priority among them."""
        cdef Outlet outlet
        cdef list found = []
        if self.together is not None and self.together.full:
            return found
        for outlet in self.consumers:
            if outlet.is_ready():
                if found and outlet.priority != (<Outlet>found[0]).priority:
                    break
                found.append(outlet)
        return found

    # The offset to read at: messages due again go first, acknowledged ones are not read.
    cdef int64_t first_due(self) except -1:
        if self.replay:
            return self.replay.min()
        if self.next_offset < self.acked_end():
            self.next_offset = self.subscription.due_from(self.next_offset)
        return self.next_offset

    # The end of what is acknowledged.
    cdef int64_t acked_end(self) except -1:
        cdef int64_t position = self.acked.position
        above = self.acked.above
        return max(position, <int64_t>above.max() + 1) if above else position

    cdef int deal_all(self) except -1:
        cdef BlockReader reader = self.reader
        cdef Outlet outlet
        cdef Block block
        cdef list ready
        cdef int64_t size, messages, room
        gaps = self.hosted.segment.gaps
        if gaps.runs:
            self.next_offset = gaps.skip(self.next_offset)
        while reader.pending is None:
            ready = self.ready()
            if not ready:
                break
            messages = room = 0
            for outlet in ready:
                messages, room = max(messages, outlet.messages_credit), max(room, outlet.bytes_credit)
            if self.replay or messages <= FEW:
                size = LITTLE
            else:
                size = (<Outlet>ready[0]).connection.block_size
            self.asked = self.first_due()
            block = reader.next_block(self.asked, max(min(size, room), 1))
            if block is None:
                break
            self.deal(block, self.asked)
        if reader.pending is None and not self.replay:
            self.at_end()
        return 0

    cdef int at_end(self) except -1:
        segment = self.hosted.segment
        if segment.sealed:
            self.subscription.check_drained()
        elif self.next_offset >= <int64_t>segment.durable_offset:
            self.reader.wait_at(self.next_offset)
        return 0

    cpdef deal(self, Block block, int64_t start):
        """Deal the block's entries, beginning with the one that contains `start`."""
        if start < <int64_t>block.first_offset:  # retention has deleted what was before, or it is a gap
            self.replay.remove_range(start, block.first_offset)
            start = block.first_offset
            self.next_offset = max(self.next_offset, start)
        groups = groups_in(block.joined())
        if groups:
            self.deal_grouped(block, groups)
        elif len(self.consumers) != 1 or not self.deal_whole(block, start):
            self.deal_in_turns(block)

    # Send a new block whole to the only consumer, if no message in it has to be skipped. Whether it was sent.
    cdef bint deal_whole(self, Block block, int64_t start) except -1:
        cdef Outlet outlet = self.consumers[0]
        cdef int64_t stop = block.next_offset
        if start != self.next_offset or start != <int64_t>block.first_offset or self.replay:
            return False
        if not outlet.has_room_for(block.messages) or has_delays(block.joined()) or not self.all_free(start, stop):
            return False
        self.next_offset = stop
        self.send_new(outlet, block.joined(), block, start, stop)
        return True

    # Deal a block entry by entry.
    cdef int deal_in_turns(self, Block block) except -1:
        cdef list heads = entry_heads(block.joined()), ready
        cdef Py_ssize_t at = 0, share = max(1, len(heads) // (TURNS * len(self.consumers)))
        while at < len(heads):
            ready = self.ready()
            if not ready:
                break
            at = self.deal_turn(block, heads, at, share, ready)
        return 0

    cpdef Py_ssize_t deal_turn(self, Block block, list heads, Py_ssize_t at, Py_ssize_t share, list ready) except -1:
        """One consumer's turn: up to `share` consecutive entries. The index at which the next turn begins.

        `heads`: entries of the block, `at` the first that is not dealt. `ready`: those that take part, at least one.
        """
        cdef Head entry = heads[at], last = heads[min(at + share, len(heads)) - 1]
        cdef Outlet outlet = None
        cdef list taken = []
        cdef int64_t room = 0, count, free_end = last.last + 1  # below it no message of this turn is taken or hidden
        cdef bint whole = True
        if self.replay or free_end <= self.next_offset:
            free_end = 0
        elif not self.all_free(max(<int64_t>entry.first, self.next_offset), free_end):
            free_end = 0
        while at < len(heads) and len(taken) < share and (outlet is None or room > 0):
            entry = heads[at]
            due, count = None, entry.last + 1 - entry.first  # None: all, for the first time
            if entry.delayed or <int64_t>entry.first < self.next_offset or <int64_t>entry.last >= free_end:
                due = self.due(block, entry)
                count = len(due)
            if count == 0:
                if outlet is not None:
                    break
                self.pass_over(entry)
                at += 1
                continue
            if outlet is None:
                outlet = self.next_of(ready)
                room = outlet.messages_credit
            if count > room and not outlet.may_exceed(count):
                due = self.part(block, entry, outlet, room)
            taken.append((entry, due))
            whole = whole and due is None
            if due is not None and len(due) < count:
                break  # the rest of it goes to the next consumer
            self.pass_over(entry)
            room -= count
            at += 1
        if outlet is None:
            return at
        if whole:
            entry, last = heads[at - len(taken)], heads[at - 1]
            self.send_new(outlet, block.joined()[entry.start:last.stop], block, entry.first, last.last + 1)
        else:
            self.send_taken(outlet, block, taken)
        return at

    cpdef object next_of(self, list ready):
        """The consumer whose turn is next."""
        self.turn += 1
        return ready[self.turn % len(ready)]

    cpdef int pass_over(self, Head entry) except -1:
        """All of the entry is dealt or not wanted: `next_offset` moves past it."""
        if <int64_t>entry.first <= self.next_offset <= <int64_t>entry.last:
            self.next_offset = entry.last + 1
        return 0

    # Whether no message of [start, stop) is acknowledged, in an open transaction or hidden.
    cdef bint all_free(self, int64_t start, int64_t stop) except -1:
        pending = self.subscription.pending.offsets
        if self.acked_end() > start or (pending and <int64_t>pending.max() >= start):
            if self.subscription.free(start, stop) != [(start, stop)]:
                return False
        if self.hosted.transactions is None and not self.hosted.segment.gaps.runs:
            return True
        return self.hosted.hidden(start, stop) is None

    # Send whole entries with the offsets [start, stop), none of which was dealt before.
    cdef int send_new(self, Outlet outlet, object data, Block block, int64_t start, int64_t stop) except -1:
        outlet.unacknowledged.add_range(start, stop)
        redelivered = self.counts.ranges(start, stop - 1) if self.counts.planes else None
        return outlet.send(data, block.salt, stop - start, None, redelivered)

    # What an heir does

    def release(self):
        """Groups that were kept back may be dealt: they are due again."""
        raise NotImplementedError

    def deal_grouped(self, block, groups):
        """Deal a block with entries of which all of a group go to one consumer."""
        raise NotImplementedError

    def due(self, block, entry):
        """The messages of an entry that may be delivered now."""
        raise NotImplementedError

    def part(self, block, entry, consumer, room):
        """The messages of an entry that a consumer gets which has credit for `room` of those that are due."""
        raise NotImplementedError

    def send_taken(self, consumer, block, taken):
        """Send (entry, messages of it) each; None: all of them."""
        raise NotImplementedError

    def check_shares(self):
        """Check what never changes."""
        raise NotImplementedError

    def close(self, error):
        """Close all consumers with an error."""
        raise NotImplementedError
