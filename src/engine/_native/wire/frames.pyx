# cython: language_level=3
"""Frames: cut out of what a connection receives, and put together to be sent.

A frame (docs/formats/wire.md), little-endian; it and its payload begin on a multiple of 8:

    0   length u32 | 4   command u8 | 5   header length u32 | 9   header | zeros | payload | zeros

Received bytes land in chunks. A receiver holds a chunk only while it has a part of a frame; otherwise it fills the
pool's current one further. So an idle connection owns no receive memory, and a thousand of them share one chunk.

                  used            start        end
    chunk   | lent out before | lent out now | received | free |

A frame that does not fit behind `start` moves to another chunk, with the part that is there. Payloads are views: their
chunk is filled no further, and comes back into use, when the last of them is gone.
"""
from collections import deque

from engine.errors import InvalidArgumentError, ProtocolError
from engine.limits import FRAME_ALIGNMENT, FRAME_HEADER_SIZE_MAX, FRAME_PREFIX_SIZE, FRAME_SIZE_MAX, KIB, MIB

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

CHUNK_SIZE = 1 * MIB
CHUNK_SIZE_SCARCE = CHUNK_SIZE // 16
CHUNKS_RETIRED_MAX = 192  # full chunks kept for reuse; more are left to the memory manager
JOIN_MAX = 16 * KIB  # a frame up to this size is put together in one buffer

cdef enum:
    LENGTH_SIZE = 4
    TRIED = 8                         # retired chunks that are looked at for one without views
    TRIMMED = 4                       # times what it holds: larger than that, a chunk is worth a copy
    COPIED = 4096                     # a header up to this size is decoded from a copy, which costs less than a view

cdef Py_ssize_t PREFIX = FRAME_PREFIX_SIZE
cdef uint64_t HEADER_MAX = FRAME_HEADER_SIZE_MAX
cdef uint64_t FRAME_MAX = FRAME_SIZE_MAX
cdef Py_ssize_t ALIGNMENT = FRAME_ALIGNMENT
cdef Py_ssize_t SCARCE = CHUNK_SIZE_SCARCE
cdef Py_ssize_t JOINED = JOIN_MAX
cdef object EMPTY = memoryview(b"")
cdef tuple PADDING = tuple(bytes(n) for n in range(8))


