"""`HttpDoor`: one HTTP listener, and its errors as JSON."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from engine.aio.semaphore import PoolStatistics
from engine.broker.admin.http_checks import from_here_only
from engine.broker.admin.statuses import STATUSES
from engine.errors import ConnectError, EngineError, InvalidArgumentError
from engine.limits import HANDSHAKE_S_MAX, HTTP_CONNECTIONS_MAX, HTTP_HEAD_S_MAX
from engine.wire.tcp import Listener, serve
from engine.wire.url import WILDCARDS, format_url

if TYPE_CHECKING:
    from engine.broker.rights.audit import Audit
    from engine.wire.tls_listener import TlsListener

log = logging.getLogger(__name__)

CLOSE_S_MAX = 2.0  # on close, requests in progress have this long, and as long again once cancelled
_REFUSED_MAX = 100  # connections above the limit that are answered 503; further ones are aborted


class HttpDoor:
    """Serves one application until it is closed.

    At most `connections_max` connections. A further one replaces a connection without a request in progress: the one
    that has waited longest without a complete request head, or else the one idle longest since its last answer. So
    neither half-sent heads nor idle connections shut out new ones. When requests are in progress on all of them, a
    request over the new connection is answered 503, unless it is for one of the paths that are `always` answered, and
    the connection is closed after it. At most _REFUSED_MAX connections are answered so; further ones are aborted.
    """

    def __init__(
        self,
        application: web.Application,
        *,
        audit: Audit,
        always: Collection[str] = (),
        open_paths: Collection[str] = (),
        hosts: Callable[[], Collection[str]] = tuple,
        head_timeout: float = HTTP_HEAD_S_MAX,
    ) -> None:
        """`open_paths`, `hosts`, `audit`: see from_here_only(). `head_timeout`: seconds for the head of a request."""
        checks = from_here_only(hosts, open_paths, audit)
        application.middlewares[:0] = (self._only_so_many, _only_origin_form, answer_errors, checks)
        self.connections_max = HTTP_CONNECTIONS_MAX
        self.refused = 0  # connections, or requests over them
        self._full = False  # a connection was aborted, and none was accepted since
        self._always = always
        # aiohttp counts this from the start of a connection, and from each answer, until the next head is complete.
        self._runner: web.AppRunner | None = web.AppRunner(
            application,
            access_log=None,
            keepalive_timeout=head_timeout,
            shutdown_timeout=CLOSE_S_MAX,
            logger=_ServerLog(logging.getLogger("aiohttp.server"), {}),
        )
        self._server: Listener | None = None
        self._headless: dict[web.RequestHandler, None] = {}  # connections without a complete head so far, oldest first
        self._idle: dict[web.RequestHandler, None] = {}  # those that have been answered, oldest answer first
        self._leaving: set[web.RequestHandler] = set()  # closed to make room; its task may not have ended yet
        self.scheme = "http"
        self.host = ""
        self.port = 0

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """Those that listen."""
        return () if self._server is None else self._server.sockets

    async def listen(
        self, host: str, port: int, tls: TlsListener | None = None, sock: socket.socket | None = None
    ) -> tuple[str, int]:
        """Serve; returns (host, port), the port chosen for 0. `sock`: bound to it already. Raises ConnectError."""
        runner = self._runner
        assert runner is not None
        await runner.setup()
        assert runner.server is not None
        self._count(runner.server)
        try:
            self._server = await serve(
                host, port, runner.server, tls=tls, handshake_timeout=HANDSHAKE_S_MAX, backlog=128, sock=sock
            )
        except ConnectError:
            await self.close()
            raise
        self.scheme = "http" if tls is None else "https"
        self.host, self.port = self._server.sockets[0].getsockname()[:2]
        return self.host, self.port

    @property
    def connections(self) -> int:
        return len(self._connections())

    def _connections(self) -> list[web.RequestHandler]:
        """Open connections in the order of their arrival."""
        server = None if self._runner is None else self._runner.server
        return [] if server is None else [one for one in server.connections if one not in self._leaving]

    def _count(self, server: web.Server) -> None:
        """Account for each connection when it opens and closes."""
        made, lost = server.connection_made, server.connection_lost

        def connection_made(handler: web.RequestHandler, transport: asyncio.Transport) -> None:
            made(handler, transport)
            self._make_room()
            self._headless[handler] = None
            connections, most = self.connections, self.connections_max
            if connections <= most:
                self._full = False
            elif connections > most + _REFUSED_MAX:
                self.refused += 1
                transport.abort()
                if not self._full:
                    log.warning("HTTP connections are aborted: above the maximum of %d", most)
                self._full = True

        def connection_lost(handler: web.RequestHandler, error: BaseException | None = None) -> None:
            self._headless.pop(handler, None)
            self._idle.pop(handler, None)
            lost(handler, error)

        server.connection_made = connection_made  # type: ignore[method-assign]
        server.connection_lost = connection_lost  # type: ignore[method-assign, assignment]

    def _make_room(self) -> None:
        """Above the limit: close a connection without a request in progress, in the class's order."""
        waiting = self._headless or self._idle
        if waiting and self.connections > self.connections_max:
            oldest = next(iter(waiting))
            del waiting[oldest]
            assert self._runner is not None
            assert self._runner.server is not None
            self._leaving.intersection_update(self._runner.server.connections)
            self._leaving.add(oldest)
            self.refused += 1
            oldest.force_close()

    def _is_above(self, request: web.Request) -> bool:
        """Whether its connection is beyond the first `connections_max` that are open."""
        connections = self._connections()
        return len(connections) > self.connections_max and request.protocol not in connections[: self.connections_max]

    @web.middleware
    async def _only_so_many(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        self._headless.pop(connection, None)
        self._idle.pop(connection, None)
        try:
            return await self._answer_if_room(request, handler)
        finally:
            if request.transport is not None:  # it is not lost
                self._idle[connection] = None

    async def _answer_if_room(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._is_above(request):
            return await handler(request)
        if request.path in self._always:
            response = await handler(request)
        else:
            self.refused += 1
            why = f"HTTP connection limit reached ({self.connections_max}); try again later"
            response = _error(503, why, ConnectError.code)
        response.force_close()
        return response

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(
            "http_connections", "connections", self.connections, self.connections_max, refusals=self.refused
        )

    def url_for(self, dialled: str | None = None) -> str:
        """The URL. When listening on all interfaces, its host is the one `dialled`."""
        host = dialled if dialled is not None and self.host in WILDCARDS else self.host
        return format_url(host, self.port, self.scheme)

    async def close(self) -> None:
        """Finish requests in progress and stop. Idempotent."""
        runner, self._runner = self._runner, None
        if self._server is not None:
            self._server.close()
        if runner is not None:
            await runner.cleanup()


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log, with one line for a malformed request, which any peer can send."""

    def exception(self, msg: object, *args: object, **options: Any) -> None:
        """Log an error with its traceback, unless it is the client's."""
        error = options.get("exc_info")
        if isinstance(error, HttpProcessingError):
            why = " ".join(error.message.split())
            log.warning("a malformed HTTP request from %s was refused: %.200s", args[0] if args else "a client", why)
        elif isinstance(error, web.RequestPayloadError):  # met when what a handler left of the body is passed over
            log.debug("the body of a request was not received: %.200s", " ".join(str(error).split()))
        else:
            super().exception(msg, *args, **options)


@web.middleware
async def _only_origin_form(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request target that names a host (RFC 9112, 3.2.2 and 3.2.3): this is no forward proxy."""
    target = request.raw_path
    if not target.startswith("/") or target.startswith("//"):
        why = f"the request target must be a path that begins with one '/', got {target!r:.80}"
        response = _error(400, why, InvalidArgumentError.code)
        response.force_close()
        return response
    return await handler(request)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a handler's exception with a status and a JSON object of reason and wire code; never a traceback."""
    try:
        return await handler(request)
    except EngineError as e:
        return _error(STATUSES.get(type(e), 500), str(e), e.code)
    except web.HTTPException as e:
        response = _error(e.status, f"{request.method} {request.path}: {e.reason}", InvalidArgumentError.code)
        if "Allow" in e.headers:
            response.headers["Allow"] = e.headers["Allow"]
        return response
    except (ConnectionError, web.RequestPayloadError) as e:  # the client disconnected, or its body is unreadable
        why = " ".join(str(e).split()) or type(e).__name__
        return _error(400, f"the body could not be read: {why}", InvalidArgumentError.code)
    except Exception as e:
        log.exception("%s %s failed", request.method, request.path)
        return _error(500, f"internal error: {type(e).__name__}: {e}", EngineError.code)


def _error(status: int, reason: str, code: int) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"reason": reason, "code": code}, status=status, headers=headers)
