# cython: language_level=3
"""One end of a socket: what repeats with each frame.

    received   asyncio asks where to receive to, and says how much came; the reader cuts it into frames
    sent       the first frame of an iteration of the loop goes to the system at once; small ones that follow in the
               same iteration are gathered into one write at its end, a large one takes what was gathered with it

Everything else about a connection is in `wire/sockets.py`, whose class derives from this one.
"""
from engine.errors import ProtocolError

from engine._native.wire.frames cimport FrameReader, put_together
from engine._native.wire.frames import JOIN_MAX
from libc.stdint cimport uint64_t

GATHERED_MAX = 64 * 1024

cdef uint64_t SMALL = JOIN_MAX  # frames up to this size are gathered while a burst of them is being sent
cdef Py_ssize_t JOINED = GATHERED_MAX  # so many bytes are written in one piece


cdef class SocketEnd:
    """Loop thread only."""

    def __init__(self, FrameReader reader not None, loop, pack):
        """`pack(header)`: its bytes; a header that is a tuple is (command, bytes) already."""
        self.reader = reader
        self.loop = loop
        self.pack = pack
        self.gathered = []

    def get_buffer(self, sizehint):
        """asyncio: where to receive to."""
        return self.reader.get_buffer()

    def buffer_updated(self, Py_ssize_t nbytes):
        """asyncio: bytes were received."""
        try:
            self.reader.received(nbytes)
        except ProtocolError as e:
            self.fail(e)

    def fail(self, error):
        """The peer has sent what is no frame; for heirs."""

    def send(self, header, payload=b""):
        """Queue one frame; never blocks. Raises InvalidArgumentError when it would be over the limits."""
        cdef uint64_t size = 0
        cdef list buffers
        if self.closing:
            return
        if self.speaker is not None:
            buffers, size = self.speaker.encode(header, payload)
            if not size:
                return
        elif isinstance(header, tuple):
            buffers = put_together(header[0], header[1], payload, &size)
        else:
            buffers = put_together(header.command, self.pack(header), payload, &size)
        self.bytes_sent += size
        if size > SMALL:
            self.gathered.extend(buffers)
            self.flush()
        elif not self.uncork_due:
            self.gather()
            self.write(buffers)
        else:
            self.gathered.extend(buffers)
            self.gathered_bytes += size
            if self.gathered_bytes > JOINED:
                self.flush()

    @property
    def unsent_bytes(self):
        """Bytes queued in this process."""
        if self.transport is None or self.lost:
            return self.gathered_bytes
        return self.gathered_bytes + <Py_ssize_t>self.transport.get_write_buffer_size()

    cpdef gather(self):
        """Let what is sent in this turn of the loop go in one piece, at its end, or by flush()."""
        if not self.uncork_due:
            self.uncork_due = True
            self.loop.call_soon(self.uncork)

    def uncork(self):
        """This turn of the loop is over."""
        self.uncork_due = False
        self.flush()

    cpdef flush(self):
        """What was gathered goes now."""
        cdef list buffers = self.gathered
        if buffers:
            self.gathered, self.gathered_bytes = [], 0
            self.write(buffers)

    def forget(self):
        """Drop what was gathered: the connection has ended."""
        self.gathered, self.gathered_bytes = [], 0

    cdef int write(self, list buffers) except -1:
        cdef Py_ssize_t size = 0
        if self.closing or self.transport is None:
            return 0
        if len(buffers) == 1:
            self.transport.write(buffers[0])
            return 0
        for one in buffers:
            size += len(one)
        if size <= JOINED:
            self.transport.write(b"".join(buffers))
        else:
            self.transport.writelines(buffers)
        return 0
