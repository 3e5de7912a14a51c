# cython: language_level=3, auto_pickle=False
"""The producer's half of a topic: every message to its bucket, every full bucket to a sealed entry.

A key's hash picks segment and bucket; messages without a key gather in a bucket of their own, whose entries go to
the segments in turn. Any thread may call; see buckets.pyx.
"""
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t

from engine._native.produce.arguments cimport (
    MessageColumns, check_size, checked_sequence, fill_extras, open_buffer, utf8,
)
from engine._native.produce.buckets cimport Buckets
from engine._native.produce.builder cimport Builder, Message, builder_add, builder_fits, message_cost
from engine._native.produce.columns cimport view_get
from engine._native.format.entry cimport KEYED
from engine._native.format.ranges cimport route
from engine._native.produce.sealed cimport SealedEntry, TransactionScope
from engine._native.produce.hashing import MURMUR3, XXH64, xxh64

from engine.errors import InvalidArgumentError, QueueFullError
from engine.limits import (
    BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, ENTRY_MESSAGES_MAX, ENTRY_SIZE_MAX, KEY_SIZE_MAX, MESSAGE_SIZE_MAX,
    PENDING_BYTES_MAX, PRODUCER_NAME_SIZE_MAX,
)

cdef extern from "hash.h" nogil:
    uint32_t key32_hash(const uint8_t* p, size_t n, int algorithm) noexcept

# What was cimported is visible to C only; users of the batcher find its types here.
globals().update(MessageColumns=MessageColumns, SealedEntry=SealedEntry, TransactionScope=TransactionScope)

cdef enum:
    FAULT_MEMORY = 1
    FAULT_CHANGED = 2

cdef size_t VALUE_MAX = MESSAGE_SIZE_MAX
cdef size_t KEY_MAX = KEY_SIZE_MAX
cdef size_t ENTRY_MAX = ENTRY_SIZE_MAX


cdef inline bint _is_full(Batcher batcher) noexcept:
    cdef Account account = batcher.account
    return batcher.pending_bytes >= batcher.pending_max or (
        account.used > 0 and account.used >= (account.shared() if batcher.pending_bytes > 0 else account.limit))


@cython.final
cdef class Account:
    """What the messages of several batchers count for together, and the limit of that.

    The last quarter is for those that have nothing pending, so that none is kept out by what others have. One message
    always passes alone. Changed with the interpreter lock held, and by nothing that lets go of it meanwhile.
    """

    def __init__(self, Py_ssize_t limit):
        self.limit = limit


