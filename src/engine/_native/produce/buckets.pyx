# cython: language_level=3, auto_pickle=False
"""The open buckets of a producer under one layout, and the entries that were sealed from them.

Any thread may call. The GIL serialises; where it is released while builders change, `busy` is set and other threads
wait. Callbacks run at the end of a call, when nothing is half done.
"""
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock,
    WAIT_LOCK,
)
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free

from engine._native.produce.builder cimport Builder, builder_free, builder_reset
from engine._native.format.ranges cimport Routes
from engine._native.produce.sealed cimport STEADY_BITS, SealedEntry, build, resplit, take_apart

from engine.errors import InvalidArgumentError


cdef class Buckets:
    """What a Batcher is below the taking of messages."""

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

    @property
    def counters(self):
        """Sealed so far for the segments of the layout: {(segment id, bucket): (entries, messages, bytes)}."""
        return dict(self.totals)

    def set_layout(self, starts, segment_ids, bucket_ends):
        """Route by these active segments from now on; what is open is sealed first, under the old layout.

        `starts` rise from 0, `segment_ids` go with them, `bucket_ends[i]` are the inclusive ends of the buckets of
        segment i, the last 65,535. InvalidArgumentError otherwise, and nothing has changed.
        """
        cdef list ids = list(segment_ids)
        cdef Routes routes = Routes(starts, ids, bucket_ends)
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
        """Seal every open bucket, the one that took a message last at the end."""
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
        return sealed

    def resplit(self, SealedEntry entry not None):
        """The messages of an entry as entries of the current layout, for a segment that was sealed meanwhile.

        Message order, sequence ids, waiters, attempts and the pending total are kept. The entries are returned, not
        given to take(): they come before whatever is sealed later. `entry.data` must be uncompressed.
        """
        if self.routes is None:
            raise InvalidArgumentError("the batcher has no layout yet: call set_layout() first")
        self.enter()
        try:
            return resplit(self.routes, entry, self.key_hash, self.producer_name, self.producer_id)
        finally:
            self.leave()

    def take_apart(self, SealedEntry entry not None):
        """The same for the same segment, with every message in an entry of its own: some of them are stored already."""
        return take_apart(entry, self.key_hash, self.producer_name, self.producer_id)

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
        PyThread_acquire_lock(self.lock, WAIT_LOCK)  # free but for a waiter that is about to let go
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
