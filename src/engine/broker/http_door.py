"""`HttpDoor`: one HTTP listener, and its errors as JSON."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from engine.broker.openapi import CODES
from engine.errors import ConnectError, EngineError, InvalidArgumentError
from engine.wire.tcp import bind, cannot_listen
from engine.wire.url import format_url

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Middleware = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]
WILDCARDS = ("0.0.0.0", "::", "")


class HttpDoor:
    """Serves one application until it is closed."""

    def __init__(self, application: web.Application) -> None:
        self._runner: web.AppRunner | None = web.AppRunner(application, access_log=None)
        self.scheme = "http"
        self.host = ""
        self.port = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Serve; the address, with the port that was taken for 0. Raises ConnectError."""
        runner = self._runner
        assert runner is not None
        await runner.setup()
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
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What a handler raises as a status and a JSON object with the reason and the wire code; never a traceback."""
    try:
        return await handler(request)
    except EngineError as e:
        return _error(CODES.get(type(e), 500), str(e), e.code)
    except web.HTTPException as e:
        return _error(e.status, f"{request.method} {request.path}: {e.reason}", InvalidArgumentError.code)
    except Exception as e:
        log.exception("%s %s failed", request.method, request.path)
        return _error(500, f"the server failed: {type(e).__name__}: {e}", EngineError.code)


def _error(status: int, reason: str, code: int) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"reason": reason, "code": code}, status=status, headers=headers)