cdef class Batcher(Buckets):
    """Takes messages, gives sealed entries.

    `on_open()` is called when something became open after nothing was, `on_sealed()` when take() has something
    again, `on_full()` when the pending limit is met: it may make room, by waiting for release(), or raise. `pack`,
    when given, makes the msgpack map of a message's properties; `now_ms` tells the time for deliver_after. `steady`
    sends keyless messages by their sequence ids, not by turns. `admit` makes the TransactionScope of a transaction, or
    raises; entries hold messages of one scope, or of none. The first message may say a sequence id from
    `least_sequence` on, below which everything is stored. `account` is shared with other batchers: at its limit the
    pending limit is met as well. A callback that raises does so out of a call whose message was taken.
    InvalidArgumentError for a limit that an entry could not keep.
    """

    def __init__(self, bytes producer_name not None, *, int key_hash=XXH64, Py_ssize_t bytes_max=BATCH_BYTES_MAX,
                 Py_ssize_t messages_max=BATCH_MESSAGES_MAX, Py_ssize_t pending_bytes_max=PENDING_BYTES_MAX,
                 uint64_t first_sequence=0, on_open=None, on_sealed=None, on_full=None, pack=None, now_ms=None,
                 bint steady=False, least_sequence=None, admit=None, Account account=None):
        if self.routes is not None:
            raise InvalidArgumentError("a batcher is constructed once")
        _check_bounds("bytes_max", bytes_max, ENTRY_SIZE_MAX)
        _check_bounds("messages_max", messages_max, ENTRY_MESSAGES_MAX)
        _check_bounds("pending_bytes_max", pending_bytes_max, 1 << 62)
        if len(producer_name) > PRODUCER_NAME_SIZE_MAX:
            raise InvalidArgumentError(
                f"a producer's name is at most {PRODUCER_NAME_SIZE_MAX} bytes, not {len(producer_name)}")
        if key_hash not in (XXH64, MURMUR3):
            raise InvalidArgumentError(f"the key hash is XXH64 ({XXH64}) or MURMUR3 ({MURMUR3}), not {key_hash}")
        self.producer_name, self.producer_id = producer_name, xxh64(producer_name, 42)
        self.key_hash, self.steady = key_hash, steady
        self.bytes_max, self.messages_max, self.pending_max = bytes_max, messages_max, pending_bytes_max
        self.next_sequence = first_sequence
        self.least_sequence = self.floor = first_sequence if least_sequence is None else least_sequence
        self.on_open, self.on_sealed, self.on_full = on_open, on_sealed, on_full
        self.pack, self.now_ms, self.admit = pack, now_ms, admit
        self.account = Account(1 << 62) if account is None else account

    @property
    def last_sequence(self):
        """Sequence id of the newest message; one less than the first when there was none."""
        return <int64_t> self.next_sequence - 1

    def send_nowait(self, value, *, key=None, properties=None, event_time=None, sequence_id=None, deliver_at=None,
                    deliver_after=None, transaction=None):
        """Take one message.

        `value` is bytes or any contiguous buffer, `key` the same or str (as UTF-8) or None, `properties` a mapping
        of str to str, `event_time` and `deliver_at` an aware datetime or int (ms since 1970), `deliver_after` seconds
        or a timedelta, `sequence_id` greater than the last one, `transaction` what `admit` takes. Nothing is taken when
        it raises InvalidArgumentError, MessageTooLargeError, QueueFullError (the pending limit), or what a
        transaction's scope refuses it with.
        """
        cdef Message m
        m.transaction = NULL if transaction is None else <PyObject*> transaction
        m.properties_size = 0
        m.event_time = m.deliver_at = INT64_MIN
        if (properties is None and event_time is None and deliver_at is None and deliver_after is None):
            self.accept(value, key, sequence_id, None, &m)
            return
        cdef bytes held = fill_extras(
            &m, self.pack, self.now_ms, properties, event_time, deliver_at, deliver_after)  # noqa: F841
        self.accept(value, key, sequence_id, None, &m)

    def add(self, value, key=None, properties=None, event_time=None, sequence_id=None, waiter=None, deliver_at=None,
            deliver_after=None, transaction=None):
        """Take one message as send_nowait() does; its sequence id.

        `waiter`, when not None, is found again in SealedEntry.waiters.
        """
        cdef Message m
        m.transaction = NULL if transaction is None else <PyObject*> transaction
        m.properties_size = 0
        m.event_time = m.deliver_at = INT64_MIN
        cdef bytes held = fill_extras(
            &m, self.pack, self.now_ms, properties, event_time, deliver_at, deliver_after)  # noqa: F841
        return self.accept(value, key, sequence_id, waiter, &m)

    def add_columns(self, values, keys=None, event_times=None, Py_ssize_t start=0, transaction=None, properties=None):
        """Take messages start, start + 1, … of the columns; how many were taken before the pending limit was met.

        `values` and `keys` are lists, NumPy or Arrow arrays (see Column); a null key is a keyless message.
        `event_times` is described at instants_ms(), `properties` are a list of mappings or None, or an Arrow array of
        maps. All are checked before the first message is taken. Who calls again with another `start` prepares
        MessageColumns(values, keys, event_times, properties) once and passes that instead.
        """
        cdef MessageColumns columns = (
            values if isinstance(values, MessageColumns) else MessageColumns(values, keys, event_times, properties))
        cdef Stretch s
        if not 0 <= start <= columns.count:
            raise InvalidArgumentError(f"start must be in 0..{columns.count}, not {start}")
        if self.routes is None:
            raise InvalidArgumentError("the batcher has no layout yet: call set_layout() first")
        s.at = start
        while s.at < columns.count:
            self.enter()
            try:
                if _is_full(self):
                    if self.refusal is not None and s.at == start:
                        raise self.refusal
                    break
                if transaction is not None or self.scope is not None:
                    self.enlist_busy(NULL if transaction is None else <PyObject*> transaction)
                _add_stretch(self, columns, &s)
            finally:
                self.leave()
            if self.opened or self.filled:
                self.notify()
        return s.at - start

    def release(self, Py_ssize_t bytes, Py_ssize_t messages):  # noqa: A002
        """Forget so many pending bytes and messages: an entry was acknowledged or has failed."""
        if not (0 <= bytes <= self.pending_bytes and 0 <= messages <= self.pending_messages):
            raise InvalidArgumentError(
                f"cannot release {bytes} bytes and {messages} messages of {self.pending_bytes} and "
                f"{self.pending_messages} pending")
        self.pending_bytes -= bytes
        self.pending_messages -= messages
        self.account.used -= bytes

    def refuse(self, error not None):
        """Take nothing more: send_nowait(), add() and add_columns() raise `error` from now on."""
        self.refusal, self.pending_max = error, 0

    def leave_account(self):
        """What is pending here counts no more: nothing will come of it."""
        self.account.used -= self.pending_bytes
        self.account = Account(1 << 62)
        self.account.used = self.pending_bytes

    cdef int make_room(self) except -1:
        if self.refusal is not None:
            raise self.refusal
        if self.on_full is not None:
            self.on_full()
            if self.refusal is not None:
                raise self.refusal
        if self.pending_bytes >= self.pending_max:
            raise QueueFullError(
                f"{self.pending_bytes:,} bytes are pending, the limit is {self.pending_max:,}; wait for room")
        if _is_full(self):
            raise QueueFullError(
                f"{self.account.used:,} bytes of the client's producers are pending, the limit of them together is "
                f"{self.account.limit:,}; wait for room")
        return 0

    cdef uint64_t accept(self, object value, object key, object sequence_id, object waiter,
                         Message* m) except? 0xFFFFFFFFFFFFFFFF:
        if not PyBytes_CheckExact(value):
            return self.accept_value(value, key, sequence_id, waiter, m)
        m.value, m.value_size = <const uint8_t*> PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
        return self.accept_key(key, sequence_id, waiter, m)

    cdef uint64_t accept_value(self, object value, object key, object sequence_id, object waiter,
                               Message* m) except? 0xFFFFFFFFFFFFFFFF:
        cdef Py_buffer view
        open_buffer("value", value, &view, False)
        try:
            m.value, m.value_size = <const uint8_t*> view.buf, view.len
            return self.accept_key(key, sequence_id, waiter, m)
        finally:
            PyBuffer_Release(&view)

    cdef uint64_t accept_key(self, object key, object sequence_id, object waiter,
                             Message* m) except? 0xFFFFFFFFFFFFFFFF:
        cdef Py_buffer view
        cdef Py_ssize_t size = 0
        if PyBytes_CheckExact(key):
            m.key, m.key_size = <const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
        elif PyUnicode_Check(key):
            m.key = <const uint8_t*> utf8(key, &size)
            m.key_size = size
        elif key is None:
            m.key_size = 0
        else:
            open_buffer("key", key, &view, True)
            try:
                m.key, m.key_size = <const uint8_t*> view.buf, view.len
                return self.commit(m, True, sequence_id, waiter)
            finally:
                PyBuffer_Release(&view)
        return self.commit(m, key is not None, sequence_id, waiter)

    cdef uint64_t commit(self, Message* m, bint keyed, object sequence_id,
                         object waiter) except? 0xFFFFFFFFFFFFFFFF:
        cdef uint32_t index
        cdef Builder* b
        cdef list waiters = None
        if m.value_size > VALUE_MAX or m.key_size > KEY_MAX:
            check_size("value", m.value_size, VALUE_MAX)
            check_size("key", m.key_size, KEY_MAX)
        while self.busy or _is_full(self):
            self.wait()
            if _is_full(self):
                self.make_room()
        if self.routes is None:
            raise InvalidArgumentError("the batcher has no layout yet: call set_layout() first")
        m.sequence = self.next_sequence if sequence_id is None else checked_sequence(sequence_id, self.least_sequence)
        if m.transaction is not NULL or self.scope is not None:
            self.enlist(m.transaction)
        m.hash = key32_hash(m.key, m.key_size, self.key_hash) if keyed else 0
        index = route(self.routes, m.hash) if keyed else self.routes.builders
        b = &self.builders[index]
        if not builder_fits(b, m, self.bytes_max, self.messages_max, ENTRY_MAX):
            self.seal_locked(index)
        if waiter is not None:
            waiters = self.waiters[index]
            if waiters is None:
                self.waiters[index] = waiters = []
        if builder_add(b, m) < 0:
            raise MemoryError()
        if waiter is not None:
            waiters.append(waiter)
            waiters.append(b.count - 1)
        if keyed:
            b.flags |= KEYED
        if self.open_messages == 0:
            self.opened = True
        self.open_messages += 1
        self.pending_messages += 1
        self.pending_bytes += message_cost(m)
        self.account.used += message_cost(m)
        self.next_sequence = self.least_sequence = m.sequence + 1
        self.numbered = self.numbered or sequence_id is not None
        if b.bytes >= self.bytes_max or b.count >= self.messages_max:
            self.seal_locked(index)
        if self.opened or self.filled:
            self.notify()
        return m.sequence

    cdef int enlist(self, PyObject* transaction) except -1:
        if transaction is <PyObject*> self.transaction and self.scope.refusal is None:
            return 0
        self.enter()
        try:
            self.enlist_busy(transaction)
        finally:
            self.leave()
        return 0

    cdef int enlist_busy(self, PyObject* transaction) except -1:
        cdef TransactionScope scope = None
        if transaction is <PyObject*> self.transaction:
            scope = self.scope
        elif transaction is not NULL:
            if self.admit is None:
                raise InvalidArgumentError("this batcher takes no transactions")
            scope = self.admit(<object> transaction)
        if scope is not None and scope.refusal is not None:
            raise scope.refusal
        if scope is not self.scope:
            self.seal_open()
        self.scope, self.transaction = scope, None if transaction is NULL else <object> transaction
        return 0

    cdef void stretch(self, MessageColumns columns, Py_ssize_t stop, Stretch* s) noexcept nogil:
        cdef Message m
        cdef Builder* b
        cdef Py_ssize_t size, room = min(self.pending_max - self.pending_bytes, s.room)
        cdef uint32_t index
        m.properties_size = 0
        m.event_time = m.deliver_at = INT64_MIN
        m.sequence = self.next_sequence
        while s.at < stop and s.bytes < room:
            m.value_size = view_get(&columns.values.view, s.at, &m.value)
            size = -1 if columns.keys is None else view_get(&columns.keys.view, s.at, &m.key)
            m.key_size = max(size, 0)
            if m.value_size > VALUE_MAX or m.key_size > KEY_MAX:
                s.fault = FAULT_CHANGED
                return
            if columns.event_times is not NULL:
                m.event_time = columns.event_times[s.at]
            if columns.property_ends is not NULL:
                m.properties = columns.properties + columns.property_ends[s.at]
                m.properties_size = columns.property_ends[s.at + 1] - columns.property_ends[s.at]
            m.hash = key32_hash(m.key, m.key_size, self.key_hash) if size >= 0 else 0
            index = route(self.routes, m.hash) if size >= 0 else self.routes.builders
            b = &self.builders[index]
            if not builder_fits(b, &m, self.bytes_max, self.messages_max, ENTRY_MAX):
                s.full = index
                return
            if builder_add(b, &m) < 0:
                s.fault = FAULT_MEMORY
                return
            if size >= 0:
                b.flags |= KEYED
            s.at += 1
            s.messages += 1
            s.bytes += message_cost(&m)
            m.sequence += 1
            if b.bytes >= self.bytes_max or b.count >= self.messages_max:
                s.full = index
                return


