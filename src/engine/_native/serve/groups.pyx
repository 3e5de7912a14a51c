# cython: language_level=3
"""Groups of appends of one segment: written by one call each, durable or failed as a whole.

An append is a buffer of whole entries that were checked. It is stamped as it enters a group: in place where it is large
and its buffer may be written, else in a copy, which it shares with the appends next to it. So a small append does not
keep the large buffer alive that it was received in.

Where groups are on their way is in `storage/commit/groups.py`; plain Python for the same is
`tests/reference/lanes_reference.py`.
"""
from engine import limits
from engine.errors import InvalidArgumentError

from engine._native.format cimport entry as e
from engine._native.format.entry cimport load32
from engine._native.serve.lanes cimport Lanes
from engine._native.serve.log cimport Claim
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

COPY_MAX = 16 * limits.KIB  # smaller appends are copied together, so that they do not pin what they were received in
PINNED_MAX = 8  # appends that are less than this fraction of their buffer are copied as well: it bounds pinned memory
CHUNK_MAX = 1 * limits.MIB  # of such copies

cdef Py_ssize_t COPIED = COPY_MAX
cdef Py_ssize_t FRACTION = PINNED_MAX
cdef Py_ssize_t GROWS_TO = CHUNK_MAX


cdef class Appended:
    """One entry's place in the log."""

    def __init__(self, uint64_t first_sequence, uint64_t last_sequence, int64_t first_offset, uint32_t count,
                 bint duplicate):
        self.first_sequence = first_sequence
        self.last_sequence = last_sequence
        self.first_offset = first_offset
        self.count = count
        self.duplicate = duplicate

    def _fields(self):
        return self.first_sequence, self.last_sequence, self.first_offset, self.count, bool(self.duplicate)

    def __eq__(self, other):
        return isinstance(other, Appended) and self._fields() == other._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return f"Appended{self._fields()}"


cdef Appended _place_of(Claim claim, int64_t offset, bint duplicate):
    cdef Appended place = Appended.__new__(Appended)
    place.first_sequence = claim.first_sequence
    place.last_sequence = claim.last_sequence
    place.first_offset = offset
    place.count = claim.count
    place.duplicate = duplicate
    return place


def place(Lanes lanes not None, list claims not None, uint64_t offset, uint64_t durable):
    """(the place of each entry, the claims of those that are new). The new ones are recorded as appended from `offset`
    on. Raises what `lanes` raises; what was recorded until then is for the caller to undo.
    """
    cdef list places = [], fresh = []
    cdef Claim claim
    for claim in claims:
        known = lanes.find(claim)
        if known is not None:
            places.append(_place_of(claim, known, True))
            continue
        lanes.record(claim, offset, durable)
        places.append(_place_of(claim, offset, False))
        fresh.append(claim)
        offset += claim.count
    return places, fresh


def messages_of(list claims not None):
    """The messages of the entries together."""
    cdef uint64_t count = 0
    cdef Claim claim
    for claim in claims:
        count += claim.count
    return count


cdef class Chunk:
    """Stamped entries in one buffer."""

    def __init__(self, data, uint64_t first_offset, uint64_t next_offset, bint grows):
        self.data = data
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.grows = grows


cdef class Group:
    """Appends that go to one file at one position. A job owns its `buffers` while it runs."""

    def __init__(self, file, uint64_t position, uint64_t first_offset):
        self.file = file
        self.position = position
        self.first_offset = self.next_offset = first_offset
        self.chunks = []
        self.waiters = []
        self.salt = file.salt
        self.segment_id = file.opening.segment_id

    @property
    def end_position(self):
        return self.position + self.size

    @property
    def buffers(self):
        cdef Chunk chunk
        return [chunk.data for chunk in self.chunks]

    def add(self, data not None, uint32_t term, int64_t time_ms, uint64_t durable_upto):
        """Stamp whole entries: in place if they are large and their buffer is writable, else in a copy."""
        self.take(data, term, time_ms, durable_upto)

    cdef int take(self, object data, uint32_t term, int64_t time_ms, uint64_t durable_upto) except -1:
        cdef Py_buffer view
        cdef Chunk chunk
        cdef Py_ssize_t size = len(data), at
        cdef uint8_t* p
        chunk = self.room_for(data, size)
        if chunk.grows:
            at = PyByteArray_GET_SIZE(chunk.data) - size
            p = <uint8_t*>PyByteArray_AS_STRING(chunk.data) + at
            chunk.next_offset = stamp_all(
                p, size, self.salt, term, self.next_offset, time_ms, durable_upto, self.segment_id)
        else:
            PyObject_GetBuffer(chunk.data, &view, PyBUF_WRITABLE)
            chunk.next_offset = stamp_all(
                <uint8_t*>view.buf, size, self.salt, term, self.next_offset, time_ms, durable_upto, self.segment_id)
            PyBuffer_Release(&view)
        self.next_offset = chunk.next_offset
        self.size += size
        return 0

    # The chunk that the append is at the end of, or is.
    cdef Chunk room_for(self, object data, Py_ssize_t size):
        cdef Chunk last = self.chunks[len(self.chunks) - 1] if self.chunks else None
        cdef Py_buffer view
        cdef Py_ssize_t at
        if size > COPIED:
            owner = data.obj if isinstance(data, memoryview) else data
            if FRACTION * size >= (len(owner) if isinstance(owner, (bytes, bytearray)) else size):
                whole = bytearray(data) if memoryview(data).readonly else data
                last = Chunk(whole, self.next_offset, 0, False)
                self.chunks.append(last)
                return last
        if last is None or not last.grows or PyByteArray_GET_SIZE(last.data) >= GROWS_TO:
            last = Chunk(bytearray(data), self.next_offset, 0, True)
            self.chunks.append(last)
            return last
        at = PyByteArray_GET_SIZE(last.data)
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            PyByteArray_Resize(last.data, at + size)
            memcpy(PyByteArray_AS_STRING(last.data) + at, view.buf, size)
        finally:
            PyBuffer_Release(&view)
        return last

    def succeed(self):
        """All waiters get their places."""
        cdef list waiters = self.waiters
        self.waiters = []
        for waiter, places in waiters:
            if not waiter.done():
                waiter.set_result(places)

    def fail(self, error):
        """Each waiter gets an exception object of its own: a traceback must not be shared between tasks."""
        cdef list waiters = self.waiters
        self.waiters = []
        for waiter, _ in waiters:
            if not waiter.done():
                waiter.set_exception(type(error)(*error.args))


