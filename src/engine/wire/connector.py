"""`SocketConnector`: connects to service URLs over sockets."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from engine.wire import tcp, unix
from engine.wire.chunks import ChunkPool
from engine.wire.sockets import Accept
from engine.wire.stream import FrameStream
from engine.wire.url import unix_path

CONNECT_S_MAX = 10.0

Tls = ssl.SSLContext | Callable[[], ssl.SSLContext]  # a function is asked for each new connection


def present(tls: Tls | None) -> ssl.SSLContext | None:
    """That of a connection which is made now."""
    return tls if tls is None or isinstance(tls, ssl.SSLContext) else tls()


class SocketConnector:
    """Connects over TCP, with TLS when it is given a context, or to a Unix socket."""

    def __init__(
        self, *, tls: Tls | None = None, connect_timeout: float = CONNECT_S_MAX, user: int | None = None
    ) -> None:
        """`user`: the id of another user that may serve Unix sockets."""
        self._user = user
        self.tls = tls  # of later connections
        self._timeout = connect_timeout
        self._pool = ChunkPool()

    async def connect(self, url: str, handler: Accept) -> FrameStream:
        """A connected stream. Raises ConnectError saying what was wrong, InvalidArgumentError for a malformed URL."""
        path = unix_path(url)
        if path is not None:
            return await unix.dial(path, handler, pool=self._pool, timeout=self._timeout, user=self._user)
        return await tcp.dial(url, handler, pool=self._pool, tls=present(self.tls), timeout=self._timeout)
