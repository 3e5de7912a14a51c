"""Streams of frames over TCP: dial, listen."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from engine.errors import ConnectError
from engine.limits import FRAME_SIZE_MAX, HANDSHAKE_S_MAX
from engine.wire.chunks import ChunkPool
from engine.wire.sockets import Accept, SocketStream
from engine.wire.stream import FrameStream, Recognise
from engine.wire.url import format_url, parse_url

if TYPE_CHECKING:
    from engine.wire.tls_listener import TlsListener

Listener: TypeAlias = "asyncio.Server | TlsListener"  # its `sockets`, and close()
BACKLOG = 1024


async def dial(
    url: str, handler: Accept, *, pool: ChunkPool, tls: ssl.SSLContext | None, timeout: float
) -> FrameStream:
    """A stream connected to engine://host:port. Raises ConnectError, InvalidArgumentError (the URL is malformed)."""
    host, port = parse_url(url)
    url = format_url(host, port)  # with the port that is dialled
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            _, stream = await loop.create_connection(lambda: SocketStream(handler, pool), host, port, ssl=tls)
    except TimeoutError as e:
        raise ConnectError(f"no connection to {url} within {timeout:g} s") from e
    except OSError as e:
        silent = tls is not None and isinstance(e, ConnectionError) and e.errno is None
        why = "it hung up before TLS was agreed on; does it speak TLS?" if silent else reason(e)
        raise ConnectError(f"cannot connect to {url}: {why}") from e
    return stream


async def listen(
    host: str,
    port: int,
    accept: Accept,
    *,
    pool: ChunkPool,
    tls: TlsListener | None = None,
    handshake_timeout: float = HANDSHAKE_S_MAX,
    frame_size_max: int = FRAME_SIZE_MAX,
    sock: socket.socket | None = None,
    recognise: Recognise | None = None,
) -> Listener:
    """Serve connections; `accept` is called with each. Port 0 takes a free one.

    `tls`: what serves them by TLS; None: plain text. `handshake_timeout`: seconds that a peer has for the handshake of
    TLS, before which `accept` does not see it. `sock`: bound to the address already. `recognise`: other protocols that
    are served at the same address. Raises ConnectError when the address cannot be had.
    """

    def stream() -> SocketStream:
        return SocketStream(accept, pool, frame_size_max, recognise=recognise)

    return await serve(host, port, stream, tls=tls, handshake_timeout=handshake_timeout, backlog=BACKLOG, sock=sock)


async def serve(
    host: str,
    port: int,
    make: Callable[[], asyncio.BaseProtocol],
    *,
    tls: TlsListener | None,
    handshake_timeout: float,
    backlog: int,
    sock: socket.socket | None = None,
) -> Listener:
    """As listen(), for connections of any protocol: one that `make` makes."""
    if tls is not None:
        sockets = [sock] if sock is not None else await _bind_all(host, port)
        try:
            tls.serve(sockets, make, timeout=handshake_timeout, backlog=backlog)
        except OSError as e:
            tls.close()
            raise cannot_listen(host, port, e) from e
        return tls
    loop = asyncio.get_running_loop()
    sock = sock or bind(host, port)
    try:
        if sock is not None:
            return await loop.create_server(make, sock=sock, backlog=backlog)
        return await loop.create_server(make, host, port, reuse_address=True, backlog=backlog)
    except OSError as e:
        if sock is not None:
            sock.close()
        raise cannot_listen(host, port, e) from e


async def _bind_all(host: str, port: int) -> list[socket.socket]:
    """bind(), where a name is bound at each of its addresses; "": at all interfaces. Raises ConnectError."""
    sock = bind(host, port)
    if sock is not None:
        return [sock]
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for address in dict.fromkeys(str(address[0]) for *_, address in found):
            if (sock := bind(address, port)) is not None:
                sockets.append(sock)
    except BaseException as e:
        for sock in sockets:
            sock.close()
        if isinstance(e, OSError):
            raise cannot_listen(host, port, e) from e
        raise
    return sockets


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket | None:
    """A TCP socket at a numeric address, to listen on; None for a name, which may have several addresses.

    `reuse_port`: other sockets of this user that are bound likewise may have the same address. Raises ConnectError.

    Given the address, uvloop would start libuv's threads to look it up, and a child that this process forks would die
    of them at its end.
    """
    try:
        flags = socket.AI_PASSIVE | socket.AI_NUMERICHOST
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    except socket.gaierror:
        return None
    # asyncio turns Nagle's delay off only where a socket says that it is TCP; accepted ones say what this one says.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Not both: SO_REUSEADDR would let any program have a port that is bound and not listened on.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if reuse_port else socket.SO_REUSEADDR, 1)
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
