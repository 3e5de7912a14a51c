"""`Proxy`: one address for clients outside, behind which are all brokers. Wires the sessions and the HTTP door."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass

from engine.aio.bag import Bag
from engine.aio.memory_limiter import AsyncDualMemoryLimiter, LimitType
from engine.aio.semaphore import PoolStatistics
from engine.aio.tasks import Supervisor
from engine.broker.settings.doors import Doors, check_exposed
from engine.broker.settings.tls import tls_context
from engine.clock import SystemClock
from engine.errors import AlreadyClosedError, ConnectError, EngineError, InvalidConfigurationError
from engine.proxy.config import ProxyConfig
from engine.proxy.http import ProxyHttp
from engine.proxy.probe import probe
from engine.proxy.routes import Routes
from engine.proxy.session import Session
from engine.proxy.side import Side
from engine.wire.tcp import TcpConnector, bind, cannot_listen, reason
from engine.wire.url import format_url, parse_url

log = logging.getLogger(__name__)

DIAL_S_MAX = 5.0  # a broker has this long to take a connection
CLOSE_S_MAX = 2.0  # a client has this long to take what is queued for it when the proxy closes
# Failures of one client address that are pending at most: fewer than a broker takes of the proxy's address, where the
# brokers check what clients say, so that one client does not shut out the others.
_FAILURES_PENDING_MAX = 8
_REFUSED_MAX = 100  # connections above the limit that are told why they are refused


@dataclass(frozen=True, slots=True)
class ProxyStatistics:
    """Of one moment; bytes are since the start."""

    sessions: int
    sessions_total: int
    refused_total: int
    bytes_in: int  # from clients
    bytes_out: int
    unsent_bytes: int  # queued here for clients
    topic_lists: dict[LimitType, PoolStatistics]


class Proxy:
    """Keeps nothing that must survive. Loop thread only."""

    def __init__(self, config: ProxyConfig) -> None:
        """Raises InvalidConfigurationError: a certificate that cannot be used."""
        self.config = config
        self.routes = Routes(config)
        self.limiter = AsyncDualMemoryLimiter(config.heap, config.direct, "topic_list")
        self.tasks = Supervisor("proxy")
        self.tls_brokers = _trusting(config.broker_tls_ca)
        self.doors = Doors(SystemClock(), _FAILURES_PENDING_MAX)
        tls_context(config)  # raises now
        self._sessions: Bag[Session] = Bag()
        self._servers: list[asyncio.Server] = []
        self._http: ProxyHttp | None = None
        self._emptied = asyncio.Event()
        self._look: asyncio.Future[list[str]] | None = None  # for a broker that answers
        self._closed = False
        # Counted.
        self._sessions_total = 0
        self._refused_total = 0
        self._passed = [0, 0]  # by sessions that are over

    # -- life ------------------------------------------------------------------------------------------------------

    async def serve(self, host: str, port: int) -> tuple[str, int]:
        """Listen for clients; the address, with the port that was taken for 0. Raises ConnectError.

        InvalidConfigurationError: others than this machine reach the address, and there is no token.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        await check_exposed(host, self.config)
        tls = self.doors.tls(self.config)
        handshake = None if tls is None else self.config.handshake_timeout
        sock = bind(host, port)
        try:
            where = {"host": host, "port": port, "reuse_address": True} if sock is None else {"sock": sock}
            server = await loop.create_server(
                lambda: Session(self).client, backlog=1024, ssl=tls, ssl_handshake_timeout=handshake, **where
            )
        except OSError as e:
            if sock is not None:
                sock.close()
            raise cannot_listen(host, port, e) from e
        self._servers.append(server)
        address = server.sockets[0].getsockname()[:2]
        log.info("passing clients on from %s to %s", format_url(*address), ", ".join(self.config.brokers))
        return address[0], address[1]

    async def serve_admin(self, host: str, port: int) -> tuple[str, int]:
        """Serve health, metrics and, relayed to a broker, the admin API; the address. Raises what serve() raises."""
        self._check_open()
        await check_exposed(host, self.config)
        self._http = ProxyHttp(self)
        return await self._http.listen(host, port, self.doors.tls(self.config))

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError("the proxy was closed; make a new one")

    async def close(self) -> None:
        """Take no more connections, end those there are. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for server in self._servers:
            server.close()
        if self._http is not None:
            await self._http.close()
        for session in list(self._sessions):
            session.close()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                while self._sessions:
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            for session in list(self._sessions):
                session.abort()
        await self.tasks.close()

    # -- for sessions ----------------------------------------------------------------------------------------------

    def came(self, session: Session) -> EngineError | None:
        """A client has connected; why it may not stay."""
        self._sessions.add(session)
        self._sessions_total += 1
        if len(self._sessions) > self.config.connections_max:
            self._refused_total += 1
            if len(self._sessions) > self.config.connections_max + _REFUSED_MAX:
                session.client.abort()
            return ConnectError(f"the proxy has its maximum of {self.config.connections_max} connections")
        return ConnectError("the proxy is closing") if self._closed else None

    def forget(self, session: Session) -> None:
        """It is over. Idempotent."""
        if session in self._sessions:
            self._sessions.discard(session)
            for at, count in enumerate(session.passed):
                self._passed[at] += count
        if not self._sessions:
            self._emptied.set()

    async def dial(self, url: str, side: Side) -> None:
        """Connect a side to a broker. Raises ConnectError."""
        host, port = parse_url(url)
        try:
            async with asyncio.timeout(DIAL_S_MAX):
                await asyncio.get_running_loop().create_connection(lambda: side, host, port, ssl=self.tls_brokers)
        except TimeoutError as e:
            raise ConnectError(f"the proxy got no connection to {url} within {DIAL_S_MAX:g} s") from e
        except OSError as e:
            raise ConnectError(f"the proxy cannot connect to {url}: {reason(e)}") from e

    def admin_url_for(self, client: Side) -> str | None:
        """What a client is told: configured, or where this proxy serves it, by the address that it has dialled."""
        if self.config.admin_url is not None or self._http is None:
            return self.config.admin_url
        return self._http.url_for(client.local_host)

    async def admin_urls(self) -> list[str]:
        """Where the admin API is. While nobody has said, the brokers are asked."""
        if not self.routes.admins:
            await self.unready()
        return self.routes.admins

    # -- sight -----------------------------------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        """Whether no more clients are taken in."""
        return self._closed

    async def unready(self) -> list[str]:
        """Why no client should be sent here: no broker answers. [] when one does. Who asks meanwhile is told too."""
        if self._closed:
            return ["the proxy is closing"]
        if self._look is None:
            self._look = asyncio.ensure_future(self._reachable())
            self._look.add_done_callback(lambda _: setattr(self, "_look", None))
        return await asyncio.shield(self._look)

    async def _reachable(self) -> list[str]:
        reasons = []
        connector = TcpConnector(tls=self.tls_brokers, connect_timeout=DIAL_S_MAX)
        for url in self.routes.candidates(None, asyncio.get_running_loop().time()):
            try:
                self.routes.reached(url, await probe(connector, url, self.config))
            except ConnectError as e:
                reasons.append(str(e))
            else:
                return []
        return reasons

    def statistics(self) -> ProxyStatistics:
        """How it stands."""
        passed = list(self._passed)
        for session in self._sessions:
            for at, count in enumerate(session.passed):
                passed[at] += count
        return ProxyStatistics(
            sessions=len(self._sessions),
            sessions_total=self._sessions_total,
            refused_total=self._refused_total,
            bytes_in=passed[0],
            bytes_out=passed[1],
            unsent_bytes=sum(session.client.unsent_bytes for session in self._sessions),
            topic_lists=self.limiter.statistics(),
        )


def _trusting(path: str | None) -> ssl.SSLContext | None:
    """For TLS towards brokers whose certificate this file signs. Raises InvalidConfigurationError."""
    if path is None:
        return None
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as e:  # an SSLError is one
        raise InvalidConfigurationError(f"broker_tls_ca {path} cannot be used: {e.strerror or e}") from e
