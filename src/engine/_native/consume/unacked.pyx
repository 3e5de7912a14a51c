# cython: language_level=3, auto_pickle=False
"""What the program of a queue consumer has received and not acknowledged, and since when.

    a block ──► QueueInbox._push() ──► waiting ──► settle(): held, in the newest slot ──► take(): acknowledged
                                                                  └──► expired()

Messages are received in the order in which they arrived, so nothing is stored per message: the number of those that
still wait tells which ones were received. Of a block that has all of its offsets, which is the usual one, its first and
their number are kept; of another one the set. Offsets that are held are in compressed sets, times in a wheel of a few
slots.

What is decided is decided by the heirs in client/consume: time-outs, dead letters, what becomes of what was taken. A
plain model is `tests/reference/unacked_reference.py`.
"""
cimport cython

from collections import deque

from pyroaring import BitMap64

from engine._native.format.offsets import offset_set, range_set

from engine._native.consume.entry_queue cimport EntryQueue
from engine._native.consume.permits cimport Permits
from engine._native.consume.receiving cimport Inbox
from engine._native.format.entry cimport Entry
from engine._native.format.invariants cimport engine_check
from libc.stdint cimport int64_t, uint64_t

SLOTS = 16  # parts of the time-out; a message expires at most two parts late

cdef object OFFSET_MAX = 1 << 63


# Messages of one block that wait, in the order of their offsets: first, first + 1, …, or those of `offsets`.
@cython.final
cdef class _Waiting:
    cdef object segment_id
    cdef uint64_t first
    cdef int64_t count
    cdef object offsets

    cdef int drop(self, object offsets) except -1:
        if self.offsets is None:
            self.offsets = range_set(self.first, self.first + self.count - 1)
        self.offsets -= offsets
        self.count = len(self.offsets)
        return 0


cdef class Unacknowledged:
    """Loop thread only.

    `timeout` and `now` are seconds; without a timeout nothing expires. An offset in a slot that is held was received at
    the slot's time. Invariants: `_arrived` counts what waits; what is held expires, if there is a timeout. Checked by
    settle_to(), forget() and drop(), with ENGINE_DEBUG=1.
    """

    def __init__(self, timeout, now not None):
        self.timeout, self.now = timeout, now
        self.waiting, self._slots = deque(), deque()
        self._held = {}

    def count(self, int64_t waiting):
        """Messages received and not acknowledged, when `waiting` are queued. From any thread."""
        return sum(map(len, list(self._held.values()))) + max(0, self._arrived - waiting)

    def changed(self):
        """By how much `total` has changed since the last call."""
        cdef int64_t change = self.total - self.told
        self.told = self.total
        return change

    @property
    def busy(self):
        """Whether something may expire."""
        return bool(self.waiting or self._held)

    @property
    def tick(self):
        """Seconds between two checks."""
        return (self.timeout or 0.0) / SLOTS

    def held(self, segment_id):
        """What was received of a segment and not acknowledged; a copy."""
        return BitMap64(self._held.get(segment_id, ()))

    def arrived(self, segment_id, offsets):
        """These were queued, behind all others."""
        if offsets:
            self.queue(segment_id, 0, len(offsets), offsets)

    cdef int queue(self, object segment_id, uint64_t first, int64_t count, object offsets) except -1:
        cdef _Waiting block = _Waiting.__new__(_Waiting)
        block.segment_id, block.first, block.count, block.offsets = segment_id, first, count, offsets
        self.waiting.append(block)
        self._arrived += count
        self.total += count
        engine_check(_adds_up(self), b"the total is what waits and what is held")
        engine_check(_expires(self), b"what the user has expires")
        return 0

    def settle(self, int64_t waiting):
        """`waiting` messages are still queued: the others were received."""
        self.settle_to(waiting)

    cdef int settle_to(self, int64_t waiting) except -1:
        cdef int64_t received = self._arrived - waiting, count
        cdef _Waiting head
        while received > 0 and self.waiting:
            head = self.waiting[0]
            count = min(received, head.count)
            offsets = head.offsets
            if count == head.count:
                self.waiting.popleft()
            elif offsets is not None:
                offsets = offsets & range_set(offsets.min(), offsets[count - 1])
                head.offsets -= offsets
            self.receive(head.segment_id, head.first, count, offsets)
            head.first += <uint64_t> count
            head.count -= count
            self._arrived -= count
            received -= count
        engine_check(_adds_up(self), b"the total is what waits and what is held")
        engine_check(_expires(self), b"what the user has expires")
        return 0

    # Hold the offsets, or where they are None so many from `first` on.
    cdef int receive(self, object segment_id, uint64_t first, int64_t count, object offsets) except -1:
        _add(self._held, segment_id, first, count, offsets)
        if self.timeout is None:
            return 0
        slots, due = self._slots, self.now() + self.timeout
        if not slots or slots[len(slots) - 1][0] < due:
            slots.append((due + self.tick, {}))
        _add(slots[len(slots) - 1][1], segment_id, first, count, offsets)
        return 0

    cpdef take(self, segment_id, offsets):
        """Remove and return those of the offsets that are held. They may be delivered again later."""
        held = self._held.get(segment_id)
        if held is None:
            return BitMap64()
        taken = held & offsets
        if taken:
            self.total -= len(taken)
            _remove(self._held, segment_id, taken)
            for _, slot in self._slots:
                _remove(slot, segment_id, taken)
        return taken

    def give_back(self, segment_id, offsets):
        """They are held after all."""
        if offsets:
            self.total += len(offsets)
            self.receive(segment_id, 0, 0, offsets)
        engine_check(_adds_up(self), b"the total is what waits and what is held")
        engine_check(_expires(self), b"what the user has expires")

    def forget(self, segment_id, offsets):
        """These are neither queued nor held any more."""
        cdef _Waiting block
        cdef int64_t before
        for block in self.waiting:
            if block.segment_id == segment_id:
                before = block.count
                block.drop(offsets)
                self._arrived -= before - block.count
                self.total -= before - block.count
        self.waiting = deque([block for block in self.waiting if (<_Waiting> block).count])
        self.take(segment_id, offsets)
        engine_check(_adds_up(self), b"the total is what waits and what is held")
        engine_check(_expires(self), b"what the user has expires")

    def drop(self, segment_id):
        """Remove everything of a segment."""
        cdef _Waiting block
        for block in self.waiting:
            if block.segment_id == segment_id:
                self._arrived -= block.count
                self.total -= block.count
        self.waiting = deque([block for block in self.waiting if (<_Waiting> block).segment_id != segment_id])
        self.total -= len(self._held.pop(segment_id, ()))
        for _, slot in self._slots:
            slot.pop(segment_id, None)
        engine_check(_adds_up(self), b"the total is what waits and what is held")
        engine_check(_expires(self), b"what the user has expires")

    def expired(self):
        """Remove and yield (segment, offsets) of what has been held too long."""
        now = self.now()
        while self._slots and self._slots[0][0] <= now:
            _, slot = self._slots.popleft()
            for segment_id, offsets in slot.items():
                late = self.take(segment_id, offsets)
                if late:
                    yield segment_id, late