# One stretch: until a builder is full, a window ends, or the pending limit is met. The caller is busy.
cdef int _add_stretch(Batcher batcher, MessageColumns columns, Stretch* s) except -1:
    cdef Py_ssize_t stop = columns.values.window(s.at)
    if columns.keys is not None:
        stop = min(stop, columns.keys.window(s.at))
    s.full, s.fault, s.bytes, s.messages = -1, 0, 0, 0
    s.room = max(batcher.account.shared() - batcher.account.used, 1)
    with nogil:
        batcher.stretch(columns, stop, s)
    if s.messages and batcher.open_messages == 0:
        batcher.opened = True
    batcher.open_messages += s.messages
    batcher.pending_messages += s.messages
    batcher.pending_bytes += s.bytes
    batcher.account.used += s.bytes
    batcher.next_sequence += s.messages
    batcher.least_sequence = batcher.next_sequence
    if s.fault == FAULT_MEMORY:
        raise MemoryError()
    if s.fault == FAULT_CHANGED:
        raise InvalidArgumentError(f"message {s.at} grew over the limit while the columns were being read")
    if s.full >= 0:
        batcher.seal_one(<uint32_t> s.full)
    return 0


def _check_bounds(name, value, most):
    if not 1 <= value <= most:
        raise InvalidArgumentError(f"{name} must be in 1..{most:,}, not {value:,}")
