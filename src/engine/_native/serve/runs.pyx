# cython: language_level=3
"""Linked lists of runs of offsets, any number of lists in one array.

    pool     [ - | run | run | free | run | free ]        `next` links a list, or the free ones, by index
    a list   head ---> run ---> run <--- tail             its owner keeps the head; appended to at the tail

A shared segment has up to 1,024 buckets with two lists each, most of them short. One array for all of them costs no
allocation per run, and moving a list to the front of another (prepend) is a change of two links. What trim() cuts off
is collected in `trimmed` until the call that acknowledges has merged it into ranges.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from engine._native.format.entry cimport store64
from engine._native.format.invariants cimport engine_check
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort

cdef enum:
    SIZE_MIN = 64
    PAIR = 16                     # bytes of a packed run, as in _native/format/offsets.pyx


@cython.final
cdef class RunPool:
    """The memory of lists whose heads are kept by their owner. `used`: runs in all lists."""

    def __dealloc__(self):
        PyMem_Free(self.pool)
        PyMem_Free(self.trimmed)

    cdef int push(self, Runs* runs, uint64_t first, uint64_t last) except -1:
        cdef uint32_t index
        engine_check(not runs.head or self.pool[runs.tail].last < first, b"runs are in the order of their offsets")
        runs.offsets += last + 1 - first
        if runs.head and self.pool[runs.tail].last + 1 == first:
            self.pool[runs.tail].last = last
            return 0
        index = self.allot()
        self.pool[index].first, self.pool[index].last, self.pool[index].next = first, last, 0
        if runs.head:
            self.pool[runs.tail].next = index
        else:
            runs.head = index
        runs.tail = index
        runs.count += 1
        return 1

    cdef uint32_t allot(self) except 0:
        cdef uint32_t index, size
        cdef Run* pool
        if not self.free:
            size = max(SIZE_MIN, 2 * self.size)
            pool = <Run*> PyMem_Realloc(self.pool, size * sizeof(Run))
            if pool is NULL:
                raise MemoryError()
            for index in range(max(self.size, 1), size):
                pool[index].next = index + 1 if index + 1 < size else 0
            self.free = max(self.size, 1)
            self.pool, self.size = pool, size
        index = self.free
        self.free = self.pool[index].next
        self.used += 1
        return index

    cdef void pop(self, Runs* runs) noexcept nogil:
        cdef uint32_t index = runs.head
        runs.offsets -= self.pool[index].last + 1 - self.pool[index].first
        runs.count -= 1
        runs.head = self.pool[index].next
        if not runs.head:
            runs.tail = 0
        self.pool[index].next = self.free
        self.free = index
        self.used -= 1

    cdef void prepend(self, Runs* runs, Runs* before) noexcept nogil:
        if runs.head:
            self.pool[before.tail].next = runs.head
            before.tail = runs.tail
        before.count += runs.count
        before.offsets += runs.offsets
        runs[0] = before[0]
        before.head = before.tail = before.count = 0
        before.offsets = 0

    cdef int64_t trim(self, Runs* runs, uint64_t position) except -1:
        cdef Run* run
        cdef int64_t gone = 0
        while runs.head and self.pool[runs.head].first < position:
            run = &self.pool[runs.head]
            self.note(run.first, min(run.last, position - 1))
            if run.last >= position:
                runs.offsets -= position - run.first
                run.first = position
                break
            self.pop(runs)
            gone += 1
        return gone

    cdef int note(self, uint64_t first, uint64_t last) except -1:
        cdef Run* trimmed
        if self.trimmed_count == self.trimmed_size:
            self.trimmed_size = max(SIZE_MIN, 2 * self.trimmed_size)
            trimmed = <Run*> PyMem_Realloc(self.trimmed, self.trimmed_size * sizeof(Run))
            if trimmed is NULL:
                raise MemoryError()
            self.trimmed = trimmed
        self.trimmed[self.trimmed_count].first, self.trimmed[self.trimmed_count].last = first, last
        self.trimmed_count += 1
        return 0

    cdef void forget_trimmed(self) noexcept nogil:
        self.trimmed_count = 0

    cdef bytes merged(self, uint64_t floor):
        cdef uint32_t i, kept = 0
        cdef Run* run
        cdef Run* before
        cdef bytes packed
        cdef uint8_t* p
        if self.trimmed_count:  # else the array may not exist yet
            qsort(self.trimmed, self.trimmed_count, sizeof(Run), _by_first)
        for i in range(self.trimmed_count):
            run, before = &self.trimmed[i], &self.trimmed[kept - 1] if kept else NULL
            if run.last < floor:
                continue
            if before is not NULL and before.last + 1 == run.first:
                before.last = run.last
            else:
                self.trimmed[kept] = run[0]
                kept += 1
        packed = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> kept * PAIR)
        p = <uint8_t*> PyBytes_AS_STRING(packed)
        for i in range(kept):
            store64(p + i * PAIR, self.trimmed[i].first)
            store64(p + i * PAIR + 8, self.trimmed[i].last)
        return packed


cdef int _by_first(const void* a, const void* b) noexcept nogil:
    cdef uint64_t first = (<const Run*> a).first, second = (<const Run*> b).first
    return (first > second) - (first < second)
