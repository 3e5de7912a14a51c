"""`Proxy`: one address for external clients, in front of all brokers. Wires the sessions and the HTTP listener."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from socket import socket

from engine.aio.bag import Bag
from engine.aio.memory_limiter import AsyncDualMemoryLimiter, LimitType
from engine.aio.semaphore import PoolStatistics
from engine.aio.shielded import shielded
from engine.aio.tasks import Supervisor
from engine.broker.rights.audit import Audit
from engine.broker.settings.certificate_files import CertificateFiles
from engine.broker.settings.doors import Doors, check_exposed
from engine.broker.settings.tls import tls_context
from engine.clock import SystemClock
from engine.errors import AlreadyClosedError, ConnectError, EngineError, InvalidConfigurationError
from engine.proxy.clients import Clients
from engine.proxy.config import ProxyConfig
from engine.proxy.http import ProxyHttp
from engine.proxy.limits import RunTimeLimits
from engine.proxy.probe import probe
from engine.proxy.routes import Routes
from engine.proxy.session import Session
from engine.proxy.side import Side
from engine.wire import unix
from engine.wire.connector import SocketConnector
from engine.wire.tcp import BACKLOG, Listener, reason, serve
from engine.wire.url import format_url, parse_url, unix_path

log = logging.getLogger(__name__)

DIAL_S_MAX = 5.0  # limit for a broker to accept a connection
CLOSE_S_MAX = 2.0  # on close, clients have this long to read what is queued for them
# Limit of pending authentication failures of one client address: lower than a broker's limit for the proxy's address,
# where the brokers check the clients' tokens, so that one client does not shut out the others.
_FAILURES_PENDING_MAX = 8
_REFUSED_MAX = 100  # connections above the limit that are answered with the reason; further ones are aborted


@dataclass(frozen=True, slots=True)
class ProxyStatistics:
    """A snapshot; bytes are totals since the start."""

    sessions: int
    sessions_total: int
    refused_total: int
    bytes_in: int  # from clients
    bytes_out: int
    unsent_bytes: int  # queued here for clients
    topic_lists: dict[LimitType, PoolStatistics]


class Proxy:
    """Forwards clients' connections to brokers; has no persistent state."""

    def __init__(self, config: ProxyConfig, admin: Callable[[str | None], str | None] | None = None) -> None:
        """`admin`: where this proxy serves no admin API, the URL of one for a client that dialled an address.

        Raises InvalidConfigurationError for an unusable certificate, or audit_log.
        """
        self.config = config
        self.routes = Routes(config)
        self.limits = RunTimeLimits(config, self._configure)
        self.limiter = AsyncDualMemoryLimiter(config.heap, config.direct, "topic_list")
        self.tasks = Supervisor("proxy")
        self.tls_brokers = _to_brokers(config)
        clock = SystemClock()
        self.doors = Doors(clock, _FAILURES_PENDING_MAX)
        self.clients = Clients(config, self.doors.attempts, clock)
        self.audit = Audit(config.audit_log, clock)
        tls_context(config)  # raises now
        self._sessions: Bag[Session] = Bag()
        self._servers: list[Listener] = []
        self._http: ProxyHttp | None = None
        self._admin = admin
        self._emptied = asyncio.Event()
        self._look: asyncio.Future[list[str]] | None = None  # for a broker that answers
        self._closed = False
        # Counted.
        self._sessions_total = 0
        self._refused_total = 0
        self._passed = [0, 0]  # by sessions that are over

    # -- life ------------------------------------------------------------------------------------------------------

    async def serve(self, host: str, port: int, sock: socket | None = None) -> tuple[str, int]:
        """Listen for clients; returns (host, port), the port chosen for 0. `sock`: bound to it. Raises ConnectError.

        InvalidConfigurationError: the address is reachable from other machines, and no token is configured.
        """
        self._check_open()
        await check_exposed(host, self.config)
        server = await serve(
            host,
            port,
            lambda: Session(self).client,
            tls=self.doors.tls(self.config),
            handshake_timeout=self.config.handshake_timeout,
            backlog=BACKLOG,
            sock=sock,
        )
        self._servers.append(server)
        if len(self._servers) == 1:
            files = self.doors.files = CertificateFiles(lambda: self.limits.base, self.renew)
            self.tasks.spawn(files.follow(), "files of certificates")
        address = server.sockets[0].getsockname()[:2]
        log.info("forwarding clients from %s to %s", format_url(*address), ", ".join(self.config.brokers))
        return address[0], address[1]

    async def serve_admin(self, host: str, port: int) -> tuple[str, int]:
        """Serve health, metrics and, relayed to a broker, the admin API; the address. Raises what serve() raises."""
        self._check_open()
        await check_exposed(host, self.config)
        self._http = ProxyHttp(self)
        return await self._http.listen(host, port, self.doors.tls(self.config))

    def renew(self, config: ProxyConfig) -> None:
        """Read the files of certificates again, for later connections. Raises InvalidConfigurationError."""
        self.doors.renew(config)
        if self.tls_brokers is not None and (fresh := _to_brokers(config)) is not None:
            self.tls_brokers = fresh  # a context forgets no authority, so another one takes its place

    def _configure(self, config: ProxyConfig) -> None:
        """Apply the limits of this configuration; what was granted under a higher limit stays granted."""
        self.config = config
        for kind, limit in ((LimitType.HEAP_MEMORY, config.heap), (LimitType.DIRECT_MEMORY, config.direct)):
            pool = self.limiter.pool(kind)
            pool.timeout, pool.queue_max = limit.timeout, limit.queue_max
            pool.resize(limit.size)

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosedError("the proxy is closed; make a new one")

    async def close(self) -> None:
        """Refuse further connections, end the open ones. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for server in self._servers:
            server.close()
        if self._http is not None:
            await self._http.close()
        await self.doors.close()
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
        self.audit.close()

    # -- for sessions ----------------------------------------------------------------------------------------------

    def came(self, session: Session) -> EngineError | None:
        """Register a new session; returns why it is refused; None: it is not."""
        self._sessions.add(session)
        self._sessions_total += 1
        if len(self._sessions) > self.config.connections_max:
            self._refused_total += 1
            if len(self._sessions) > self.config.connections_max + _REFUSED_MAX:
                session.client.abort()
            return ConnectError(f"the proxy has its maximum of {self.config.connections_max} connections")
        return ConnectError("the proxy is closing") if self._closed else None

    def forget(self, session: Session) -> None:
        if session in self._sessions:
            self._sessions.discard(session)
            for at, count in enumerate(session.passed):
                self._passed[at] += count
        if not self._sessions:
            self._emptied.set()

    async def dial(self, url: str, side: Side) -> None:
        """Connect a side to a broker. Raises ConnectError."""
        path = unix_path(url)
        if path is not None:
            await unix.connect(path, lambda: side, DIAL_S_MAX)
            return
        host, port = parse_url(url)
        try:
            async with asyncio.timeout(DIAL_S_MAX):
                await asyncio.get_running_loop().create_connection(lambda: side, host, port, ssl=self.tls_brokers)
        except TimeoutError as e:
            raise ConnectError(f"the proxy could not connect to {url} within {DIAL_S_MAX:g} s") from e
        except OSError as e:
            raise ConnectError(f"the proxy cannot connect to {url}: {reason(e)}") from e

    def admin_url_for(self, client: Side) -> str | None:
        """The advertised admin URL: configured, or this proxy's, with the host that the client dialled."""
        if self.config.admin_url is not None:
            return self.config.admin_url
        url_for = self._admin if self._http is None else self._http.url_for
        return None if url_for is None else url_for(client.local_host)

    async def admin_urls(self) -> list[str]:
        """URLs of the brokers' admin APIs. If none is known, the brokers are probed."""
        if not self.routes.admins:
            await self.unready()
        return self.routes.admins

    # -- sight -----------------------------------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        """Whether further clients are refused."""
        return self._closed

    async def unready(self) -> list[str]:
        """Why the proxy is not ready: no broker answers. [] when one does. Concurrent calls share one probe."""
        if self._closed:
            return ["the proxy is closing"]
        if self._look is None:
            self._look = asyncio.ensure_future(self._reachable())
            self._look.add_done_callback(lambda _: setattr(self, "_look", None))
        return await shielded(self._look)

    async def _reachable(self) -> list[str]:
        reasons = []
        connector = SocketConnector(tls=self.tls_brokers, connect_timeout=DIAL_S_MAX)
        for url in self.routes.candidates(None, asyncio.get_running_loop().time()):
            try:
                self.routes.reached(url, await probe(connector, url, self.config))
            except ConnectError as e:
                reasons.append(str(e))
            else:
                return []
        return reasons

    def statistics(self) -> ProxyStatistics:
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


def _to_brokers(config: ProxyConfig) -> ssl.SSLContext | None:
    """The TLS context of connections to brokers; None: plain text. Raises InvalidConfigurationError."""
    path = config.broker_tls_ca
    if path is None:
        return None
    try:
        context = ssl.create_default_context(cafile=path)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    except OSError as e:  # an SSLError is one
        raise InvalidConfigurationError(f"broker_tls_ca {path} cannot be used: {e.strerror or e}") from e
    _show(context, config)
    return context


def _show(context: ssl.SSLContext, config: ProxyConfig) -> None:
    if config.broker_tls_cert is None:
        return
    try:
        context.load_cert_chain(config.broker_tls_cert, config.broker_tls_key)
    except OSError as e:
        files = f"{config.broker_tls_cert} and {config.broker_tls_key}"
        raise InvalidConfigurationError(f"broker_tls_cert {files} cannot be used: {e.strerror or e}") from e
