# cython: language_level=3, auto_pickle=False
"""Receives and blocks of one consumer: what repeats with each message.

    a frame ──► Arriving ──► Inbox.blocks_came() ──► the queue ──► the oldest receive is woken ──► it pops a message

What is decided on that way is decided by the heirs in client/consume: credit, windows, damage, redelivery, several
topics. A plain model is `tests/reference/receiving_reference.py`.
"""
from engine.errors import CorruptionError, DecryptionError

from engine._native.consume.opening import take_block

from engine._native.consume.entry_queue cimport EntryQueue
from engine._native.consume.message cimport Message
from engine._native.format.entry cimport Entry
from libc.stdint cimport int64_t


cdef class Wait:
    """A receive that waits."""

    def __init__(self, future not None):
        self.future = future

    cpdef wake(self, bint outcome):
        """End the future, once."""
        if not self.future.done():
            self.future.set_result(outcome)


cdef class Reached:
    """How far a segment arrived, and is acknowledged."""

    cpdef arrive(self, int64_t expected):
        """Everything below arrived."""
        self.expected = expected
        if expected > self.arrived:
            self.arrived = expected


cdef class Skipped:
    """Runs of offsets that name no message."""

    def __init__(self):
        self.runs = []

    cpdef skip(self, offset):
        """The offset itself, or the end of the runs that it lies in."""
        for start, stop in self.runs:
            if start <= offset < stop:
                offset = stop
        return offset


cdef class Holdings:
    """What is received and not consumed, summed over the shares. Loop thread only."""

    cpdef change(self, int64_t held, int64_t attachments):
        """A share has changed by so much."""
        self.held += held
        self.attachments += attachments


cdef class Share:
    """What one receiver has of it."""

    def __init__(self, Holdings holdings not None):
        self.holdings = holdings

    def set(self, *, int64_t held, int64_t attachments):
        """`held`: bytes that were received and not consumed. `attachments`: how many there are."""
        self.set_to(held, attachments)

    cdef int set_to(self, int64_t held, int64_t attachments) except -1:
        cdef int64_t more_held = held - self.held, more_attachments = attachments - self.attachments
        self.held, self.attachments = held, attachments
        if more_held or more_attachments:
            self.holdings.change(more_held, more_attachments)
        return 0


cdef class Arriving:
    """An attachment, as its frames see it. Loop thread only."""

    def __init__(self, owner, message, *, bint ordered, bint by_cursor):
        """`message`: the type of the frames with messages."""
        self.owner = owner
        self.message = message
        self.ordered = ordered
        self.by_cursor = by_cursor

    def frame_received(self, header, payload):
        """Messages go to the owner."""
        if self.closed:
            return
        if type(header) is not self.message:
            self.other_received(header)
        elif not self.broken:
            self.owner.blocks_came(self, header, payload)

    def other_received(self, header):
        """A frame without messages; for heirs."""


cdef class Receives:
    """Receives that wait, in the order of their arrival. Loop thread only."""

    def _begin_turn(self, timeout):
        """A receive waits, behind all that came before."""
        cdef Wait turn
        self._check_coming()
        loop = self._loop
        turn = Wait(loop.create_future())
        self._receives.append(turn)
        self._asked()
        if timeout is not None:
            turn.timer = loop.call_later(timeout, turn.wake, False)
        if timeout is None or self.waiting:
            self._wake()
        return turn

    def _end_turn(self, Wait turn not None):
        """It waits no more: the next one may go on."""
        receives = self._receives
        if turn.timer is not None:
            turn.timer.cancel()
        receives.remove(turn)
        if receives:
            self._wake()
            self._asked()

    def _wake(self):
        """Wake the oldest receive if a message is queued."""
        receives = self._receives
        if receives and self.waiting:
            (<Wait?>receives[0]).wake(True)

    def _check_open(self):
        """Raise the reason for which the consumer goes on no more."""
        failure = self._failure
        if failure is not None:
            raise failure

    def _check_coming(self):
        """Raise the reason for which nothing more will arrive, if there is one."""
        self._check_open()

    def _popped(self):
        """After every pop, on the loop."""

    def _asked(self):
        """A receive waits."""


