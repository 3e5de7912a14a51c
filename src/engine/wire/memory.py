"""Streams of frames inside one process: what joins an embedded broker and its client.

Frames are handed over as they are, by the event loop: nothing is encoded and no payload is copied (several buffers
are joined into one). A header is of its type and is not changed any more; one that was packed before is decoded, and
checked, as over TCP. Order, back-pressure and the ways to end are those of a connection over TCP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from engine.errors import ConnectError, ProtocolError
from engine.limits import CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW
from engine.wire.commands import Header, decode
from engine.wire.packing import PackedHeader
from engine.wire.stream import FrameHandler, FrameStream, Payload, Sent
from engine.wire.taken import Taken

_FRAME_OVERHEAD = 64  # what a frame without payload counts for the marks
_FRAMES_PER_TURN = 64  # delivered before other callbacks of the loop get their turn

Accept = Callable[[FrameStream], FrameHandler]
Frame = tuple[Sent, memoryview]


class MemoryStream:
    """One end of a pair. `_inbox` is what the other end sent and this end's handler has not been given."""

    __slots__ = ("_closing", "_handler", "_inbox", "_inbox_bytes", "_loop", "_lost", "_other", "_reading_paused",
                 "_scheduled", "_taken", "_writing_paused", "bytes_received", "bytes_sent", "peer")  # fmt: skip

    # What an end within a process has no need of.
    local_url = None
    is_near = False
    peer_names = ()
    header_size = 0

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.bytes_received = 0
        self.bytes_sent = 0
        self._loop = asyncio.get_running_loop()
        self._other: MemoryStream = self
        self._handler: FrameHandler | None = None
        self._inbox: deque[Frame] = deque()
        self._inbox_bytes = 0
        self._scheduled = False
        self._reading_paused = False
        self._writing_paused = False
        self._closing = False
        self._lost = False
        self._taken: Taken | None = None  # made at the first request

    def send(self, header: Sent, payload: Payload = b"") -> None:
        """Queue one frame for the other end's handler."""
        if self._closing:
            return
        other, view = self._other, _as_view(payload)
        self.bytes_sent += len(view) + _FRAME_OVERHEAD
        other._inbox.append((header, view))
        other._inbox_bytes += len(view) + _FRAME_OVERHEAD
        other._schedule()
        if not self._writing_paused and other._inbox_bytes > CONNECTION_WRITE_HIGH:
            self._writing_paused = True
            if self._handler is not None:
                self._handler.pause_writing()

    def gather(self) -> None:
        """It does."""

    def flush(self) -> None:
        """It is on its way."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other end was not given yet."""
        return self._other._inbox_bytes

    def when_taken(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once the other end was given all that is queued now, or the connection has ended."""
        if self._taken is None:
            self._taken = Taken(lambda: self.bytes_sent - self.unsent_bytes)
        self._taken.add(self.bytes_sent, callback)
        if self._lost:
            self._taken.end()

    def pause_reading(self) -> None:
        """Deliver no more frames to this end's handler."""
        self._reading_paused = True

    def resume_reading(self) -> None:
        """Deliver again."""
        self._reading_paused = False
        self._schedule()

    @property
    def pending_bytes(self) -> int:
        """Nothing: frames come whole, and their memory is the sender's."""
        return 0

    def trim(self) -> None:
        """Nothing is held that could be smaller."""

    def compact(self) -> None:
        """Nothing is held that could be smaller."""

    def close(self) -> None:
        """Let the other end have what is queued, then end both."""
        if not self._closing:
            self._closing = True
            self._other._schedule()

    def abort(self) -> None:
        """End both; what is queued is dropped."""
        self._closing = True
        if self._loop.is_closed():
            return
        self._loop.call_soon(self._end, None)
        self._loop.call_soon(self._other._end, ConnectError(f"the connection was reset by {self._other.peer}"))

    def _schedule(self) -> None:
        if not self._scheduled and not self._reading_paused:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Hand queued frames to the handler; then close, if the other end wanted that."""
        self._scheduled = False
        for _ in range(min(_FRAMES_PER_TURN, len(self._inbox))):
            if self._reading_paused or self._lost or not self._deliver_one(*self._inbox.popleft()):
                break
        other = self._other
        if other._writing_paused and self._inbox_bytes < CONNECTION_WRITE_LOW:
            other._writing_paused = False
            if other._handler is not None:
                other._handler.resume_writing()
        if self._inbox:
            self._schedule()
        elif other._closing and not self._lost:
            self._end(None)
            other._end(None)

    def _deliver_one(self, header: Sent, payload: memoryview) -> bool:
        size = len(payload) + _FRAME_OVERHEAD
        self._inbox_bytes -= size
        self.bytes_received += size
        if self._closing or self._handler is None:
            return True  # this end has closed: as over TCP, what still arrives is dropped
        try:
            received = _received(header)
        except ProtocolError as e:
            self._end(e)
            self._other._end(ConnectError(f"the connection was reset by {self._other.peer}"))
            return False
        self._handler.frame_received(received, payload)
        return True

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._inbox.clear()
        self._inbox_bytes = 0
        if self._taken is not None:
            self._taken.end()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(error)


def connect_pair(left: Accept, right: Accept, *, names: tuple[str, str] = ("client", "broker")) -> MemoryStream:
    """Two joined ends, whose owners `left` and `right` make; the left end is returned. Call it on the loop.

    `names` are what each end is called by the other.
    """
    a, b = MemoryStream(names[1]), MemoryStream(names[0])
    a._other, b._other = b, a
    b._handler = right(b)
    a._handler = left(a)
    return a


class MemoryConnector:
    """Connects a client to the broker in the same process and on the same loop, whatever the URL."""

    def __init__(self, accept: Accept) -> None:
        self._accept = accept

    async def connect(self, url: str, handler: Accept) -> FrameStream:
        """A connected stream."""
        return connect_pair(handler, self._accept, names=("embedded client", url))


def _received(header: Sent) -> Header:
    return decode(*header) if type(header) is PackedHeader else cast(Header, header)


def _as_view(payload: Payload) -> memoryview:
    if isinstance(payload, memoryview):
        return payload
    if isinstance(payload, (bytes, bytearray)):
        return memoryview(payload)
    return memoryview(payload[0] if len(payload) == 1 else bytearray().join(payload))
