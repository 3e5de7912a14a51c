# cython: language_level=3, auto_pickle=False
"""The producer's half of a topic: every message to its bucket, every full bucket to a sealed entry.

    send_nowait(), add() --> commit()  \                               seal                take()
                                        route --> builders[bucket]  --------->  sealed  -----------> the client's
    add_columns() ------> stretch()    /          open, in C memory             entries              outbox

1. *Route.* A key's hash names segment and bucket, and with them one builder (ranges.pyx). Messages without a key share
   one builder more, the last; the segment of its entry is chosen when it is sealed. An entry therefore never holds
   messages of two buckets, which is what lets a broker route it whole and a split hand it over whole.
2. *Seal before, if it does not fit.* A message that would bring its builder over a limit, or whose deliver-at, sequence
   or transaction cannot share an entry with those there (builder_fits()), seals the builder first.
3. *Add.* The bytes are copied into the builder, the message is counted as pending, and gets the next sequence id.
   Within a bucket the order of the calls is the order of the log: a builder holds one bucket, and its entries enter
   `sealed` in the order of sealing.
4. *Seal after, if it is full.* Else the entry stays open until its limits are met or the client's linger time ends and
   it calls seal_all(), which on_open() has told it to schedule.
5. *Pending* counts from the call until release(), when the entry's outcome is known; it bounds the producer's memory,
   and an Account that of all producers of a client.

Any thread may call. The GIL serialises the calls; where it is released while builders change (large entries are
sealed, columns are read), `busy` is set, and other threads wait in wait(). Callbacks run at the end of a call, when
nothing is half done, so that they may call the batcher again.
"""
cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock,
    WAIT_LOCK,
)
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from engine._native.format.entry cimport KEYED
from engine._native.format.ranges cimport Routes, route
from engine._native.produce.arguments cimport (
    MessageColumns, check_size, checked_sequence, fill_extras, open_buffer, utf8,
)
from engine._native.produce.builder cimport (
    Builder, Message, builder_add, builder_fits, builder_free, builder_reset, message_cost,
)
from engine._native.produce.columns cimport View, view_get
from engine._native.produce.sealed cimport STEADY_BITS, SealedEntry, TransactionScope, build, resplit, take_apart
from engine._native.produce.hashing import KEY_HASHES, XXH64, xxh64

from engine.errors import InvalidArgumentError, QueueFullError
from engine.limits import (
    BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, ENTRY_MESSAGES_MAX, ENTRY_SIZE_MAX, KEY_SIZE_MAX, MESSAGE_SIZE_MAX,
    PENDING_BYTES_MAX, PRODUCER_NAME_SIZE_MAX,
)

cdef extern from "hash.h" nogil:
    uint32_t key32_hash(const uint8_t* p, size_t n, int algorithm) noexcept

cdef enum:
    FAULT_MEMORY = 1
    FAULT_CHANGED = 2
    HASHED = 64                   # keys of a column that are hashed one right after the other

cdef size_t VALUE_MAX = MESSAGE_SIZE_MAX
cdef size_t KEY_MAX = KEY_SIZE_MAX


cdef inline bint _is_full(Batcher batcher) noexcept:
    cdef Account account = batcher.account
    return batcher.pending_bytes >= batcher.pending_max or (
        account.used > 0 and account.used >= (account.shared() if batcher.pending_bytes > 0 else account.limit))


@cython.final
cdef class Account:
    """The pending bytes of several batchers together, and their limit.

    The last quarter is kept for batchers that have nothing pending, so that none is blocked by what the others have.
    While nothing at all is pending, one message of any size is accepted. Changed with the GIL held, and without
    releasing it in between.
    """

    def __init__(self, Py_ssize_t limit):
        self.limit = limit


