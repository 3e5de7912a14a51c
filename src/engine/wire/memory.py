"""Streams of frames inside one process: what joins an embedded broker and its client.

Frames are handed over as they are, by the event loops: nothing is encoded and no payload is copied (several buffers
are joined into one). A header is of its type and is not changed any more; one that was packed before is decoded, and
checked, as over TCP. Order, back-pressure and the ways to end are those of a connection over TCP.

The two ends live on one loop, or on the loops of two threads. All that they share are two lanes, one for each
direction, of which each field is written by one side only, except `scheduled`:

    sender                                           receiver, in look()
    append to frames                                 scheduled = False
    unless scheduled: scheduled = True, wake         pop from frames

A sender that finds `scheduled` set has appended before the receiver popped; otherwise it wakes the receiver. So no
frame stays behind, and a burst of frames is one wake-up. `sent - received` is what is on its way, without a counter
that both would have to change. A sender that pauses looks once more after it has said so, since the receiver may have
taken everything just before.

The ends of two loops do not keep each other alive: one that is collected, or whose loop has ended, is lost to the
other.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Self, cast

from engine.errors import ConnectError, ProtocolError
from engine.limits import CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW
from engine.wire.commands import Header, decode
from engine.wire.packing import PackedHeader
from engine.wire.stream import FrameHandler, FrameStream, Payload, Sent
from engine.wire.taken import Taken

_FRAME_OVERHEAD = 64  # what a frame without payload counts for the marks
_AFTER_SHUTDOWN_S = 1.0
_FRAMES_PER_TURN = 64  # delivered before other callbacks of the loop get their turn

CLIENT = "embedded client"  # what a broker calls it
Accept = Callable[[FrameStream], FrameHandler]
Frame = tuple[Sent, memoryview]


class _Ended:
    """The sender has ended both ends. `error`: what the receiver is told."""

    __slots__ = ("error",)

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class _Lane:
    """The frames on their way to one end, its receiver."""

    __slots__ = ("call", "closing", "deaf", "ended", "frames", "look", "paused", "received", "scheduled", "sent")

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque()
        self.scheduled = True  # until the receiver is there
        # Written by the sender.
        self.sent = 0  # bytes
        self.paused = False  # it was told not to send
        self.closing = False  # nothing more comes
        self.ended: _Ended | None = None
        # Written by the receiver.
        self.received = 0  # bytes that its handler was given
        self.deaf = False  # it wants no frames now
        self.call: Callable[[Callable[[], None]], object]  # runs its look() on its loop
        self.look: Callable[[], None]

    def wake(self) -> None:
        """Have the receiver look. Raises RuntimeError when its loop is closed."""
        if not self.scheduled:
            self.scheduled = True
            self.call(self.look)


class MemoryStream:
    """One end of a pair."""

    __slots__ = (
        "__weakref__", "_closing", "_guard", "_handler", "_in", "_loop", "_lost", "_name", "_out", "_taken", "peer"
    )  # fmt: skip

    # What an end within a process has no need of.
    local_url = None
    is_near = False
    certificate = None
    peer_user = None
    header_size = 0

    def __init__(self, peer: str, name: str, incoming: _Lane, outgoing: _Lane) -> None:
        """`name`: what the other end calls this one. It has no owner until it is settled."""
        self.peer = peer
        self._name = name
        self._in = incoming
        self._out = outgoing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handler: FrameHandler | None = None
        self._closing = False
        self._lost = False
        self._taken: Taken | None = None  # made at the first request
        self._guard: AsyncGenerator[None, None] | None = None

    def _settle(self, accept: Accept, call: Callable[[Callable[[], None]], object]) -> Self:
        """Live on the running loop, with the owner that `accept` makes. `call`: how the loop is given work."""
        self._loop = asyncio.get_running_loop()
        self._in.call = call
        self._handler = accept(self)
        self._in.scheduled = False
        if self._in.frames or self._in.closing or self._in.ended:
            self._in.wake()
        return self

    async def settle_far(self, accept: Accept) -> Self:
        """Live on the running loop, which may be another than the other end's, until that loop is shut down."""
        self._guard = _until_shutdown(weakref.ref(self))
        await anext(self._guard)
        return self._settle(accept, asyncio.get_running_loop().call_soon_threadsafe)

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, header: Sent, payload: Payload = b"") -> None:
        """Queue one frame for the other end's handler."""
        if self._closing:
            return
        out, view = self._out, _as_view(payload)
        out.sent += len(view) + _FRAME_OVERHEAD
        out.frames.append((header, view))
        if not (out.scheduled or out.deaf):
            self._wake()
        if not out.paused and out.sent - out.received > CONNECTION_WRITE_HIGH:
            out.paused = True
            if self._handler is not None:
                self._handler.pause_writing()
            if out.sent - out.received < CONNECTION_WRITE_LOW:
                self._in.wake()

    def _wake(self) -> None:
        try:
            self._out.wake()
        except RuntimeError:  # its loop is closed
            self._end_soon(ConnectError(f"the connection was reset by {self.peer}, whose event loop has ended"))

    def gather(self) -> None:
        """It does."""

    def flush(self) -> None:
        """It is on its way."""

    @property
    def bytes_received(self) -> int:
        """Bytes received so far."""
        return self._in.received

    @property
    def bytes_sent(self) -> int:
        """Bytes of all frames sent so far, those still queued included."""
        return self._out.sent

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other end was not given yet."""
        return 0 if self._lost else self._out.sent - self._out.received

    def when_taken(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once the other end was given all that is queued now, or the connection has ended."""
        out = self._out
        if self._taken is None:
            self._taken = Taken(lambda: out.received)
        self._taken.add(out.sent, callback)
        if self._lost:
            self._taken.end()

    # -- receiving -------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Deliver no more frames to this end's handler."""
        self._in.deaf = True

    def resume_reading(self) -> None:
        """Deliver again."""
        self._in.deaf = False
        self._in.wake()

    @property
    def pending_bytes(self) -> int:
        """Nothing: frames come whole, and their memory is the sender's."""
        return 0

    def trim(self) -> None:
        """Nothing is held that could be smaller."""

    def compact(self) -> None:
        """Nothing is held that could be smaller."""

    def look(self) -> None:
        """Hand queued frames to the handler; then see what else has changed on the other side."""
        lane, out = self._in, self._out
        lane.scheduled = False
        if lane.ended is not None:
            self._end(lane.ended.error)
        for _ in range(min(_FRAMES_PER_TURN, len(lane.frames))):
            if lane.deaf or self._lost or not self._deliver(*lane.frames.popleft()):
                break
        if self._lost:
            return
        if lane.paused and lane.sent - lane.received < CONNECTION_WRITE_LOW:
            self._wake()
        if out.paused and out.sent - out.received < CONNECTION_WRITE_LOW:
            out.paused = False
            if self._handler is not None:
                self._handler.resume_writing()
        if lane.frames:
            if not lane.deaf:
                lane.wake()
        elif lane.closing:
            self._end(None)
            self._end_other(None)

    def _deliver(self, header: Sent, payload: memoryview) -> bool:
        self._in.received += len(payload) + _FRAME_OVERHEAD
        if self._closing or self._handler is None:
            return True  # this end has closed: as over TCP, what still arrives is dropped
        try:
            received = _received(header)
        except ProtocolError as e:
            self._end(e)
            self._end_other(_reset_by(self._name))
            return False
        self._handler.frame_received(received, payload)
        return True

    # -- ending ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let the other end have what is queued, then end both."""
        if not self._closing:
            self._closing = self._out.closing = True
            self._wake()

    def abort(self) -> None:
        """End both; what is queued is dropped."""
        self._closing = True
        self._end_other(_reset_by(self._name))
        self._end_soon(None)

    def _end_other(self, error: Exception | None) -> None:
        self._out.ended = _Ended(error)
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._out.wake()

    def _end_soon(self, error: Exception | None) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._in.frames.clear()
        if self._taken is not None:
            self._taken.end()
        if self._guard is not None:
            _finish(self._guard)
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(error)