cdef int _add(dict held, object segment_id, uint64_t first, int64_t count, object more) except -1:
    found = held.get(segment_id)
    if found is None:
        held[segment_id] = range_set(first, first + count - 1) if more is None else BitMap64(more)
    elif more is not None:
        found |= more
    elif count == 1:
        found.add(first)
    else:
        found.add_range(first, first + count)
    return 0


cdef int _remove(dict held, object segment_id, object less) except -1:
    found = held.get(segment_id)
    if found is not None:
        found -= less
        if not found:
            del held[segment_id]
    return 0


cdef bint _adds_up(Unacknowledged unacked) noexcept:
    cdef _Waiting block
    cdef int64_t waiting = 0, held = 0
    for block in unacked.waiting:
        waiting += block.count
    for offsets in unacked._held.values():
        held += len(offsets)
    return unacked._arrived == waiting and unacked.total == waiting + held


cdef bint _expires(Unacknowledged unacked) noexcept:
    if unacked.timeout is None:
        return True
    for segment_id, offsets in unacked._held.items():
        slots = [slot[segment_id] for _, slot in unacked._slots if segment_id in slot]
        if not offsets <= BitMap64().union(*slots):
            return False
    return True


cdef class QueueInbox(Inbox):
    """The inbox of a queue consumer: it counts what its program holds, in `_unacked` and `_permits`."""

    def _asked(self):
        if not (<EntryQueue?> self._queue).messages:
            (<Permits?> self._permits).ask()

    def _settle(self):
        """Note what was received so far."""
        (<Unacknowledged?> self._unacked).settle_to((<EntryQueue?> self._queue).messages)

    def _held_changed(self, int64_t done=0):
        """Tell the permits what has changed, and that so many messages are done."""
        cdef Unacknowledged unacked = self._unacked
        cdef int64_t change = unacked.total - unacked.told
        unacked.told = unacked.total
        (<Permits?> self._permits).change(change, done)

    def _push(self, attachment, list entries not None, header, begin):
        """Queue a block; messages that were redelivered too often become dead letters."""
        cdef Unacknowledged unacked = self._unacked
        cdef Permits permits = self._permits
        cdef Entry entry
        cdef uint64_t first, end
        permits.came(attachment, header.messages)
        if not entries or self._closed:
            return 0
        entry = entries[0]
        first = entry.first_offset
        entry = entries[len(entries) - 1]
        end = entry.first_offset + entry.count
        offsets = None
        if header.skip:
            offsets = range_set(first, end - 1)
            offsets -= offset_set(header.skip, OFFSET_MAX)
        if header.redelivered and self._dead_letters is not None:
            if offsets is None:
                offsets = range_set(first, end - 1)
            header, offsets = self._without_letters(attachment, entries, header, offsets)
        unacked.settle_to((<EntryQueue?> self._queue).messages)
        if offsets is None:
            unacked.queue(attachment.segment_id, first, end - first, None)
        else:
            unacked.arrived(attachment.segment_id, offsets)
        if unacked.timeout is not None:
            self._watch()
        pushed = Inbox._push(self, attachment, entries, header, begin)
        self._held_changed()
        return pushed

    def _without_letters(self, attachment, entries, header, offsets):
        """Put aside what has become a dead letter: the header and the offsets of the rest; for heirs."""
        return header, offsets

    def _watch(self):
        """Something may expire: see to it; for heirs."""