cdef class Batcher:
    """Batches messages by bucket, and seals the batches as entries.

    `on_open()` is called when the first message becomes open, `on_sealed()` when take() has entries again, `on_full()`
    when the pending limit is met: it may wait for release(), or raise. `pack`, where given, makes the msgpack map of a
    message's properties; `now_ms` is the clock of deliver_after. `steady` routes keyless messages by their sequence
    ids, not in turn. `admit` makes the TransactionScope of a transaction, or raises; an entry holds messages of one
    scope, or of none. The first message may have a sequence id from `least_sequence` on, below which everything is
    stored. `account` is shared with other batchers; its limit counts as a pending limit, too. An exception of a
    callback leaves a call whose message was accepted. Raises InvalidArgumentError for a limit that no entry can keep.
    """

    def __cinit__(self, *args, **kwargs):
        self.lock = PyThread_allocate_lock()
        if self.lock is NULL:
            raise MemoryError()
        self.sealed, self.totals = [], {}

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.builders_count):
            builder_free(&self.builders[i])
        free(self.builders)
        if self.lock is not NULL:
            PyThread_free_lock(self.lock)

    def __init__(self, bytes producer_name not None, *, int key_hash=XXH64, Py_ssize_t bytes_max=BATCH_BYTES_MAX,
                 Py_ssize_t messages_max=BATCH_MESSAGES_MAX, Py_ssize_t pending_bytes_max=PENDING_BYTES_MAX,
                 uint64_t first_sequence=0, on_open=None, on_sealed=None, on_full=None, pack=None, now_ms=None,
                 bint steady=False, least_sequence=None, admit=None, Account account=None,
                 Py_ssize_t entry_size_max=ENTRY_SIZE_MAX):
        if self.routes is not None:
            raise InvalidArgumentError("a batcher must be constructed once only")
        _check_bounds("bytes_max", bytes_max, ENTRY_SIZE_MAX)
        _check_bounds("entry_size_max", entry_size_max, ENTRY_SIZE_MAX)
        self.entry_max = entry_size_max
        _check_bounds("messages_max", messages_max, ENTRY_MESSAGES_MAX)
        _check_bounds("pending_bytes_max", pending_bytes_max, 1 << 62)
        if len(producer_name) > PRODUCER_NAME_SIZE_MAX:
            raise InvalidArgumentError(
                f"a producer's name must have at most {PRODUCER_NAME_SIZE_MAX} bytes, got {len(producer_name)}")
        if key_hash not in KEY_HASHES.values():
            raise InvalidArgumentError(f"the key hash must be one of {KEY_HASHES}, got {key_hash}")
        self.producer_name, self.producer_id = producer_name, xxh64(producer_name, 42)
        self.key_hash, self.steady = key_hash, steady
        self.bytes_max, self.messages_max, self.pending_max = bytes_max, messages_max, pending_bytes_max
        self.next_sequence = first_sequence
        self.least_sequence = self.floor = first_sequence if least_sequence is None else least_sequence
        self.on_open, self.on_sealed, self.on_full = on_open, on_sealed, on_full
        self.pack, self.now_ms, self.admit = pack, now_ms, admit
        self.account = Account(1 << 62) if account is None else account

    @property
    def counters(self):
        """Totals sealed for the segments of the layout: {(segment id, bucket): (entries, messages, bytes)}."""
        return dict(self.totals)

    def set_layout(self, starts, segment_ids, bucket_ends):
        """Route by these active segments from now on; open messages are sealed first, under the old layout.

        `starts` rise from 0, `segment_ids` go with them, `bucket_ends[i]` are the inclusive ends of the buckets of
        segment i, the last 65,535. Raises InvalidArgumentError otherwise, and changes nothing.
        """
        cdef list ids = list(segment_ids)
        cdef Routes routes = Routes(starts, ids, bucket_ends, self.producer_id)
        cdef Builder* builders = <Builder*> calloc(routes.builders + 1, sizeof(Builder))
        cdef uint32_t i
        if builders is NULL:
            raise MemoryError()
        self.enter()
        try:
            self.seal_open()
            for i in range(self.builders_count):
                if i <= routes.builders:
                    builders[i] = self.builders[i]
                else:
                    builder_free(&self.builders[i])
            self.builders, builders = builders, self.builders
            self.routes, self.builders_count = routes, routes.builders + 1
            self.waiters = [None] * self.builders_count
            active = frozenset(ids)
            self.totals = {where: counted for where, counted in self.totals.items() if where[0] in active}
            for i in range(self.builders_count):
                self.builders[i].block_bits = STEADY_BITS if self.steady and i == routes.builders else 0
        finally:
            self.leave()
            free(builders)
        self.notify()

    def seal_all(self):
        """Seal every open bucket, the one with the newest message last."""
        self.enter()
        try:
            self.seal_open()
        finally:
            self.leave()
        self.notify()

    def take(self):
        """The entries sealed since the last call, in the order of sealing."""
        cdef list sealed = self.sealed
        self.sealed = []
        if self.open_messages == 0:
            self.transaction = None  # a program that loses it has to be the last that holds it
        return sealed

    def resplit(self, SealedEntry entry not None):
        """The messages of an entry as entries of the current layout, where its segment was sealed meanwhile.

        Message order, sequence ids, waiters, attempts and the pending total are kept. The entries are returned, not
        left to take(): they precede everything sealed later. `entry.data` must be uncompressed.
        """
        if self.routes is None:
            raise InvalidArgumentError("the batcher has no layout yet: call set_layout() first")
        self.enter()
        try:
            return resplit(self.routes, entry, self.key_hash, self.producer_name, self.producer_id)
        finally:
            self.leave()

    def take_apart(self, SealedEntry entry not None):
        """Each message of an entry as an entry of its own, for the same segment: some of them are stored already."""
        return take_apart(entry, self.key_hash, self.producer_name, self.producer_id)

    @property
    def last_sequence(self):
        """Sequence id of the newest message; before the first message one less than its id."""
        return <int64_t> self.next_sequence - 1

    def send_nowait(self, value, *, key=None, properties=None, event_time=None, sequence_id=None, deliver_at=None,
                    deliver_after=None, transaction=None):
        """Add one message.

        `value` is bytes or any contiguous buffer, `key` the same or str (as UTF-8) or None, `properties` a mapping
        of str to str, `event_time` and `deliver_at` an aware datetime or int (ms since 1970), `deliver_after` seconds
        or a timedelta, `sequence_id` greater than the last one, `transaction` an argument of `admit`. Nothing is added
        when it raises InvalidArgumentError, MessageTooLargeError, QueueFullError (the pending limit), or the refusal
        of the transaction's scope.
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
        """Add one message as send_nowait() does. Returns its sequence id.

        `waiter`, when not None, is listed in SealedEntry.waiters of its entry.
        """
        cdef Message m
        m.transaction = NULL if transaction is None else <PyObject*> transaction
        m.properties_size = 0
        m.event_time = m.deliver_at = INT64_MIN
        cdef bytes held = fill_extras(
            &m, self.pack, self.now_ms, properties, event_time, deliver_at, deliver_after)  # noqa: F841
        return self.accept(value, key, sequence_id, waiter, &m)

    def add_columns(self, values, keys=None, event_times=None, Py_ssize_t start=0, transaction=None, properties=None):
        """Add messages start, start + 1, … of the columns. Returns how many the pending limit had room for.

        `values` and `keys` are lists, NumPy or Arrow arrays (see Column); a null key is a keyless message.
        `event_times` is described at instants_ms(), `properties` are a list of mappings or None, or an Arrow array of
        maps. All are checked before the first message is added. To call again with another `start`, prepare
        MessageColumns(values, keys, event_times, properties) once, and pass that as `values`.
        """
        cdef MessageColumns columns = (
            values if isinstance(values, MessageColumns) else MessageColumns(values, keys, event_times, properties))
        cdef Stretch s
        if not 0 <= start <= columns.count:
            raise InvalidArgumentError(f"start must be in 0..{columns.count}, got {start}")
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
        """Subtract pending bytes and messages: the outcome of an entry is known."""
        if not (0 <= bytes <= self.pending_bytes and 0 <= messages <= self.pending_messages):
            raise InvalidArgumentError(
                f"release() must be within the pending {self.pending_bytes} bytes and {self.pending_messages} "
                f"messages, got {bytes} and {messages}")
        self.pending_bytes -= bytes
        self.pending_messages -= messages
        self.account.used -= bytes

    def refuse(self, error not None):
        """Accept nothing more: send_nowait(), add() and add_columns() raise `error` from now on."""
        self.refusal, self.pending_max = error, 0

    def leave_account(self):
        """Stop counting this batcher's pending bytes in the account: they will never be sent."""
        self.account.used -= self.pending_bytes
        self.account = Account(1 << 62)
        self.account.used = self.pending_bytes

    cdef int wait(self) except -1:
        while self.busy:
            if self.owner == <unsigned long> PyThread_get_thread_ident():
                raise InvalidArgumentError("the batcher was called from inside one of its own calls")
            with nogil:
                PyThread_acquire_lock(self.lock, WAIT_LOCK)
                PyThread_release_lock(self.lock)
        return 0

    cdef int enter(self) except -1:
        if self.busy:
            self.wait()
        self.busy, self.owner = True, <unsigned long> PyThread_get_thread_ident()
        PyThread_acquire_lock(self.lock, WAIT_LOCK)  # free, except for a waiter about to release it
        return 0

    cdef int leave(self) except -1:
        self.busy = False
        PyThread_release_lock(self.lock)
        return 0

    cdef int notify(self) except -1:
        if self.filled:
            self.filled = False
            if self.on_sealed is not None:
                self.on_sealed()
        if self.opened:
            self.opened = False
            if self.open_messages and self.on_open is not None:
                self.on_open()
        return 0

    cdef int seal_locked(self, uint32_t index) except -1:
        self.enter()
        try:
            self.seal_one(index)
        finally:
            self.leave()
        return 0

    cdef int seal_open(self) except -1:
        cdef uint32_t i
        cdef list open_ones = []
        for i in range(self.builders_count if self.open_messages else 0):
            if self.builders[i].count:
                open_ones.append((self.builders[i].last_sequence, i))
        open_ones.sort()                         # the log ends with the message that was sent last
        for _, i in open_ones:
            self.seal_one(i)
        return 0

    cdef int seal_one(self, uint32_t index) except -1:
        self.builders[index].floor = self.floor
        cdef SealedEntry entry = build(
            self.routes, &self.builders[index], index, self.waiters[index], self.producer_name, self.producer_id,
            self.scope)
        self.waiters[index] = None
        self.open_messages -= entry.count
        builder_reset(&self.builders[index])
        if not self.sealed:
            self.filled = True
        self.sealed.append(entry)
        where = (entry.segment_id, entry.bucket)
        entries, messages, size = self.totals.get(where, (0, 0, 0))
        self.totals[where] = (entries + 1, messages + entry.count, size + len(entry.data))
        return 0

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
        if not builder_fits(b, m, self.bytes_max, self.messages_max, self.entry_max):
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
                raise InvalidArgumentError("transaction must be None: this batcher has no transactions")
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
        cdef Py_ssize_t hashed_from = s.at, hashed_to = s.at, ahead = 1
        cdef uint32_t[HASHED] hashes
        cdef uint32_t index
        m.properties_size = 0
        m.event_time = m.deliver_at = INT64_MIN
        m.sequence = self.next_sequence
        while s.at < stop and s.bytes < room:
            m.value_size = view_get(&columns.values.view, s.at, &m.value)
            size = -1
            if columns.keys is not None:
                size = view_get(&columns.keys.view, s.at, &m.key)
                if s.at == hashed_to:
                    # Twice as many each time: a stretch may end with any message, and leaves few that it has hashed.
                    hashed_from, hashed_to = s.at, min(s.at + ahead, stop)
                    ahead = min(2 * ahead, HASHED)
                    hash_keys(&columns.keys.view, hashed_from, hashed_to, self.key_hash, hashes)
            m.key_size = max(size, 0)
            if m.value_size > VALUE_MAX or m.key_size > KEY_MAX:
                s.fault = FAULT_CHANGED
                return
            if columns.event_times is not NULL:
                m.event_time = columns.event_times[s.at]
            if columns.property_ends is not NULL:
                m.properties = columns.properties + columns.property_ends[s.at]
                m.properties_size = columns.property_ends[s.at + 1] - columns.property_ends[s.at]
            m.hash = hashes[s.at - hashed_from] if size >= 0 else 0
            index = route(self.routes, m.hash) if size >= 0 else self.routes.builders
            b = &self.builders[index]
            if not builder_fits(b, &m, self.bytes_max, self.messages_max, self.entry_max):
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


# The hashes of keys at..stop. A hash is a chain of multiplications, each of which waits for the one before it: chains
# of several keys overlap in the processor where nothing stands between them that depends on their results.
cdef void hash_keys(const View* keys, Py_ssize_t at, Py_ssize_t stop, int algorithm, uint32_t* hashes) noexcept nogil:
    cdef const uint8_t* key = NULL
    cdef Py_ssize_t i, size
    for i in range(at, stop):
        size = view_get(keys, i, &key)
        hashes[i - at] = key32_hash(key, size, algorithm) if 0 <= size <= <Py_ssize_t> KEY_MAX else 0


# Add one stretch: until a builder is full, a window ends, or the pending limit is met. The caller is busy.
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
        raise InvalidArgumentError(f"{name} must be in 1..{most:,}, got {value:,}")
