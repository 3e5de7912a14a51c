"""`Handshakes`: TLS of accepted connections, so that a handshake that fails is reported with the peer's address.

A listener that is given a context tells nothing of a handshake that fails, and would make one for every peer. Here it
accepts plain connections, each of which is refused at once, or upgraded to TLS and handed to the listener's protocol.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from engine.aio.tasks import Supervisor

Make = Callable[[], asyncio.BaseProtocol]


class Handshakes:
    """Those of one listener. Loop thread only."""

    def __init__(
        self, context: ssl.SSLContext, crowded: Callable[[str], bool], failed: Callable[[str, ssl.SSLError], None]
    ) -> None:
        """`crowded`: whether handshakes with this address are refused now. `failed`: called with it and the error."""
        self.context = context
        self.crowded = crowded
        self._failed = failed
        self._tasks = Supervisor("handshakes of TLS")

    def accepting(self, make: Make, timeout: float) -> Make:
        """What makes the protocols of a listener without TLS, of what makes those behind TLS.

        `timeout`: seconds that a peer has for the handshake, before which `make` is not called.
        """
        return lambda: _Accepted(self, make, timeout)

    async def close(self) -> None:
        """Abort those under way, and all that come. Idempotent."""
        await self._tasks.close()

    def begin(self, transport: asyncio.Transport, peer: str, make: Make, timeout: float) -> None:
        """Upgrade a connection."""
        if self._tasks.spawn(self._run(transport, peer, make, timeout)) is None:
            transport.abort()

    async def _run(self, transport: asyncio.Transport, peer: str, make: Make, timeout: float) -> None:
        loop, early = asyncio.get_running_loop(), _Early()
        try:
            secure = await loop.start_tls(
                transport, early, self.context, server_side=True, ssl_handshake_timeout=timeout
            )
        except ssl.SSLError as e:
            self._failed(peer, e)
        except OSError:  # it hung up, or took too long
            pass
        else:
            if secure is not None:
                early.hand_over(secure, make())
                return
        finally:
            if not early.handed_over:
                transport.abort()


class _Accepted(asyncio.Protocol):
    """A connection before its handshake begins."""

    def __init__(self, handshakes: Handshakes, make: Make, timeout: float) -> None:
        self._handshakes = handshakes
        self._make = make
        self._timeout = timeout

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        name = transport.get_extra_info("peername")
        peer = str(name[0]) if isinstance(name, tuple) else "unknown"
        if self._handshakes.crowded(peer):
            transport.abort()
        else:
            self._handshakes.begin(transport, peer, self._make, self._timeout)


class _Early(asyncio.Protocol):
    """Keeps what is received between the end of the handshake and the loop's next turn, when start_tls() returns."""

    def __init__(self) -> None:
        self.handed_over = False
        self._received = bytearray()
        self._at_end = self._lost = False

    def data_received(self, data: bytes) -> None:
        self._received += data

    def eof_received(self) -> bool:
        self._at_end = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    def hand_over(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        """Deliver to `protocol` what has happened so far, and have the rest delivered to it."""
        if self._lost:
            return
        self.handed_over = True
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        left = memoryview(self._received)
        while left and not transport.is_closing():
            if isinstance(protocol, asyncio.BufferedProtocol):
                room = memoryview(protocol.get_buffer(len(left)))
                size = min(len(room), len(left))
                room[:size] = left[:size]
                del room
                protocol.buffer_updated(size)
            else:
                assert isinstance(protocol, asyncio.Protocol)
                size = len(left)
                protocol.data_received(bytes(left))
            left = left[size:]
        if self._at_end and not transport.is_closing() and not protocol.eof_received():  # type: ignore[attr-defined]
            transport.close()