cdef inline uint32_t load32(const uint8_t* p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return value


cdef class Chunk:
    """`size` bytes of memory, of which the first `used` are spoken for."""

    def __init__(self, Py_ssize_t size):
        self.memory = bytearray(size)
        self.view = memoryview(self.memory)
        self.size = size
        self.used = 0

    def lent(self):
        """Whether a view of it still exists. A bytearray refuses to change its size while one exists."""
        self.view = None
        try:
            self.memory.append(self.memory.pop())
        except BufferError:
            return True
        return False

    def recycle(self):
        """Make the whole chunk free again. Only after lent() said no."""
        self.view = memoryview(self.memory)
        self.used = 0


cdef class Chunks:
    """The chunks of one event loop. Not for several threads.

    `taken` is what receivers hold now: each has a chunk while it has half a frame. When that passes half of `limit`,
    they get no more than they need.
    """

    def __init__(self, Py_ssize_t chunk_size=CHUNK_SIZE):
        self.chunk_size = chunk_size
        self.limit = 0
        self.taken = 0
        self.retired = deque(maxlen=CHUNKS_RETIRED_MAX)

    def passed(self):
        """`taken` is above `limit`. Called with each chunk that is taken; for heirs."""

    def take(self, Py_ssize_t room=0):
        """A chunk with at least `room` bytes free, and not too few in any case; the caller's until it gives it back."""
        cdef Chunk chunk = self.find(room)
        self.taken += chunk.size
        if self.taken > self.limit > 0:
            self.passed()
        return chunk

    def take_exactly(self, Py_ssize_t size):
        """A chunk for what is there, and not more."""
        self.taken += size
        return Chunk(size)

    def give(self, Chunk chunk not None, Py_ssize_t used):
        """Take a chunk back of which the first `used` bytes are, or were, lent."""
        self.taken -= chunk.size
        chunk.used = used + (-used & (ALIGNMENT - 1))
        if self.current is None and chunk.size - chunk.used >= self.chunk_size // 4:
            self.current = chunk
        else:
            self.retire(chunk)

    def trim(self):
        """Let go of every chunk kept for reuse. For a broker that has gone idle."""
        self.retired.clear()

    cdef Chunk find(self, Py_ssize_t room):
        cdef Chunk chunk = self.current
        self.current = None
        if chunk is not None:
            if chunk.size - chunk.used >= max(room, self.chunk_size // 4):
                return chunk
            self.retire(chunk)
        if room > self.chunk_size:
            return Chunk(room)
        if self.taken > self.limit // 2 > 0:
            return Chunk(max(room, SCARCE))
        chunk = self.reusable()
        return Chunk(self.chunk_size) if chunk is None else chunk

    cdef int retire(self, Chunk chunk) except -1:
        if chunk.size == self.chunk_size:
            chunk.view = None
            self.retired.append(chunk)
        return 0

    # A retired chunk of which no view exists any more. Chunks become free roughly in the order of their use.
    cdef Chunk reusable(self):
        cdef Py_ssize_t at
        cdef Chunk chunk
        for at in range(min(<Py_ssize_t>TRIED, <Py_ssize_t>len(self.retired))):
            chunk = self.retired[at]
            if not chunk.lent():
                del self.retired[at]
                chunk.recycle()
                return chunk
        return None


cdef class FrameReader:
    """Cuts received bytes into frames: get_buffer() says where to receive to, received() delivers what is whole.

    Owns a chunk of the pool only while it holds bytes that were not delivered yet. Not for several threads.
    """

    def __init__(self, Chunks pool not None, deliver, tuple decoders not None, tuple checked not None, refuse,
                 Py_ssize_t frame_size_max):
        """`deliver(header, payload)` gets each frame. `decoders`: for each of the 256 commands what decodes its header,
        None for one that is not known. `checked`: not None for those whose headers have a method `fault`, which is
        asked unless the item is (fields, others), and in the header these fields are of one length, the others None.
        `refuse(command, packed)` raises why a header that cannot be decoded, or has a fault, is refused; and
        `refuse(None, first)` may raise what is said of a frame that is too large, by its first four bytes.
        """
        if len(decoders) != 256 or len(checked) != 256:
            raise InvalidArgumentError(
                f"there must be decoders and checks for 256 commands, got {len(decoders)} and {len(checked)}")
        self.pool = pool
        self.deliver_to = deliver
        self.decoders = decoders
        self.checked = checked
        self.refuse = refuse
        self.frame_size_max = frame_size_max
        self.needed = PREFIX

    @property
    def pending_bytes(self):
        """Received and not delivered."""
        return self.end - self.start

    @property
    def held(self):
        """The chunk that it owns now, None for none."""
        return self.chunk

    cpdef get_buffer(self):
        """Where the next bytes go; never empty."""
        cdef Chunk chunk = self.chunk
        if chunk is None:
            chunk = self.chunk = self.pool.take()
            self.start = self.end = chunk.used
        elif self.start + self.needed > chunk.size or self.end == chunk.size:
            chunk = self.move_to(self.pool.take(max(self.needed, self.end - self.start + 1)))
        return chunk.view[self.end:]

    cpdef received(self, Py_ssize_t size):
        """`size` bytes were put at the front of get_buffer(). Raises ProtocolError for what is no frame."""
        self.end += size
        self.bytes_received += size
        self.deliver()

    cpdef deliver(self):
        """Deliver every whole frame, until paused. Raises ProtocolError."""
        if self.delivering:
            return  # the handler resumed from inside of a delivery: the loop below goes on
        self.delivering = True
        try:
            while not self.paused and self.deliver_one():
                pass
        finally:
            self.delivering = False
        if self.start >= self.end:
            self.release()

    cpdef release(self):
        """Give the chunk back, and forget what was not delivered."""
        cdef Chunk chunk = self.chunk
        self.chunk = None
        if chunk is not None:
            self.pool.give(chunk, self.end)
        self.start = self.end = 0
        self.needed = PREFIX

    def trim(self):
        """Hold little more memory than what is received and not delivered needs; costs little however often."""
        if self.start >= self.end:
            self.release()
        elif self.chunk is not None and self.chunk.size > TRIMMED * (self.end - self.start):
            self.compact()

    def compact(self):
        """Move half a frame into memory of its own size. For a peer that sent a part and then nothing."""
        cdef Py_ssize_t pending = self.end - self.start
        if self.chunk is not None and self.chunk.size > pending:
            self.move_to(self.pool.take_exactly(max(pending, 1)))

    cdef Chunk move_to(self, Chunk target):
        cdef Chunk source = self.chunk
        cdef Py_ssize_t start = target.used, size = self.end - self.start
        memcpy(PyByteArray_AS_STRING(target.memory) + start, PyByteArray_AS_STRING(source.memory) + self.start, size)
        self.pool.give(source, self.start)
        self.chunk, self.start, self.end = target, start, start + size
        return target

    # Deliver the frame at the front; 0: it is not whole.
    cdef int deliver_one(self) except -1:
        cdef Chunk chunk = self.chunk
        cdef Py_ssize_t start = self.start, head, payload_at
        cdef uint64_t total, padded
        cdef uint32_t header_size
        cdef const uint8_t* p
        cdef uint8_t kind
        if chunk is None or self.end - start < PREFIX:
            self.needed = PREFIX
            return 0
        p = <const uint8_t*>PyByteArray_AS_STRING(chunk.memory) + start
        if self.recognise is not None:
            recognise, self.recognise = self.recognise, None
            self.speaker = recognise(PyBytes_FromStringAndSize(<const char*>p, PREFIX))
        if self.speaker is not None:
            return self.deliver_foreign(chunk)
        total = <uint64_t>load32(p) + LENGTH_SIZE
        kind = p[LENGTH_SIZE]
        header_size = load32(p + LENGTH_SIZE + 1)
        self.check_prefix(total, kind, header_size)
        padded = total + (-total & 7)
        if <uint64_t>(self.end - start) < padded:
            self.needed = padded
            return 0
        self.start = start + <Py_ssize_t>padded
        self.header_size = header_size
        head = PREFIX + header_size
        if header_size <= COPIED:
            packed = PyBytes_FromStringAndSize(<const char*>p + PREFIX, header_size)
        else:
            packed = chunk.view[start + PREFIX:start + head]
        try:
            header = self.decoders[kind](packed)
        except Exception:
            header = None
        if header is None or not self.is_sound(header, self.checked[kind]):
            self.refuse(kind, packed)
            raise ProtocolError(f"a frame of the type {kind} has a malformed header")
        payload_at = head + (-head & 7)
        payload = EMPTY
        if <uint64_t>payload_at < total:
            payload = chunk.view[start + payload_at:start + <Py_ssize_t>total]
        self.deliver_to(header, payload)
        return 1

    # Whether a header has no fault. `sound_if`: an item of `checked`.
    cdef bint is_sound(self, header, tuple sound_if) except -1:
        cdef Py_ssize_t size = -1
        if sound_if is None:
            return True
        if sound_if:
            for name in <tuple>sound_if[0]:
                one = <Py_ssize_t>len(getattr(header, name))
                if size >= 0 and one != size:
                    return header.fault() is None
                size = one
            for name in <tuple>sound_if[1]:
                if getattr(header, name) is not None:
                    return header.fault() is None
            return True
        return header.fault() is None

    # Likewise, of a frame that the speaker of another protocol measures.
    cdef int deliver_foreign(self, Chunk chunk) except -1:
        cdef Py_ssize_t start = self.start, size = self.speaker.frame_size(chunk.view[start:self.end])
        if self.end - start < size:
            self.needed = size
            return 0
        self.start = start + size
        self.header_size = size
        self.speaker.frame_received(chunk.view[start:start + size])
        return 1

    cdef int check_prefix(self, uint64_t total, uint8_t kind, uint32_t header_size) except -1:
        if total > <uint64_t>self.frame_size_max:
            self.refuse(None, (total - LENGTH_SIZE).to_bytes(LENGTH_SIZE, "little"))
            raise ProtocolError(f"a frame of {total} bytes; at most {self.frame_size_max} are allowed")
        if self.decoders[kind] is None:
            raise ProtocolError(f"a frame of the unknown type {kind}")
        if header_size > HEADER_MAX or header_size + <uint64_t>PREFIX > total:
            raise ProtocolError(f"a frame of the type {kind}: a header of {header_size} bytes in a frame of {total}")
        return 0


def frame(command, packed not None, payload):
    """A frame as buffers to write one after the other, and their size together.

    `payload`: contiguous bytes, or a sequence of such. A frame of up to JOIN_MAX bytes is one buffer; of a larger one
    the payload is not copied. Raises InvalidArgumentError when it would be over the limits.
    """
    cdef uint64_t size = 0
    buffers = put_together(command, packed, payload, &size)
    return buffers, size


cdef list put_together(object command, object packed, object payload, uint64_t* size):
    if not isinstance(packed, bytes):
        raise InvalidArgumentError(f"a header must be bytes, got {type(packed).__name__}")
    cdef uint64_t body = 0, head = PREFIX + <uint64_t>len(packed), total
    cdef Py_ssize_t front
    cdef list parts
    if isinstance(payload, (bytes, bytearray, memoryview)):
        parts = [payload]
    else:
        parts = list(payload)
    for part in parts:
        body += <uint64_t>len(part)
    front = head + (-head & 7)
    total = front + body
    if <uint64_t>len(packed) > HEADER_MAX or total > FRAME_MAX:
        raise InvalidArgumentError(
            f"{command.name} of {total} bytes, {len(packed)} of them header; at most {FRAME_MAX}"
            f" and {HEADER_MAX} are allowed")
    cdef uint64_t padded = total + (-total & 7) if body else total
    cdef bytes first = PyBytes_FromStringAndSize(NULL, padded if padded <= <uint64_t>JOINED else front)
    cdef char* p = PyBytes_AS_STRING(first)
    cdef uint32_t length = total - LENGTH_SIZE, header_size = len(packed)
    memcpy(p, &length, 4)
    p[4] = <uint8_t><int>command
    memcpy(p + 5, &header_size, 4)
    memcpy(p + PREFIX, PyBytes_AS_STRING(packed), header_size)
    memset(p + head, 0, front - head)
    size[0] = padded
    if padded > <uint64_t>JOINED:
        if body:
            parts.insert(0, first)
            if padded > total:
                parts.append(PADDING[padded - total])
            return parts
        return [first]
    p += front
    for part in parts:
        p = copied(p, part)
    memset(p, 0, padded - total)
    return [first]


# Copy the bytes of a buffer to `p`; behind them.
cdef char* copied(char* p, object data) except NULL:
    cdef Py_buffer view
    if type(data) is bytes:
        memcpy(p, PyBytes_AS_STRING(data), len(<bytes>data))
        return p + len(<bytes>data)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len != len(data):  # what the frame has room for
            raise InvalidArgumentError(f"a payload must be of single bytes, got items of {view.itemsize} bytes")
        memcpy(p, view.buf, view.len)
        return p + view.len
    finally:
        PyBuffer_Release(&view)
