"""A stream of frames over a socket, TCP or Unix: the protocol object of one connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from engine._native.wire.frames import JOIN_MAX
from engine.aio.forked import close_when_forked
from engine.errors import ConnectError, ProtocolError
from engine.limits import CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW, FRAME_SIZE_MAX
from engine.wire.chunks import ChunkPool
from engine.wire.commands import Header
from engine.wire.framing import FrameReader, encode
from engine.wire.stream import Buffer, FrameHandler, FrameStream, Payload, Recognise, Sent, Speaker
from engine.wire.taken import Taken
from engine.wire.url import format_url

if TYPE_CHECKING:
    from engine.wire.certificates import Certificate
    from engine.wire.credentials import Peer

_SMALL = JOIN_MAX  # frames up to this size are gathered while a burst of them is being sent
_GATHERED_MAX = 64 * 1024

Accept = Callable[[FrameStream], FrameHandler]


def _unconnected(header: Header, payload: memoryview) -> None:
    """Before there is a connection, and behind its end, there is nothing to deliver."""


class SocketStream(asyncio.BufferedProtocol):
    """One connection as a FrameStream.

    The first frame of a loop iteration goes to the system at once; small ones that follow in the same iteration
    are gathered into one write at its end.
    """

    __slots__ = (
        "__weakref__",
        "_closing",
        "_encode",
        "_error",
        "_gathered",
        "_gathered_bytes",
        "_handler",
        "_loop",
        "_lost",
        "_make_handler",
        "_reader",
        "_speaker",
        "_taken",
        "_transport",
        "_uncork_due",
        "_url",
        "bytes_sent",
        "peer",
    )  # fmt: skip

    def __init__(
        self,
        make_handler: Accept,
        pool: ChunkPool,
        frame_size_max: int = FRAME_SIZE_MAX,
        url: str | None = None,
        recognise: Recognise | None = None,
    ) -> None:
        """`url`: that of a Unix socket; a TCP socket knows its own. `recognise`: other protocols that are served."""
        self.peer = "not connected"
        self._url = url
        self.bytes_sent = 0
        self._make_handler: Accept | None = make_handler
        self._handler: FrameHandler | None = None
        self._reader = FrameReader(pool, _unconnected, frame_size_max)
        self._encode: Callable[[Sent, Payload], tuple[list[Buffer], int]] = encode
        self._speaker: Speaker | None = None  # of another protocol
        if recognise is not None:
            self._reader.recognise = lambda first: self._look(recognise, first)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._error: Exception | None = None
        self._closing = False
        self._lost = False
        # Frames gathered in this iteration.
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._uncork_due = False
        self._taken: Taken | None = None  # made at the first request

    # -- asyncio's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW)
        close_when_forked(self)
        name = transport.get_extra_info("peername")
        if self._url is not None:
            self.peer = f"{self._url} (process {self._credentials().process})"
        else:
            self.peer = format_url(name[0], name[1], "tcp") if isinstance(name, tuple) else "tcp"
        make_handler, self._make_handler = self._make_handler, None
        assert make_handler is not None
        handler = self._handler = make_handler(self)
        self._reader.deliver_to = handler.frame_received

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio: where to receive to."""
        return self._reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio: bytes were received."""
        try:
            self._reader.received(nbytes)
        except ProtocolError as e:
            self._fail(e)

    def eof_received(self) -> bool:
        """asyncio: the peer closed its side; so do we."""
        self.trim()  # a crowd that leaves at once is given no memory for that
        return False

    def pause_writing(self) -> None:
        """asyncio: over the high mark."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """asyncio: below the low mark."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection has ended, on request of either side or by a failure."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._gathered.clear()
        self._gathered_bytes = 0
        self._reader.paused = True
        self._reader.release()
        self._reader.deliver_to = _unconnected
        if self._taken is not None:
            self._taken.end()
        error = self._error
        if error is None and exc is not None:
            error = ConnectError(f"the connection to {self.peer} was lost: {exc}")
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(error)
        if self._speaker is not None:
            self._speaker.connection_lost()

    # -- FrameStream -----------------------------------------------------------------------------------------------

    def send(self, header: Sent, payload: Payload = b"") -> None:
        """Queue one frame."""
        if self._closing:
            return
        buffers, size = self._encode(header, payload)
        if not size:
            return
        self.bytes_sent += size
        if size > _SMALL:
            self._gathered.extend(buffers)
            self.flush()
        elif not self._uncork_due:
            self._uncork_due = True
            self._loop.call_soon(self._uncork)
            self._write(buffers)
        else:
            self._gathered.extend(buffers)
            self._gathered_bytes += size
            if self._gathered_bytes > _GATHERED_MAX:
                self.flush()

    def gather(self) -> None:
        """The first frame of this iteration waits for its end, too."""
        if not self._uncork_due:
            self._uncork_due = True
            self._loop.call_soon(self._uncork)

    def flush(self) -> None:
        """What was gathered goes now."""
        if self._gathered:
            buffers, self._gathered, self._gathered_bytes = self._gathered, [], 0
            self._write(buffers)

    @property
    def unsent_bytes(self) -> int:
        """Bytes queued in this process."""
        transport = self._transport
        return self._gathered_bytes + (0 if transport is None or self._lost else transport.get_write_buffer_size())

    def when_taken(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once the system has taken all that is queued now, or the connection has ended."""
        if self._taken is None:
            self._taken = Taken(lambda: self.bytes_sent - self.unsent_bytes)
        self._taken.add(self.bytes_sent, callback)
        if self._lost:
            self._taken.end()

    @property
    def bytes_received(self) -> int:
        """Bytes received since the connection was made; grows while the peer is alive."""
        return self._reader.bytes_received

    @property
    def header_size(self) -> int:
        """Bytes of the header of the frame that is being delivered."""
        return self._reader.header_size

    @property
    def pending_bytes(self) -> int:
        """Bytes received of a frame that is not whole, or that is not wanted yet."""
        return self._reader.pending_bytes

    @property
    def local_url(self) -> str | None:
        """This end's own address as a service URL: what the peer of an accepted connection has dialled."""
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        return format_url(name[0], name[1]) if isinstance(name, tuple) else self._url

    @property
    def is_near(self) -> bool:
        """Whether the other end has this end's address, as it has on the same machine alone, or it is a Unix socket."""
        if self._url is not None:
            return True
        transport = self._transport
        ends = [] if transport is None else [transport.get_extra_info(end) for end in ("sockname", "peername")]
        return len({end[0] for end in ends if isinstance(end, tuple)}) == 1

    @property
    def certificate(self) -> Certificate | None:
        """That of the peer, which TLS has verified; None: it has shown none."""
        found = None if self._transport is None else self._transport.get_extra_info("peercert")
        if not found:
            return None
        from engine.wire.certificates import certificate_of  # few peers show one

        return certificate_of(self._transport)

    @property
    def peer_user(self) -> int | None:
        """The user id of the process that made the other end of a Unix socket; None over TCP."""
        return None if self._url is None or self._transport is None else self._credentials().user

    def _credentials(self) -> Peer:
        from engine.wire.credentials import peer_of  # few connections are of Unix sockets

        assert self._transport is not None
        return peer_of(self._transport.get_extra_info("socket"))

    def descriptors(self) -> tuple[int, ...]:
        """Of the socket, while it is open: asyncio closes it behind connection_lost(), or with the loop."""
        if self._lost or self._transport is None or self._loop.is_closed():
            return ()
        sock = self._transport.get_extra_info("socket")
        return () if sock is None else (sock.fileno(),)

    def compact(self) -> None:
        """Hold no more memory than half a received frame needs. For connections that went quiet."""
        self._reader.compact()

    def trim(self) -> None:
        """Hold little more memory than what is received and not delivered needs; costs little however often."""
        self._reader.trim()

    def pause_reading(self) -> None:
        """Deliver no more frames."""
        if not self._reader.paused and not self._closing and self._transport is not None:
            self._reader.paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver frames again, first those already received."""
        if not self._reader.paused or self._closing or self._transport is None:
            return
        self._reader.paused = False
        try:
            self._reader.deliver()
        except ProtocolError as e:
            self._fail(e)
        if not self._reader.paused and not self._closing:
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._closing:
            return
        self.flush()
        self._closing = self._reader.paused = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once. On a loop that has been closed, this is the end of the connection for the peer alone."""
        self._closing = self._reader.paused = True
        if self._transport is None or self._lost:
            return
        if not self._loop.is_closed():
            self._transport.abort()
        elif (sock := self._transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError, TypeError):  # uvloop has closed it, and refuses
                sock.shutdown(socket.SHUT_RDWR)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _look(self, recognise: Recognise, first: bytes) -> Speaker | None:
        """Whose protocol the first bytes are of; None: they are ours."""
        assert self._handler is not None
        self._speaker = recognise(first, self, self._handler)
        if self._speaker is not None:
            self._encode = self._speaker.encode
        return self._speaker

    def _fail(self, error: ProtocolError) -> None:
        self._error = self._error or error
        self.abort()

    def _uncork(self) -> None:
        self._uncork_due = False
        self.flush()

    def _write(self, buffers: list[Buffer]) -> None:
        transport = self._transport
        if self._closing or transport is None:
            return
        if len(buffers) == 1:
            transport.write(buffers[0])
        elif sum(map(len, buffers)) <= _GATHERED_MAX:
            transport.write(b"".join(buffers))
        else:
            transport.writelines(buffers)
