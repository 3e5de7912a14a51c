"""`HttpDoor`: one HTTP listener, and its errors as JSON."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Collection

from aiohttp import web

from engine.aio.semaphore import PoolStatistics
from engine.broker.openapi import CODES
from engine.errors import ConnectError, EngineError, InvalidArgumentError
from engine.limits import HTTP_CONNECTIONS_MAX
from engine.wire.tcp import bind, cannot_listen
from engine.wire.url import format_url

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Middleware = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]
WILDCARDS = ("0.0.0.0", "::", "")
_REFUSED_MAX = 100  # connections above the limit that are told why they are refused


class HttpDoor:
    """Serves one application until it is closed.

    To so many connections: a request over one that came above them is answered 503, unless it is for one of the paths
    that are `always` answered, and that is its last. Of connections still above, there are a few, and the others are
    closed at once.
    """

    def __init__(self, application: web.Application, always: Collection[str] = ()) -> None:
        application.middlewares[:0] = (self._only_so_many, _only_origin_form)
        self.connections_max = HTTP_CONNECTIONS_MAX
        self.refused = 0  # connections, or requests over them
        self._full = False  # a connection was closed at once, and none has found room since
        self._always = always
        self._runner: web.AppRunner | None = web.AppRunner(application, access_log=None)
        self.scheme = "http"
        self.host = ""
        self.port = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Serve; the address, with the port that was taken for 0. Raises ConnectError."""
        runner = self._runner
        assert runner is not None
        await runner.setup()
        assert runner.server is not None
        self._count(runner.server)
        try:
            sock = bind(host, port)
            if sock is None:
                await web.TCPSite(runner, host, port, ssl_context=tls).start()
            else:
                await web.SockSite(runner, sock, ssl_context=tls).start()
        except ConnectError:
            await self.close()
            raise
        except OSError as e:
            await self.close()
            raise cannot_listen(host, port, e) from e
        self.scheme = "http" if tls is None else "https"
        self.host, self.port = runner.addresses[0][:2]
        return self.host, self.port

    @property
    def connections(self) -> int:
        """How many there are."""
        server = None if self._runner is None else self._runner.server
        return 0 if server is None else len(server.connections)

    def _count(self, server: web.Server) -> None:
        """Look at each connection when it comes."""
        made = server.connection_made

        def connection_made(handler: web.RequestHandler, transport: asyncio.Transport) -> None:
            made(handler, transport)
            connections, most = self.connections, self.connections_max
            if connections <= most:
                self._full = False
            elif connections > most + _REFUSED_MAX:
                self.refused += 1
                transport.abort()
                if not self._full:
                    log.warning("HTTP connections are closed at once: above the maximum of %d", most)
                self._full = True

        server.connection_made = connection_made  # type: ignore[method-assign]

    def _is_above(self, request: web.Request) -> bool:
        """Whether its connection came when there were as many as there may be, and there still are."""
        server = None if self._runner is None else self._runner.server
        if server is None or self.connections <= self.connections_max:
            return False
        return request.protocol not in server.connections[: self.connections_max]

    @web.middleware
    async def _only_so_many(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._is_above(request):
            return await handler(request)
        if request.path in self._always:
            response = await handler(request)
        else:
            self.refused += 1
            why = f"there are {self.connections_max} HTTP connections, as many as there may be; try again later"
            response = _error(503, why, ConnectError.code)
        response.force_close()
        return response

    def statistics(self) -> PoolStatistics:
        """How it stands."""
        return PoolStatistics(
            "http_connections", "connections", self.connections, self.connections_max, refusals=self.refused
        )

    def url_for(self, dialled: str | None = None) -> str:
        """Where it is served. One on all interfaces is on the one that somebody has `dialled`."""
        host = dialled if dialled is not None and self.host in WILDCARDS else self.host
        return format_url(host, self.port, self.scheme)

    async def close(self) -> None:
        """Finish what is being answered and stop. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


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
    """What a handler raises as a status and a JSON object with the reason and the wire code; never a traceback."""
    try:
        return await handler(request)
    except EngineError as e:
        return _error(CODES.get(type(e), 500), str(e), e.code)
    except web.HTTPException as e:
        response = _error(e.status, f"{request.method} {request.path}: {e.reason}", InvalidArgumentError.code)
        if "Allow" in e.headers:
            response.headers["Allow"] = e.headers["Allow"]
        return response
    except Exception as e:
        log.exception("%s %s failed", request.method, request.path)
        return _error(500, f"the server failed: {type(e).__name__}: {e}", EngineError.code)


def _error(status: int, reason: str, code: int) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"reason": reason, "code": code}, status=status, headers=headers)
