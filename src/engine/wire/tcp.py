"""Streams of frames over TCP: connect, listen, and the protocol object of one connection."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, cast

from engine.errors import ConnectError, ProtocolError
from engine.limits import CONNECTION_WRITE_HIGH, CONNECTION_WRITE_LOW, FRAME_SIZE_MAX, HANDSHAKE_S_MAX
from engine.wire.chunks import ChunkPool
from engine.wire.commands import Header
from engine.wire.framing import FrameReader, encode
from engine.wire.stream import Buffer, FrameHandler, FrameStream, Payload, Sent
from engine.wire.taken import Taken
from engine.wire.url import format_url, parse_url

CONNECT_S_MAX = 10.0
_SMALL = 16 * 1024  # frames up to this size are gathered while a burst of them is being sent
_GATHERED_MAX = 64 * 1024

Accept = Callable[[FrameStream], FrameHandler]


class TcpStream(asyncio.BufferedProtocol):
    """One TCP connection as a FrameStream.

    The first frame of a loop iteration goes to the system at once; small ones that follow in the same iteration
    are gathered into one write at its end.
    """

    __slots__ = (
        "_closing",
        "_error",
        "_gathered",
        "_gathered_bytes",
        "_handler",
        "_loop",
        "_lost",
        "_make_handler",
        "_reader",
        "_taken",
        "_transport",
        "_uncork_due",
        "bytes_sent",
        "peer",
    )  # fmt: skip

    def __init__(self, make_handler: Accept, pool: ChunkPool, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self.peer = "not connected"
        self.bytes_sent = 0
        self._make_handler: Accept | None = make_handler
        self._handler: FrameHandler | None = None
        self._reader = FrameReader(pool, self._frame_received, frame_size_max)
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
        name = transport.get_extra_info("peername")
        self.peer = format_url(name[0], name[1], "tcp") if isinstance(name, tuple) else "tcp"
        make_handler, self._make_handler = self._make_handler, None
        assert make_handler is not None
        self._handler = make_handler(self)

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
        if self._taken is not None:
            self._taken.end()
        error = self._error
        if error is None and exc is not None:
            error = ConnectError(f"the connection to {self.peer} was lost: {exc}")
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_lost(error)

    # -- FrameStream -----------------------------------------------------------------------------------------------

    def send(self, header: Sent, payload: Payload = b"") -> None:
        """Queue one frame."""
        if self._closing:
            return
        buffers, size = encode(header, payload)
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

    def when_taken(self, tell: Callable[[], object]) -> None:
        """Call `tell()` once the system has taken all that is queued now, or the connection has ended."""
        if self._taken is None:
            self._taken = Taken(lambda: self.bytes_sent - self.unsent_bytes)
        self._taken.add(self.bytes_sent, tell)
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
        return format_url(name[0], name[1]) if isinstance(name, tuple) else None

    @property
    def is_near(self) -> bool:
        """Whether the other end has this end's address, as it has on the same machine alone."""
        transport = self._transport
        ends = [] if transport is None else [transport.get_extra_info(end) for end in ("sockname", "peername")]
        return len({end[0] for end in ends if isinstance(end, tuple)}) == 1

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
        """Close at once."""
        self._closing = self._reader.paused = True
        if self._transport is not None and not self._lost:
            self._transport.abort()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _frame_received(self, header: Header, payload: memoryview) -> None:
        if self._handler is not None:
            self._handler.frame_received(header, payload)

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


class TcpConnector:
    """Connects to service URLs over TCP, with TLS when it is given a context."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, connect_timeout: float = CONNECT_S_MAX) -> None:
        self._tls = tls
        self._timeout = connect_timeout
        self._pool = ChunkPool()

    async def connect(self, url: str, handler: Accept) -> FrameStream:
        """A connected stream. Raises ConnectError saying what was wrong, InvalidArgumentError for a malformed URL."""
        host, port = parse_url(url)
        url = format_url(host, port)  # with the port that is dialled
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                _, stream = await loop.create_connection(
                    lambda: TcpStream(handler, self._pool), host, port, ssl=self._tls
                )
        except TimeoutError as e:
            raise ConnectError(f"no connection to {url} within {self._timeout:g} s") from e
        except OSError as e:
            silent = self._tls is not None and isinstance(e, ConnectionError) and e.errno is None
            why = "it hung up before TLS was agreed on; does it speak TLS?" if silent else reason(e)
            raise ConnectError(f"cannot connect to {url}: {why}") from e
        return stream


async def listen(
    host: str,
    port: int,
    accept: Accept,
    *,
    pool: ChunkPool,
    tls: ssl.SSLContext | None = None,
    handshake_timeout: float = HANDSHAKE_S_MAX,
    frame_size_max: int = FRAME_SIZE_MAX,
) -> asyncio.Server:
    """Serve connections; `accept` is called with each. Port 0 takes a free one.

    `handshake_timeout`: seconds that a peer has for the handshake of TLS, before which `accept` does not see it.
    Raises ConnectError when the address cannot be had.
    """
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {
        "ssl": tls,
        "ssl_handshake_timeout": None if tls is None else handshake_timeout,
        "backlog": 1024,
    }
    sock = bind(host, port)
    try:
        if sock is not None:
            return await loop.create_server(lambda: TcpStream(accept, pool, frame_size_max), sock=sock, **options)
        return await loop.create_server(
            lambda: TcpStream(accept, pool, frame_size_max), host, port, reuse_address=True, **options
        )
    except OSError as e:
        if sock is not None:
            sock.close()
        raise cannot_listen(host, port, e) from e


def bind(host: str, port: int) -> socket.socket | None:
    """A TCP socket at a numeric address, to listen on; None for a name, which may have several addresses.

    Given the address, uvloop would start libuv's threads to look it up, and a child that this process forks would die
    of them at its end. Raises ConnectError.
    """
    try:
        flags = socket.AI_PASSIVE | socket.AI_NUMERICHOST
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    except socket.gaierror:
        return None
    # asyncio turns Nagle's delay off only where a socket says that it is TCP; accepted ones say what this one says.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(address)
    except OSError as e:
        sock.close()
        raise cannot_listen(host, port, e) from e
    return sock


def cannot_listen(host: str, port: int, error: OSError) -> ConnectError:
    """What to say when an address cannot be had."""
    return ConnectError(f"cannot listen on {host}:{port}: {reason(error)}")


def reason(error: OSError) -> str:
    """Why an address could not be dialled or taken, as a person would say it."""
    several = error.errno is None and f"[Errno {errno.ECONNREFUSED}]" in str(error)  # a name with several addresses
    if error.errno == errno.ECONNREFUSED or several:
        return "connection refused; is a broker listening there?"
    if error.errno == errno.EADDRINUSE:
        return "the address is in use by another program"
    return error.strerror or str(error)
