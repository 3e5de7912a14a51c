# cython: language_level=3, auto_pickle=False
"""The queue between a connection that delivers entries and a user who receives messages.

    push()  -->  items: | popped | current | waiting, closed | waiting, closed |   -->  pop_message(), pop_batch()
                                  ^ head, front                                          |
    broker  <----------------------- take_credit(): messages and bytes popped  <---------+

*Bounded by credit.* The queue itself refuses nothing. The broker stops sending when the messages or bytes it was
granted are used up; what is popped (or left out) becomes credit, which the attachment takes by take_credit() and grants
again. Messages are credited as they are popped, bytes by whole entries with the last message of each, because an
entry's memory is only freed as a whole. Each slice carries the bytes that are freed with it as its `weight`.

*Memory.* An entry keeps the received buffer alive (its Lease); slices and messages keep the entry. Compressed entries
wait closed, as received, and are decompressed when their turn comes; between calls only the entry at the head stays
open. on_open() reports those bytes to the client's memory budget, which may call close_front() to free them.

*Popping.* A batch is cut from the front in three steps: collect the slices without changing anything (the decompressor
may raise), then count them as popped, then return. Single messages come from `current`, the first slice as a delivery
of its own: pop_message() only moves `index`, and settle() accounts for those messages later, in one step, before
any other call looks at the queue.

*Threads.* Every change is made between enter() and leave(), under the lock. Only pop_message() goes without while
`busy` is clear: no other thread can run in its few lines, as making a Message never runs the garbage collector.

*Wake-ups* are not the queue's: it neither blocks nor wakes. push() returns how many messages it added, and the
receiver that called it wakes its own waiters.
"""
cimport cython
from engine._native.consume.batch cimport MessageBatch, batch_of
from engine._native.consume.bucket_marks cimport BucketMarks
from engine._native.format.entry cimport Entry
from engine._native.consume.message cimport Message, Origin, Slice, message_at, new_origin, parts_outside, whole
from engine._native.format.offsets cimport overlap, ranges_of
from engine._native.format.invariants cimport engine_check
from engine._native.consume.opening cimport close_slices, open_next, open_slice, opened_bytes
from libc.stdint cimport uint32_t, uint64_t

from engine.limits import RECEIVE_QUEUE_BYTES

cdef enum:
    COMPACT_ITEMS = 1024

cdef object OFFSET_MAX = 1 << 63
cdef Py_ssize_t OPENED_MAX = RECEIVE_QUEUE_BYTES