async def _until_shutdown(end: weakref.ref[MemoryStream]) -> AsyncGenerator[None, None]:
    """End it when its loop is shut down, as asyncio.run() does at its end: only asynchronous generators are told.

    Its owner could not act on the news any more, and is told only where the loop goes on in spite of that.
    """
    try:
        yield
    finally:
        if (stream := end()) is not None and not stream._lost:
            stream._closing = True
            stream._end_other(_reset_by(stream._name))
            asyncio.get_running_loop().call_later(_AFTER_SHUTDOWN_S, stream._end, _reset_by(stream.peer))


def _finish(guard: AsyncGenerator[None, None]) -> None:
    with contextlib.suppress(StopIteration, RuntimeError):  # RuntimeError: it is what ends the stream
        guard.aclose().send(None)


def _reset_by(name: str) -> ConnectError:
    return ConnectError(f"the connection was reset by {name}")


def _pair(names: tuple[str, str]) -> tuple[MemoryStream, MemoryStream]:
    to_left, to_right = _Lane(), _Lane()
    return MemoryStream(names[1], names[0], to_left, to_right), MemoryStream(names[0], names[1], to_right, to_left)


def connect_pair(left: Accept, right: Accept, *, names: tuple[str, str] = ("client", "broker")) -> MemoryStream:
    """Two joined ends on the running loop, whose owners `left` and `right` make; the left end is returned.

    `names` are what each end is called by the other.
    """
    a, b = _pair(names)
    a._in.look, b._in.look = a.look, b.look
    call = asyncio.get_running_loop().call_soon
    b._settle(right, call)
    return a._settle(left, call)


def offer_pair(right: Accept, *, names: tuple[str, str]) -> MemoryStream:
    """Two ends, of which the right one, whose owner `right` makes, lives on the running loop. The left one is returned,
    to settle_far() on any loop. When it is collected, the right one is reset.
    """
    a, b = _pair(names)
    a._in.look, b._in.look = _look_weakly(a), _look_weakly(b)
    b._settle(right, asyncio.get_running_loop().call_soon_threadsafe)
    return a


def _look_weakly(end: MemoryStream) -> Callable[[], None]:
    """Its look(), which does not keep it; when it is collected unended, the other end is told."""
    name, incoming, out = end._name, end._in, end._out

    def collected(_: object) -> None:  # on any thread
        if incoming.ended is None and out.ended is None:
            out.ended = _Ended(_reset_by(name))
            with contextlib.suppress(RuntimeError):
                out.wake()

    ref = weakref.ref(end, collected)

    def look() -> None:
        if (found := ref()) is not None:
            found.look()

    return look


class MemoryConnector:
    """Connects a client to the broker in the same process and on the same loop, whatever the URL."""

    def __init__(self, accept: Accept) -> None:
        self._accept = accept

    async def connect(self, url: str, handler: Accept) -> FrameStream:
        """A connected stream."""
        return connect_pair(handler, self._accept, names=(CLIENT, url))


def _received(header: Sent) -> Header:
    return decode(*header) if type(header) is PackedHeader else cast(Header, header)


def _as_view(payload: Payload) -> memoryview:
    if isinstance(payload, memoryview):
        return payload
    if isinstance(payload, (bytes, bytearray)):
        return memoryview(payload)
    return memoryview(payload[0] if len(payload) == 1 else bytearray().join(payload))
