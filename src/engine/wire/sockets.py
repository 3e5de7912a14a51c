"""A stream of frames over a socket, TCP or Unix: the protocol object of one connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from engine._native.wire.socket_end import SocketEnd
from engine.aio.forked import close_when_forked
from engine.errors import ConnectError, ProtocolError
from engine.limits import CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW, FRAME_SIZE_MAX
from engine.wire.chunks import ChunkPool
from engine.wire.commands import Header
from engine.wire.commands import encode as pack
from engine.wire.framing import FrameReader
from engine.wire.stream import FrameHandler, FrameStream, Recognise, Speaker
from engine.wire.taken import Taken
from engine.wire.url import format_url

if TYPE_CHECKING:
    from engine.wire.certificates import Certificate
    from engine.wire.credentials import Peer

Accept = Callable[[FrameStream], FrameHandler]


def _unconnected(header: Header, payload: memoryview) -> None:
    """Before there is a connection, and behind its end, there is nothing to deliver."""


class SocketStream(SocketEnd, asyncio.BufferedProtocol):
    """One connection as a FrameStream. What repeats with each frame is its native base."""

    __slots__ = (
        "__weakref__", "_error", "_handler", "_make_handler", "_taken", "_url", "peer",
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
        reader = FrameReader(pool, _unconnected, frame_size_max)
        super().__init__(reader, asyncio.get_running_loop(), pack)
        self.peer = "not connected"
        self._url = url
        self._make_handler: Accept | None = make_handler
        self._handler: FrameHandler | None = None
        if recognise is not None:
            reader.recognise = lambda first: self._look(recognise, first)
        self._error: Exception | None = None
        self._taken: Taken | None = None  # made at the first request

    # -- asyncio's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is there."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW)
        close_when_forked(self)
        name = transport.get_extra_info("peername")
        if self._url is not None:
            self.peer = f"{self._url} (process {self._credentials().process})"
        else:
            self.peer = format_url(name[0], name[1], "tcp") if isinstance(name, tuple) else "tcp"
        make_handler, self._make_handler = self._make_handler, None
        assert make_handler is not None
        handler = self._handler = make_handler(self)
        self.reader.deliver_to = handler.frame_received

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
        if self.lost:
            return
        self.lost = self.closing = True
        self.forget()
        self.reader.paused = True
        self.reader.release()
        self.reader.deliver_to = _unconnected
        if self._taken is not None:
            self._taken.end()
        error = self._error
        if error is None and exc is not None:
            error = ConnectError(f"the connection to {self.peer} was lost: {exc}")
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(error)
        if self.speaker is not None:
            self.speaker.connection_lost()

    # -- FrameStream -----------------------------------------------------------------------------------------------

    def when_taken(self, callback: Callable[[], object]) -> None:
        """Call `callback()` once the system has taken all that is queued now, or the connection has ended."""
        if self._taken is None:
            self._taken = Taken(lambda: self.bytes_sent - self.unsent_bytes)
        self._taken.add(self.bytes_sent, callback)
        if self.lost:
            self._taken.end()

    @property
    def bytes_received(self) -> int:
        """Bytes received since the connection was made; grows while the peer is alive."""
        return self.reader.bytes_received

    @property
    def header_size(self) -> int:
        """Bytes of the header of the frame that is being delivered."""
        return self.reader.header_size

    @property
    def pending_bytes(self) -> int:
        """Bytes received of a frame that is not whole, or that is not wanted yet."""
        return self.reader.pending_bytes

    @property
    def local_url(self) -> str | None:
        """This end's own address as a service URL: what the peer of an accepted connection has dialled."""
        name = None if self.transport is None else self.transport.get_extra_info("sockname")
        return format_url(name[0], name[1]) if isinstance(name, tuple) else self._url

    @property
    def is_near(self) -> bool:
        """Whether the other end has this end's address, as it has on the same machine alone, or it is a Unix socket."""
        if self._url is not None:
            return True
        transport = self.transport
        ends = [] if transport is None else [transport.get_extra_info(end) for end in ("sockname", "peername")]
        return len({end[0] for end in ends if isinstance(end, tuple)}) == 1

    @property
    def certificate(self) -> Certificate | None:
        """That of the peer, which TLS has verified; None: it has shown none."""
        found = None if self.transport is None else self.transport.get_extra_info("peercert")
        if not found:
            return None
        from engine.wire.certificates import certificate_of  # few peers show one

        return certificate_of(self.transport)

    @property
    def peer_user(self) -> int | None:
        """The user id of the process that made the other end of a Unix socket; None over TCP."""
        return None if self._url is None or self.transport is None else self._credentials().user

    def _credentials(self) -> Peer:
        from engine.wire.credentials import peer_of  # few connections are of Unix sockets

        assert self.transport is not None
        return peer_of(self.transport.get_extra_info("socket"))

    def descriptors(self) -> tuple[int, ...]:
        """Of the socket, while it is open: asyncio closes it behind connection_lost(), or with the loop."""
        if self.lost or self.transport is None or self.loop.is_closed():
            return ()
        sock = self.transport.get_extra_info("socket")
        return () if sock is None else (sock.fileno(),)

    def compact(self) -> None:
        """Hold no more memory than half a received frame needs. For connections that went quiet."""
        self.reader.compact()

    def trim(self) -> None:
        """Hold little more memory than what is received and not delivered needs; costs little however often."""
        self.reader.trim()

    def pause_reading(self) -> None:
        """Deliver no more frames."""
        if not self.reader.paused and not self.closing and self.transport is not None:
            self.reader.paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver frames again, first those already received."""
        if not self.reader.paused or self.closing or self.transport is None:
            return
        self.reader.paused = False
        try:
            self.reader.deliver()
        except ProtocolError as e:
            self.fail(e)
        if not self.reader.paused and not self.closing:
            self.transport.resume_reading()

    def close(self) -> None:
        """Send what is queued, then close."""
        if self.closing:
            return
        self.flush()
        self.closing = self.reader.paused = True
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once. On a loop that has been closed, this is the end of the connection for the peer alone."""
        self.closing = self.reader.paused = True
        if self.transport is None or self.lost:
            return
        if not self.loop.is_closed():
            self.transport.abort()
        elif (sock := self.transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError, TypeError):  # uvloop has closed it, and refuses
                sock.shutdown(socket.SHUT_RDWR)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _look(self, recognise: Recognise, first: bytes) -> Speaker | None:
        """Whose protocol the first bytes are of; None: they are ours."""
        assert self._handler is not None
        speaker = self.speaker = recognise(first, self, self._handler)
        return speaker

    def fail(self, error: Exception) -> None:
        self._error = self._error or error
        self.abort()