@cython.final
cdef class EntryQueue:
    """Entries in the order they arrived, popped by message or by batch.

    positions: {segment: next offset} delivered before, in a shared segment per bucket (model/positions.py). Any thread
    may call any method at any time. decode(bytes) makes the values of messages, None leaves them bytes.
    decompress(codec, body, raw_size) opens a compressed entry when its turn comes, on one thread at a time;
    on_open(queue, bytes) is called with the size of what was decompressed.
    """

    def __init__(self, str topic not None, make_id, positions=None, decode=None, decompress=None, on_open=None):
        self.topic = topic
        self.decompress, self.on_open = decompress, on_open
        self.decode = decode
        self.make_id = make_id
        self.items = []
        self.delivered = dict(positions or {})
        self.credit = {}

    def push(self, entries, skip=None, redelivered=None, uint64_t start_offset=0, BucketMarks marks=None):
        """Append decoded entries, without the messages below start_offset or in the inclusive offset ranges of `skip`.

        redelivered: (first offset, last offset, count), inclusive. Both lists are about these entries alone. marks: of
        the one segment that all entries belong to; messages below a bucket's acknowledged position are left out too.
        Returns how many messages were added. Messages left out by start_offset alone, and the bytes of an entry that is
        left out as a whole, count as popped for take_credit(); messages in `skip` do not: no credit was spent on them.
        Raises UnsupportedError for a compressed entry without `decompress`.
        """
        cdef Entry entry
        cdef Py_ssize_t added = 0
        cdef uint64_t start = start_offset, place
        cdef uint32_t bucket
        skip = sorted(ranges_of(skip, 2, "skip")) if skip else ()
        redelivered = tuple(ranges_of(redelivered, 3, "redelivered")) if redelivered else None
        for entry in entries:
            if self.decompress is None and entry.failure is None:
                entry.open_body(None)
            place = entry.segment_id
            if marks is not None:
                bucket = marks.bucket_of(entry)
                marks.marks[bucket].arrived = True
                start, place = max(start_offset, marks.marks[bucket].acknowledged), marks.key_of(bucket)
            self.enter()
            try:
                added += self.push_entry(entry, skip, redelivered, start, place)
            finally:
                self.leave()
        return added

    cdef void enter(self) noexcept:
        self.lock.acquire()
        self.busy = True

    cdef void leave(self) noexcept:
        self.busy = False
        self.lock.release()

    cdef Py_ssize_t push_entry(
        self, Entry entry, object skip, object redelivered, uint64_t start_offset, uint64_t place
    ) except -1:
        cdef Py_ssize_t end = len(self.items), added
        cdef uint32_t below = 0
        engine_check(self.busy, b"a queue is changed while its lock is held")
        if entry.first_offset < start_offset:
            below = min(<uint64_t> entry.count, start_offset - entry.first_offset)
        added = parts_outside(self.items, skip, entry, below, entry.count, redelivered, place)
        below -= overlap(skip, entry.first_offset, entry.first_offset + below)
        if not added:
            self.give_credit(entry.segment_id, below, entry.size)
            return 0
        if self.head == end:
            self.front = (<Slice> self.items[end]).start
        (<Slice> self.items[len(self.items) - 1]).weight = entry.size
        self.messages += added
        self.bytes += entry.size
        if below:
            self.give_credit(entry.segment_id, below, 0)
        return added

    @property
    def received(self):
        """Messages popped since the queue was made."""
        return self.popped + (0 if self.current is None else self.index - self.front)

    def pop_message(self):
        """The next message, or None. Raises CorruptionError when it is in a bad entry; see damaged()."""
        cdef Message message
        if self.busy or self.current is None or self.index + 1 == self.current.stop:
            return self.pop_carefully()
        # No other thread can run in between, so this needs no lock. Invariant: the garbage collector does not track
        # messages, so making one never runs it. Checked by _check_unseen() when message.pyx loads.
        message = message_at(self.current, self.index)
        self.index += 1
        self.messages -= 1
        return message

    cdef Message pop_carefully(self):
        cdef Message message = None
        self.enter()
        try:
            if self.current is not None or self.begin():
                message = message_at(self.current, self.index)
                self.index += 1
                self.messages -= 1
                if self.index == self.current.stop:
                    self.settle()
                    self.current = None
        finally:
            self.leave()
        return message

    cdef bint begin(self) except -1:
        cdef Slice slice
        cdef Origin origin
        if self.head == len(self.items):
            return False
        slice = self.items[self.head]
        if open_slice(slice, self.decompress) and self.on_open is not None:
            self.on_open(self, slice.entry.opens_to())
        origin = new_origin(self.topic, self.make_id, self.decode, self.delivered.copy())
        self.current = slice.part(self.front, slice.stop, origin)
        self.index = self.front
        return True

    cdef int settle(self) except -1:
        engine_check(self.busy, b"a queue is changed while its lock is held")
        if self.current is not None:
            self.advance(self.index)
        return 0

    cdef int advance(self, uint32_t index) except -1:
        cdef Slice slice = self.items[self.head]
        cdef Entry entry = slice.entry
        cdef Py_ssize_t popped = index - self.front, released = 0
        engine_check(self.busy, b"a queue is changed while its lock is held")
        self.front = index
        self.popped += popped
        if popped:
            self.delivered[slice.place] = entry.first_offset + index
        if index == slice.stop:
            self.items[self.head] = None
            self.head += 1
            if self.head < len(self.items):
                self.front = (<Slice> self.items[self.head]).start
            released = slice.weight
            self.bytes -= released
            self.received_bytes += released
            if self.head >= COMPACT_ITEMS and 2 * self.head >= len(self.items):
                del self.items[: self.head]
                self.head = 0
        if popped or released:
            self.give_credit(entry.segment_id, popped, released)
        return 0

    cdef int give_credit(self, uint64_t segment_id, Py_ssize_t messages, Py_ssize_t bytes) except -1:
        messages_before, bytes_before = self.credit.get(segment_id, (0, 0))
        self.credit[segment_id] = (messages_before + messages, bytes_before + bytes)
        return 0

    def pop_batch(self, Py_ssize_t max_messages, Py_ssize_t max_bytes=-1):
        """Up to max_messages as a MessageBatch, empty when nothing waits.

        max_bytes bounds the keys and values together (-1: no bound), except that one message is always returned. The
        compressed entries of one batch decompress to 32 MiB at most, except that one entry is always opened. Raises
        CorruptionError when the batch would begin in a bad entry.
        """
        self.enter()
        try:
            return self.take_batch(max_messages, max_bytes)
        finally:
            self.leave()

    # Collect first, then count as popped: decompress() and on_open() may raise, and then nothing has changed.
    cdef MessageBatch take_batch(self, Py_ssize_t max_messages, Py_ssize_t max_bytes):
        cdef Origin origin
        cdef Slice slice
        cdef list parts = [], items
        cdef Py_ssize_t count = 0, taken, room = OPENED_MAX, at, end
        cdef uint32_t start
        self.settle()
        self.current = None
        origin = new_origin(self.topic, self.make_id, self.decode, self.delivered.copy())
        items, at, start = self.items, self.head, self.front
        end = len(items)
        while at < end and count < max_messages:
            slice = items[at]
            if not slice.entry.opened or slice.entry.opens_to():
                room -= slice.entry.opens_to()
                if not open_next(slice, self.decompress, count, room):
                    break
            taken = slice.fitting(start, max_messages - count, max_bytes)
            if taken == 0 and count == 0:
                taken = 1
            if taken == 0:
                break
            if max_bytes >= 0:
                max_bytes -= slice.bytes_before(start + taken) - slice.bytes_before(start)
                max_bytes = max(max_bytes, 0)
            parts.append(slice.part(start, start + taken, origin))
            count += taken
            start += taken
            if start == slice.stop:
                at += 1
                start = (<Slice> items[at]).start if at < end else 0
        if self.on_open is not None and at < end and opened_bytes(items[at]):
            self.on_open(self, opened_bytes(items[at]))
        self.messages -= count
        for slice in parts:
            self.advance(slice.stop)
        return batch_of(origin, parts, count)

    def damaged(self, bint drop=False, bint closed=False):
        """(entry, first offset, last offset) where a bad entry comes next, else None. drop: pop these messages.

        closed: the next one, which pop_message() could not decrypt, counts as bad.
        """
        cdef Slice slice
        cdef uint32_t start
        self.enter()
        try:
            self.settle()
            if self.head == len(self.items):
                return None
            slice, start = self.items[self.head], self.front
            if slice.entry.failure is None and not closed:
                return None
            if drop:
                self.messages -= slice.stop - start
                self.advance(slice.stop)
                self.popped -= slice.stop - start
                self.received_bytes -= slice.weight
        finally:
            self.leave()
        return slice.entry, slice.entry.first_offset + start, slice.entry.first_offset + slice.stop - 1

    def close_front(self):
        """Free what was decompressed; it is decompressed again in its turn. No effect while another thread is busy."""
        if self.busy:
            return
        self.enter()
        try:
            self.settle()
            self.current = None
            close_slices(self.items, self.head)
        finally:
            self.leave()

    @property
    def opened(self):
        """Bytes of the decompressed entry at the front; 0 while another thread is busy."""
        return 0 if self.busy or self.head == len(self.items) else opened_bytes(self.items[self.head])

    def take_credit(self):
        """{segment: (messages, bytes)} popped since the last call: the credit to grant the broker again.

        The bytes are those of whole entries, counted when the last message of one is popped.
        """
        self.enter()
        try:
            self.settle()
            taken, self.credit = self.credit, {}
        finally:
            self.leave()
        return taken

    def drop(self, uint64_t segment_id):
        """Drop the waiting messages of one segment, and its credit: its attachment has ended. Returns their number."""
        cdef Py_ssize_t before
        self.enter()
        try:
            before = self.messages
            self.take_segment(segment_id)
            self.credit.pop(segment_id, None)
            return before - self.messages
        finally:
            self.leave()

    cdef list take_segment(self, uint64_t segment_id):
        cdef Slice slice, rest
        cdef list waiting, taken
        self.settle()
        self.current = None
        waiting = self.items[self.head :]
        taken = [slice for slice in waiting if slice.entry.segment_id == segment_id]
        if taken and taken[0] is waiting[0]:  # without the messages that were popped
            slice = waiting[0]
            taken[0] = rest = whole(slice.entry, self.front, slice.stop, slice.redelivered, slice.place)
            rest.weight = slice.weight
        self.items, self.head = [slice for slice in waiting if slice.entry.segment_id != segment_id], 0
        self.messages = self.bytes = 0
        if self.items and self.items[0] is not waiting[0]:
            self.front = (<Slice> self.items[0]).start
        for slice in self.items:
            self.messages += slice.stop - (slice.start if self.messages else self.front)
            self.bytes += slice.weight
        return taken

    def move(self, uint64_t segment_id, EntryQueue other not None):
        """Move the waiting messages of one segment to the end of another queue. Returns their number."""
        cdef Py_ssize_t count = 0
        cdef Slice slice
        cdef list taken
        self.enter()
        try:
            taken = self.take_segment(segment_id)
        finally:
            self.leave()
        other.enter()
        try:
            for slice in taken:
                if other.head == len(other.items):
                    other.front = slice.start
                other.items.append(slice)
                other.messages += slice.stop - slice.start
                other.bytes += slice.weight
                count += slice.stop - slice.start
        finally:
            other.leave()
        return count

    def set_make_id(self, make_id):
        """Make the ids of messages popped from now on by `make_id`."""
        self.enter()
        try:
            self.settle()
            self.current, self.make_id = None, make_id
        finally:
            self.leave()

    def forget_positions(self, upto):
        """Leave a segment (or bucket) out of positions until more of it is delivered, if it is not above `upto`."""
        self.enter()
        try:
            self.settle()
            for place, position in upto.items():
                if self.delivered.get(place, OFFSET_MAX) <= position:
                    self.current = None
                    del self.delivered[place]
        finally:
            self.leave()

    def forget(self, uint64_t segment_id, ranges, BucketMarks marks=None):
        """Pop, unread, one segment's messages in these inclusive ranges or below the marks. Returns their number."""
        self.enter()
        try:
            return self.forget_ranges(segment_id, sorted(ranges), marks)
        finally:
            self.leave()

    cdef Py_ssize_t forget_ranges(self, uint64_t segment_id, list ranges, BucketMarks marks) except -1:
        cdef uint64_t below
        cdef list gone
        cdef Py_ssize_t before = self.messages, released = 0, mark
        cdef Slice slice
        cdef list waiting, kept = []
        self.settle()
        self.current = None
        waiting = self.items[self.head :]
        self.messages = 0
        for slice in waiting:
            mark = len(kept)
            gone = ranges if slice.entry.segment_id == segment_id else []
            if marks is not None and slice.entry.segment_id == segment_id:
                below = marks.marks[marks.bucket_of(slice.entry)].acknowledged
                gone = [(0, below - 1), *ranges] if below else ranges
            self.messages += parts_outside(
                kept, gone, slice.entry, self.front if slice is waiting[0] else slice.start, slice.stop,
                slice.redelivered, slice.place)
            if len(kept) > mark:
                (<Slice> kept[len(kept) - 1]).weight = slice.weight
            else:
                released += slice.weight
        self.items, self.head = kept, 0
        self.front = (<Slice> kept[0]).start if kept else 0
        self.bytes -= released
        if before > self.messages or released:
            self.give_credit(segment_id, before - self.messages, released)
        return before - self.messages

    @property
    def positions(self):
        """{segment: next offset} of everything popped so far, a new dict; in shared segments one for each bucket."""
        self.enter()
        try:
            self.settle()
            return self.delivered.copy()
        finally:
            self.leave()

    def __len__(self):
        return self.messages
