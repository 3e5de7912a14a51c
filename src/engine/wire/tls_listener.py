"""`TlsListener`: TLS of accepted connections, so that a handshake that fails is reported with the peer's address.

A server of asyncio that is given a context tells nothing of a handshake that fails, and makes one for every peer. This
one accepts by itself and hands each connection to the event loop once its peer has sent something. Until then it is
a descriptor and a timer: no memory of TLS is spent on it, and a peer that hangs up without a byte, as a probe of the
port does, has tried nothing. From the handshake on a connection is one of the loop's own, as with a server of asyncio.

Before a handshake begins, twice (when the connection is accepted, and when its peer speaks), the gate is asked whether
this address has failed too often; if so, the connection is closed and what the peer sent is not read. The gate also
bounds how many are under way, from accept() on, and may hang up on one of them to make room for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engine.aio.tasks import Supervisor

log = logging.getLogger(__name__)

ACCEPT_RETRY_S = 1.0  # without a free descriptor, accept() would fail again at once
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Make = Callable[[], asyncio.BaseProtocol]


class UnderWay(Protocol):
    """A handshake that was counted."""

    given_up: bool  # for another one


class Gate(Protocol):
    """What is remembered of addresses whose handshakes failed. An address is that of a host, without its port."""

    def handshakes_crowded(self, peer: str) -> bool:
        """Whether handshakes with it are refused now."""

    def handshake_begins(self, peer: str, give_up: Callable[[], None]) -> UnderWay | None:
        """Count one more; None: there are too many. `give_up`: hangs up on it; it has ended then."""

    def handshake_ended(self, begun: Any) -> None:
        """It has succeeded, failed or been given up. Idempotent. `begun`: what handshake_begins() has returned."""

    def handshake_failed(self, peer: str, why: str) -> None:
        """Record one that failed. `why`: a few words without anything that the peer sent."""


class TlsListener:
    """Serves at a few sockets once serve() was called. Loop thread only."""

    def __init__(self, context: ssl.SSLContext, gate: Gate) -> None:
        self.context = context
        self._gate = gate
        self._sockets: list[socket.socket] = []
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}  # sockets that accept nothing until then
        self._under_way: dict[socket.socket, UnderWay] = {}  # connections before the end of their handshake
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}  # of these, those without a byte so far
        self._speaking: set[socket.socket] = set()  # those in the handshake
        self._tasks = Supervisor("handshakes of TLS")

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """Those that listen, while they do."""
        return tuple(self._sockets)

    def serve(self, sockets: Sequence[socket.socket], make: Make, *, timeout: float, backlog: int) -> None:
        """Serve connections by the protocols that `make` makes, each when its handshake has succeeded.

        `sockets`: bound; they belong to the listener from now on. `timeout`: seconds that a peer has for the handshake,
        from accept() on. Raises OSError (a socket cannot listen).
        """
        loop = asyncio.get_running_loop()
        self._sockets.extend(sockets)
        for sock in sockets:
            sock.setblocking(False)
            sock.listen(backlog)
        for sock in sockets:
            loop.add_reader(sock, self._accept, sock, make, timeout, backlog)

    def close(self) -> None:
        """Accept no more connections, and abort the handshakes under way. Idempotent."""
        loop = asyncio.get_running_loop()
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            if (retry := self._retries.pop(sock, None)) is not None:
                retry.cancel()
            else:
                loop.remove_reader(sock)
            sock.close()
        for silent in list(self._silent):
            self._hang_up_on_silent(silent)
        for speaking in self._speaking:
            _hang_up(speaking)

    async def ended(self) -> None:
        """After close(): wait until the loop has closed the connections of the handshakes that were under way."""
        await self._tasks.drain()

    # -- before the handshake --------------------------------------------------------------------------------------

    def _accept(self, sock: socket.socket, make: Make, timeout: float, backlog: int) -> None:
        """As many as wait, up to `backlog`, so that a crowd does not stop the loop."""
        for _ in range(backlog):
            try:
                connection, address = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                if e.errno not in _EXHAUSTED:
                    raise  # the loop logs it
                log.error("no connections are accepted for %g s: %s", ACCEPT_RETRY_S, e.strerror)
                self._pause(sock, make, timeout, backlog)
                return
            connection.setblocking(False)
            self._accepted(connection, str(address[0]), make, timeout)

    def _pause(self, sock: socket.socket, make: Make, timeout: float, backlog: int) -> None:
        loop = asyncio.get_running_loop()

        def retry() -> None:
            del self._retries[sock]
            loop.add_reader(sock, self._accept, sock, make, timeout, backlog)

        loop.remove_reader(sock)
        self._retries[sock] = loop.call_later(ACCEPT_RETRY_S, retry)

    def _accepted(self, connection: socket.socket, peer: str, make: Make, timeout: float) -> None:
        if self._gate.handshakes_crowded(peer):
            connection.close()
            return
        begun = self._gate.handshake_begins(peer, lambda: self._give_up(connection))
        if begun is None:
            connection.close()
            return
        self._under_way[connection] = begun
        loop = asyncio.get_running_loop()
        loop.add_reader(connection, self._speaks, connection, peer, make, loop.time() + timeout)
        self._silent[connection] = loop.call_later(timeout, self._too_late, connection, peer, timeout)

    def _too_late(self, connection: socket.socket, peer: str, timeout: float) -> None:
        self._hang_up_on_silent(connection)
        self._gate.handshake_failed(peer, _no_handshake(timeout))

    def _give_up(self, connection: socket.socket) -> None:
        """For one of another address; it is no failure of this one."""
        if connection in self._silent:
            self._hang_up_on_silent(connection)
        else:
            _hang_up(connection)

    def _hang_up_on_silent(self, connection: socket.socket) -> None:
        self._hear_no_more(connection)
        connection.close()
        self._ended(connection)

    def _ended(self, connection: socket.socket) -> None:
        self._gate.handshake_ended(self._under_way.pop(connection))

    def _speaks(self, connection: socket.socket, peer: str, make: Make, until: float) -> None:
        """The peer has sent its first bytes, or hung up."""
        try:
            silent = not connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            silent = True
        if silent or self._gate.handshakes_crowded(peer):
            self._hang_up_on_silent(connection)
            return
        self._hear_no_more(connection)
        self._speaking.add(connection)
        self._tasks.spawn(self._shake_hands(connection, peer, make, until))

    def _hear_no_more(self, connection: socket.socket) -> None:
        self._silent.pop(connection).cancel()
        asyncio.get_running_loop().remove_reader(connection)

    # -- the handshake ---------------------------------------------------------------------------------------------

    async def _shake_hands(self, connection: socket.socket, peer: str, make: Make, until: float) -> None:
        loop = asyncio.get_running_loop()
        timeout = max(until - loop.time(), 0.001)  # the loop asks for a positive one
        try:
            await loop.connect_accepted_socket(make, connection, ssl=self.context, ssl_handshake_timeout=timeout)
        except OSError as e:  # an SSLError is one; the loop has closed the connection
            if self._sockets and not self._under_way[connection].given_up:  # else it was hung up on here
                self._gate.handshake_failed(peer, _why(e, timeout))
        except BaseException:
            _hang_up(connection)
            raise
        finally:
            self._speaking.discard(connection)
            self._ended(connection)


def _hang_up(connection: socket.socket) -> None:
    """Let the loop find the connection at its end, so that it closes it in its own time."""
    with contextlib.suppress(OSError):  # it has done so
        connection.shutdown(socket.SHUT_RDWR)


def _why(error: OSError, timeout: float) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or type(error).__name__
    if isinstance(error, ConnectionAbortedError):
        return _no_handshake(timeout)
    return "the peer hung up"


def _no_handshake(timeout: float) -> str:
    return f"none within {timeout:g} s"