cdef class Inbox(Receives):
    """The queue of a consumer of one topic, and the totals by which credit is counted (client/consume/receiver.py)."""

    @property
    def waiting(self):
        """How many messages wait to be received."""
        return 0 if self.unread or self._paused else (<EntryQueue?>self._queue).messages

    def _wake(self):
        """Wake the oldest receive if a message is queued; or tell the consumer that this one is a part of."""
        owner = self._member_of
        if owner is None:
            receives = self._receives
            if receives and self.waiting:
                (<Wait?>receives[0]).wake(True)
        elif self.waiting:
            owner.messages_came(self)

    def _take_message(self):
        return None if self.unread or self._paused else (<EntryQueue?>self._queue).pop_message()

    def _pop_message(self):
        """The next message, None when none is queued."""
        try:
            return None if self.unread or self._paused else (<EntryQueue?>self._queue).pop_message()
        except (CorruptionError, DecryptionError) as e:
            return self._damage.past(e, self._take_message)

    def blocks_came(self, Arriving attachment not None, header, payload):
        """Verify a block and queue it."""
        cdef Reached progress = attachment.progress
        cdef int64_t start = progress.expected if attachment.ordered else 0, begin = 0, counted = 0
        cdef Py_ssize_t size = len(payload)
        cdef list entries
        cdef Entry entry
        entries, lost = take_block(payload, header.salt, attachment.segment_id, start if attachment.ordered else -1)
        if self._evolves:
            self._writers.check(entries)
        messages = header.messages
        self._pushed_messages += messages
        self._pushed_bytes += size
        if attachment.by_cursor:
            begin = max(start, progress.confirmed)
        pushed = self._push(attachment, entries, header, begin)
        if attachment.parked is None:
            attachment.pushed += pushed
        else:
            self._credited_messages += messages  # counted as credited, until it is delivered after all
            self._credited_bytes += size
        if entries:
            entry = entries[len(entries) - 1]
            progress.arrive((<Skipped?>attachment.gaps).skip(entry.first_offset + entry.count))
        if lost is not None:  # its messages are lost with it, and only counted
            for entry in entries:
                counted += entry.count
                size -= entry.size
            self._credited_messages += max(messages - counted, 0)
            self._credited_bytes += size
            self._break_off(attachment, lost)
        self._recount()
        self._popped()  # messages for no receive are credited at once: nothing may ever be popped
        self._wake()

    def _check_coming(self):
        """Raise the reason for which nothing more will arrive, if there is one."""
        self._check_open()
        damage = self._damage
        if damage.stopped:
            damage.check()

    def _push(self, attachment, entries, header, begin):
        """Queue the messages of a block that are for this consumer; how many."""
        parked = attachment.parked
        cdef EntryQueue queue = self._queue if parked is None else parked
        return queue.push(entries, header.skip, header.redelivered, begin, attachment.progress.marks)

    def _recount(self):
        (<Share?>self._budget_share).set_to(self._pushed_bytes - self._credited_bytes, len(self.attachments))

    def _popped(self):
        """After every pop, on the loop."""
        if self._owes_credit():
            self._return_credit()

    def _owes_credit(self):
        """Whether enough was consumed for a FLOW. From any thread."""
        cdef EntryQueue queue = self._queue
        cdef int64_t window = self._window_messages
        cdef int64_t messages = self._pushed_messages - queue.messages - self._credited_messages
        cdef int64_t size = self._pushed_bytes - queue.bytes - self._credited_bytes
        if window > 0 and 4 * messages >= window:  # 0: messages are counted elsewhere
            return True
        return 4 * size >= <int64_t>self._window_bytes
