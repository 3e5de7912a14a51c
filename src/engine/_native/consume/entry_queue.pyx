# cython: language_level=3, auto_pickle=False
"""The queue between a connection that delivers entries and a user who receives messages."""
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
    may call anything at any time. decode(bytes) makes the values of messages, None leaves them bytes. Compressed
    entries wait as they are: decompress(codec, body, raw_size) opens each in its turn, by one thread at a time, and
    on_open(queue, bytes) is told.
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
        the segment they are all of; nothing is taken of a bucket below what is acknowledged there.
        Returns how many messages were added. What is left out for start_offset alone, and the bytes of an entry that is
        left out as a whole, count as popped for take_credit(); messages in `skip` do not: nobody was charged for them.
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
            with self.lock:
                self.busy = True
                try:
                    added += self.push_entry(entry, skip, redelivered, start, place)
                finally:
                    self.busy = False
        return added

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

    def pop_message(self):
        """The next message, or None. Raises CorruptionError when it is in a bad entry; see damaged()."""
        cdef Message message
        if self.busy or self.current is None or self.index + 1 == self.current.stop:
            return self.pop_carefully()
        # Nothing here lets another thread in, so this needs no lock. Invariant: a message is not seen by the collector
        # of cycles, so making one never runs it. Checked by _check_unseen() when message.pyx loads.
        message = message_at(self.current, self.index)
        self.index += 1
        self.messages -= 1
        return message

    cdef Message pop_carefully(self):
        cdef Message message = None
        with self.lock:
            self.busy = True
            try:
                if self.current is not None or self.begin():
                    message = message_at(self.current, self.index)
                    self.index += 1
                    self.messages -= 1
                    if self.index == self.current.stop:
                        self.settle()
                        self.current = None
            finally:
                self.busy = False
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
        if popped:
            self.delivered[slice.place] = entry.first_offset + index
        if index == slice.stop:
            self.items[self.head] = None
            self.head += 1
            if self.head < len(self.items):
                self.front = (<Slice> self.items[self.head]).start
            released = slice.weight
            self.bytes -= released
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

        max_bytes bounds its keys and values together (-1: no bound), but one message is always given. Its compressed
        entries become 32 MiB at most, but one always. Raises CorruptionError when it would begin in a bad entry.
        """
        with self.lock:
            self.busy = True
            try:
                return self.take_batch(max_messages, max_bytes)
            finally:
                self.busy = False

    # Nothing is popped before all of it is there: what decompresses and what is told may raise, as any Python may.
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

    def damaged(self, bint drop=False):
        """(entry, first offset, last offset) where a bad entry comes next, else None. drop: pop these messages."""
        cdef Slice slice
        cdef uint32_t start
        with self.lock:
            self.busy = True
            try:
                self.settle()
                if self.head == len(self.items) or (<Slice> self.items[self.head]).entry.failure is None:
                    return None
                slice, start = self.items[self.head], self.front
                if drop:
                    self.messages -= slice.stop - start
                    self.advance(slice.stop)
            finally:
                self.busy = False
        return slice.entry, slice.entry.first_offset + start, slice.entry.first_offset + slice.stop - 1

    def close_front(self):
        """Let go of what was decompressed; it is again when its turn comes. Nothing while another thread is at it."""
        if self.busy:
            return
        with self.lock:
            self.busy = True
            try:
                self.settle()
                self.current = None
                close_slices(self.items, self.head)
            finally:
                self.busy = False

    @property
    def opened(self):
        """Bytes of what was decompressed and waits, in part; 0 while another thread is at it."""
        return 0 if self.busy or self.head == len(self.items) else opened_bytes(self.items[self.head])

    def take_credit(self):
        """{segment: (messages, bytes)} popped since the last call: what the broker may send instead.

        The bytes are those of whole entries, counted when the last message of one is popped.
        """
        with self.lock:
            self.busy = True
            try:
                self.settle()
                taken, self.credit = self.credit, {}
            finally:
                self.busy = False
        return taken

    def drop(self, uint64_t segment_id):
        """Forget what waits of one segment, and its credit: its attachment has ended. Returns how many messages."""
        cdef Py_ssize_t before
        with self.lock:
            self.busy = True
            try:
                before = self.messages
                self.take_segment(segment_id)
                self.credit.pop(segment_id, None)
                return before - self.messages
            finally:
                self.busy = False

    cdef list take_segment(self, uint64_t segment_id):
        cdef Slice slice, rest
        cdef list waiting, taken
        self.settle()
        self.current = None
        waiting = self.items[self.head :]
        taken = [slice for slice in waiting if slice.entry.segment_id == segment_id]
        if taken and taken[0] is waiting[0]:  # all of it that was not popped
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
        """Put what waits of one segment behind what waits in another queue. Returns how many messages."""
        cdef Py_ssize_t count = 0
        cdef Slice slice
        cdef list taken
        with self.lock:
            self.busy = True
            try:
                taken = self.take_segment(segment_id)
            finally:
                self.busy = False
        with other.lock:
            other.busy = True
            try:
                for slice in taken:
                    if other.head == len(other.items):
                        other.front = slice.start
                    other.items.append(slice)
                    other.messages += slice.stop - slice.start
                    other.bytes += slice.weight
                    count += slice.stop - slice.start
            finally:
                other.busy = False
        return count

    def set_make_id(self, make_id):
        """From now on, ids of what is popped are made by `make_id`."""
        with self.lock:
            self.busy = True
            try:
                self.settle()
                self.current, self.make_id = None, make_id
            finally:
                self.busy = False

    def forget_positions(self, upto):
        """Until more is delivered there, positions say nothing of what stands no higher than `upto` says."""
        with self.lock:
            self.busy = True
            try:
                self.settle()
                for place, position in upto.items():
                    if self.delivered.get(place, OFFSET_MAX) <= position:
                        self.current = None
                        del self.delivered[place]
            finally:
                self.busy = False

    def forget(self, uint64_t segment_id, ranges, BucketMarks marks=None):
        """Pop, unread, what waits of one segment in these inclusive ranges or below the marks: how many messages."""
        with self.lock:
            self.busy = True
            try:
                return self.forget_ranges(segment_id, sorted(ranges), marks)
            finally:
                self.busy = False

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
        with self.lock:
            self.busy = True
            try:
                self.settle()
                return self.delivered.copy()
            finally:
                self.busy = False

    def __len__(self):
        return self.messages