cdef class GroupQueue:
    """Where the next append goes, and where each group is on its way. Its heir knows what a failure takes."""

    def __init__(self, uint64_t file_size_max, uint64_t file_messages_max, uint64_t group_max):
        self.file_size_max = file_size_max
        self.file_messages_max = file_messages_max
        self.group_max = group_max
        self.queued, self.written, self.covered, self.handed = [], [], [], []

    # The way in

    def complete(self):
        """The open group takes no more: `open` is None behind this."""
        self.end_open()

    cdef int end_open(self) except -1:
        if self.open is not None:
            self.queued.append(self.open)
            self.open = None
        return 0

    def group_for(self, uint64_t size, uint64_t messages):
        """The group that an append of so many bytes and messages goes to. None: it needs a new file."""
        return self.group_of(size, messages)

    cdef Group group_of(self, uint64_t size, uint64_t messages):
        cdef uint64_t held
        if self.file is None:
            return None
        if self.file is not self.known:
            self.known = self.file
            self.known_first, self.known_start = self.file.first_offset, self.file.opening.data_position
        held = self.next_offset + messages - self.known_first
        if self.position + size > self.file_size_max or held > self.file_messages_max:
            if self.position > self.known_start:
                return None  # an empty file takes an append of any size
        if self.open is None or self.open.size + size > self.group_max:
            self.end_open()
            self.open = Group(self.file, self.position, self.next_offset)
        return self.open

    def grown(self, Group group not None):
        """An append was added to the open group."""
        self.next_offset = group.next_offset
        self.position = group.position + group.size

    def append(self, data not None, uint64_t messages, uint32_t term, int64_t time_ms, uint64_t durable_upto):
        """Add whole entries to the group that takes them, stamped; that group. None: they need a new file."""
        return self.join(data, messages, term, time_ms, durable_upto)

    cdef Group join(self, object data, uint64_t messages, uint32_t term, int64_t time_ms, uint64_t durable_upto):
        cdef Group group = self.group_of(<uint64_t>len(data), messages)
        if group is not None:
            group.take(data, term, time_ms, durable_upto)
            self.next_offset = group.next_offset
            self.position = group.position + group.size
        return group

    def go_on_in(self, file, position=None):
        """The next append goes to this file, by default behind its header. None: to a new file."""
        self.end_open()
        self.file = file
        if file is not None:
            self.position = file.opening.data_position if position is None else position

    # The way through the jobs

    @property
    def head(self):
        """The group that is written next."""
        return self.head_group()

    cdef Group head_group(self):
        return self.queued[0] if self.queued else self.open

    cdef Group pop_head(self):
        cdef Group group
        if self.queued:
            return self.queued.pop(0)
        group, self.open = self.open, None
        return group

    def begin_primary(self, *, bint writes):
        """A primary job begins, which covers all that is written. The groups that it writes: the first, or none."""
        return self.take_for_primary(writes)

    cdef list take_for_primary(self, bint writes):
        cdef list written = [self.pop_head()] if writes and self.head_group() is not None else []
        self.covered, self.written = self.written + written, []
        return written

    def end_primary(self):
        """The primary job has ended. What it covered, in order."""
        covered, self.covered = self.covered, []
        return covered

    def begin_ahead(self):
        """The ahead job begins. The group that it writes."""
        self.ahead = self.pop_head()
        return self.ahead

    def end_ahead(self):
        """The ahead job has ended. The group that it was to write."""
        group, self.ahead = self.ahead, None
        return group

    def take_written(self):
        """All that is written, to be published without a sync."""
        written, self.written = self.written, []
        return written

    @property
    def unsynced_bytes(self):
        """In the file, or being written by the primary job, and not known to be on the medium."""
        return self.unsynced()

    cdef uint64_t unsynced(self):
        cdef uint64_t size = 0
        cdef Group group
        for group in self.written:
            size += group.size
        for group in self.covered:
            size += group.size
        return size


cdef uint64_t stamp_all(uint8_t* p, size_t n, uint32_t salt, uint32_t term, uint64_t first_offset, int64_t time_ms,
                        uint64_t durable_upto, uint64_t segment_id) noexcept nogil:
    cdef size_t at = 0
    while at + e.HEADER_SIZE <= n:
        e.stamp(p + at, salt, term, first_offset, time_ms, durable_upto, segment_id)
        first_offset += load32(p + at + e.AT_COUNT)
        at += load32(p + at + e.AT_SIZE)
    return first_offset


def join_fresh(data not None, list claims not None):
    """The entries of these claims alone, in a buffer of their own; duplicates between them are left out."""
    cdef Claim claim
    out, view = bytearray(), memoryview(data)
    for claim in claims:
        start, claim.position = claim.position, len(out)
        out += view[start:start + claim.size]
    return memoryview(out), claims
