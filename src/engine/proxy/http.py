"""The proxy's HTTP listener: its own health, metrics and limits, and the known routes of a broker's admin API, relayed.

What a client sends never decides where a request goes. The URL of a relayed request is built from a broker's base URL,
which brokers or the configuration name, and the template of the route that matched, filled with its quoted parts.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDict
from yarl import URL

from engine.broker.admin.http import HttpDoor
from engine.broker.admin.http_checks import (
    PROXY_CLIENT,
    PROXY_HEADERS,
    PROXY_ROLE,
    PROXY_TOKEN,
    audited,
    hosts_of,
    request_of,
)
from engine.broker.metrics.exposition import PageWriter, flat
from engine.broker.rights.need import Need
from engine.broker.rights.principal import Kind, Principal
from engine.broker.settings.attempts import Refusal
from engine.broker.settings.tokens import bearer_token
from engine.errors import AuthenticationError, ConnectError, InvalidArgumentError
from engine.limits import HTTP_BODY_S_MAX
from engine.model.admin_broker_operations import LIST_DYNAMIC_CONFIGURATION
from engine.model.admin_operations import OPERATIONS
from engine.model.admin_rights_operations import GET_PERMISSIONS
from engine.model.rights import CLUSTER, Right
from engine.proxy.limits import LIMITS
from engine.proxy.metrics import proxy_families
from engine.wire.tls_listener import TlsListener

if TYPE_CHECKING:
    from engine.proxy.server import Proxy

log = logging.getLogger(__name__)

HEALTH, READY, METRICS = "/health", "/ready", "/metrics"
LIMITS_PATH = "/admin/v2/proxy/configuration"
_OPEN = (HEALTH, READY)  # answered without a token
_OPERATION = Need(Right.OPERATE)
_PERMISSIONS = GET_PERMISSIONS.request({"resource": CLUSTER}).path
_OPERATORS = LIST_DYNAMIC_CONFIGURATION.path  # what it needs is needed for what the proxy answers itself
_ROLE: ContextVar[str | None] = ContextVar("role", default=None)  # of the client's certificate, of this task's request
_SPOKEN = frozenset(name.lower() for name in PROXY_HEADERS)  # a client's are not passed on
_ANSWER_S_MAX = 60.0  # limit between two pieces of a broker's answer
_PIECE = 64 * 1024
# Hop-by-hop (RFC 9110, 7.6.1), set anew, or about the proxy's own address and checked here.
_HOP = frozenset(
    ("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "host", "content-length", "expect",
     "origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest", "sec-fetch-user")
)  # fmt: skip


class ProxyHttp:
    """Health, metrics, limits and the relay. Bodies are relayed in pieces; none is held as a whole."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        application = web.Application(middlewares=[self._admitted])
        application.add_routes(
            [
                web.get(HEALTH, self._health),
                web.get(READY, self._ready),
                web.get(METRICS, self._metrics),
                web.get(LIMITS_PATH, self._limit_names),
                web.get(f"{LIMITS_PATH}/values", self._limits_set),
                web.get(f"{LIMITS_PATH}/runtime", self._limits_in_effect),
                web.post(f"{LIMITS_PATH}/{{name}}/{{value}}", self._set_limit),
                web.delete(f"{LIMITS_PATH}/{{name}}", self._unset_limit),
                *self._relayed(),
            ]
        )
        self._door = HttpDoor(
            application,
            audit=proxy.audit,
            always=(HEALTH, READY, METRICS),
            open_paths=_OPEN,
            hosts=lambda: hosts_of(proxy.config.admin_hosts, proxy.config.admin_url),
        )
        self._session: aiohttp.ClientSession | None = None
        self._reasons: list[str] = []  # why it was not ready, when that was asked last

    @web.middleware
    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request that proves nothing; what the proxy answers itself, also without a right at the brokers."""
        if request.path not in _OPEN:
            proxy = self._proxy
            token = bearer_token(request.headers.get("Authorization"))
            found = proxy.clients.identify(proxy.config, token, request.transport, request.remote)
            if isinstance(found, Refusal):
                await asyncio.sleep(found.delay)
                raise found.error
            _ROLE.set(found)
            who = proxy.clients.principal(proxy.config, token, found)
            changes = request.path.startswith(LIMITS_PATH) and request.method != "GET"
            if self._for_operators(request):
                who = await self._check_operator(request, who)
            if changes:
                with audited(proxy.audit, who, request.remote, _OPERATION, request) as done:
                    return done(await handler(request))
        return await handler(request)

    def _for_operators(self, request: web.Request) -> bool:
        """Whether the client needs the right to operate the brokers for what the proxy answers itself."""
        config, limits = self._proxy.config, request.path.startswith(LIMITS_PATH)
        if config.speaks_for_clients:
            return limits or request.path == METRICS
        return limits and request.method != "GET" and not config.authenticates  # else it has shown the proxy's token

    def _trusted(self) -> ssl.SSLContext | bool:
        """Whose certificates brokers may show; another one after a reload."""
        trusted = self._proxy.tls_brokers
        return True if trusted is None else trusted

    async def listen(self, host: str, port: int, tls: TlsListener | None) -> tuple[str, int]:
        """Serve; the address. Raises ConnectError."""
        self._session = aiohttp.ClientSession(
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=_ANSWER_S_MAX),
            cookie_jar=aiohttp.DummyCookieJar(),  # the session serves all clients
        )
        return await self._door.listen(host, port, tls)

    def url_for(self, dialled: str | None) -> str:
        """Its URL for a client that dialled this address of the proxy."""
        return self._door.url_for(dialled)

    async def close(self) -> None:
        await self._door.close()
        if self._session is not None:
            await self._session.close()

    # -- its own ---------------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        """Yes or no, and the reasons, which have addresses of brokers, where clients need no proof. They are logged."""
        reasons = await self._proxy.unready()
        if reasons and reasons != self._reasons:
            log.warning("not ready: %s", "; ".join(reasons))
        self._reasons = reasons
        body: dict[str, Any] = {"status": "not ready" if reasons else "ready"}
        if reasons and not self._proxy.config.authenticates:
            body["reasons"] = reasons
        return web.json_response(body, status=503 if reasons else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        writer = PageWriter(request.headers.get("Accept", ""))
        page = writer.page(flat(proxy_families(self._proxy)))
        return web.Response(body=page, headers={"Content-Type": writer.content_type, "Vary": "Accept"})

    async def _limit_names(self, request: web.Request) -> web.Response:
        return web.json_response(list(LIMITS))

    async def _limits_set(self, request: web.Request) -> web.Response:
        return web.json_response(self._proxy.limits.values())

    async def _limits_in_effect(self, request: web.Request) -> web.Response:
        return web.json_response(self._proxy.limits.runtime())

    async def _set_limit(self, request: web.Request) -> web.Response:
        self._proxy.limits.set(request.match_info["name"], request.match_info["value"])
        return web.Response(status=204)

    async def _unset_limit(self, request: web.Request) -> web.Response:
        self._proxy.limits.unset(request.match_info["name"])
        return web.Response(status=204)

    # -- a broker's ------------------------------------------------------------------------------------------------

    def _relayed(self) -> Iterator[web.RouteDef]:
        """The routes of the admin API that the proxy does not serve itself."""
        for row in OPERATIONS:
            if row.path not in (HEALTH, READY, METRICS):
                get = row.verb == "GET"
                yield web.get(row.path, self._relay) if get else web.route(row.verb, row.path, self._relay)

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        """Relay to the first broker that can be reached. Raises ConnectError, InvalidArgumentError.

        A request with a body is sent once only: it may have been executed.
        """
        path = _path(request)
        admins = await self._proxy.admin_urls()
        error: Exception | None = None
        for url in admins:
            try:
                return await self._relay_to(URL(url), path, request)
            except aiohttp.ClientConnectorError as e:  # nothing was sent
                error = e
            except (TimeoutError, aiohttp.ClientError) as e:
                raise ConnectError(f"the connection to the admin API at {url} was lost: {e or type(e).__name__}") from e
        why = f"cannot be reached: {error}" if error else "is unknown: no broker has advertised it"
        raise ConnectError(f"the admin API {why}; set broker_admin of the proxy") from error

    async def _relay_to(self, base: URL, path: str, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        url = URL.build(
            scheme=base.scheme,
            authority=base.raw_authority,
            path=path,
            query_string=request.rel_url.raw_query_string,
            encoded=True,
        )
        headers = self._headers(request)
        self._check_secret(base, headers)
        body = _Body(request) if request.body_exists else None
        call = self._session.request(
            request.method, url, headers=headers, data=body, allow_redirects=False, ssl=self._trusted()
        )
        with _blamed(body):
            async with call as answer:
                if 300 <= answer.status < 400:
                    raise ConnectError(f"the admin API at {base} must not redirect; set broker_admin to its target")
                if answer.status == 401:  # delayed by the broker
                    refused = AuthenticationError("a broker refused the token")
                    self._proxy.doors.attempts.failed(request.remote, refused, guess="Authorization" in headers)
                return await _answer(request, answer)

    def _headers(self, request: web.Request) -> CIMultiDict[str]:
        """The headers of the relayed request; with the proxy's own token for brokers, if it has one."""
        left_out = {*_HOP, *_SPOKEN, "content-encoding"}  # the body has been decoded here
        headers = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() not in left_out)
        config = self._proxy.config
        bearer = None if config.broker_token is None else f"Bearer {config.broker_token}"
        if config.speaks_for_clients:
            said = {PROXY_TOKEN: bearer, PROXY_ROLE: _ROLE.get(), PROXY_CLIENT: request.remote or "unknown"}
            headers.update({name: value for name, value in said.items() if value is not None})
        elif bearer is not None:
            headers["Authorization"] = bearer
        return headers

    def _check_secret(self, base: URL, headers: CIMultiDict[str]) -> None:
        """Where TLS towards the brokers is set, no token is sent in plain text. Raises ConnectError."""
        secret = "Authorization" in headers or PROXY_TOKEN in headers
        if secret and self._proxy.tls_brokers is not None and base.scheme != "https":
            raise ConnectError(
                f"broker_admin must be an https:// address with TLS towards the brokers, got {str(base)!r:.200}"
            )

    async def _check_operator(self, request: web.Request, who: Principal) -> Principal:
        """The client, with its role as a broker knows it where the audit is to name it. Raises a broker's refusal if
        the client may not operate it, ConnectError if none answers.
        """
        assert self._session is not None
        headers = self._headers(request)
        if not self._proxy.config.speaks_for_clients:  # the client's own proof, not the proxy's
            headers.popall("Authorization", None)
            headers.extend(("Authorization", token) for token in request.headers.getall("Authorization", ()))
        for url in await self._proxy.admin_urls():
            base = URL(url)
            self._check_secret(base, headers)
            try:
                status, _ = await self._ask(base, _OPERATORS, headers)
                if status in (200, 403) and self._proxy.audit.writes:
                    who = await self._named(base, headers, who)
            except (TimeoutError, aiohttp.ClientError):
                continue
            if status == 200:
                return who
            if status == 403:
                why = "the right operate is needed on the cluster"
                raise self._proxy.audit.denial(who, request.remote, request_of(request), why, _OPERATION)
            if status == 401:
                raise AuthenticationError("a broker refused the token")
        raise ConnectError("no broker has answered whether this client may operate it; try again later")

    async def _ask(self, base: URL, path: str, headers: CIMultiDict[str]) -> tuple[int, Any]:
        """A broker's status for a client's GET, and its answer where that is 200. Raises TimeoutError, ClientError."""
        assert self._session is not None
        asked = URL.build(scheme=base.scheme, authority=base.raw_authority, path=path)
        async with self._session.get(asked, headers=headers, allow_redirects=False, ssl=self._trusted()) as answer:
            return answer.status, await answer.json() if answer.status == 200 else None

    async def _named(self, base: URL, headers: CIMultiDict[str], who: Principal) -> Principal:
        """The client, with the role that a broker has found for its token."""
        if who.kind is not Kind.UNKNOWN:
            return who
        status, permissions = await self._ask(base, _PERMISSIONS, headers)
        role = permissions.get("role") if status == 200 and isinstance(permissions, dict) else None
        return replace(who, kind=Kind.ROLE, role=role) if isinstance(role, str) and role else who


class _Body:
    """A request's body, relayed as received, within HTTP_BODY_S_MAX. `error`: why it is incomplete."""

    def __init__(self, request: web.Request) -> None:
        self.error: Exception | None = None
        self._content = request.content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        until = asyncio.get_running_loop().time() + HTTP_BODY_S_MAX
        try:
            while True:
                async with asyncio.timeout_at(until):
                    piece = await self._content.readany()
                if not piece:
                    return
                yield piece
        except Exception as e:
            self.error = e
            raise


@contextmanager
def _blamed(body: _Body | None) -> Iterator[None]:
    """If the client's body is incomplete, raise that as the error, not the broker's lost connection."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError):
        if body is None or body.error is None:
            raise
        if isinstance(body.error, TimeoutError):
            raise web.HTTPRequestTimeout(
                reason=f"the body was not received within {HTTP_BODY_S_MAX:g} s"
            ) from body.error
        raise body.error from None


async def _answer(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Send a broker's answer, piece by piece."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for name, value in answer.headers.items():
        if name.lower() not in _HOP:
            response.headers.add(name, value)
    if answer.content_length is not None:
        response.content_length = answer.content_length
    await response.prepare(request)
    async for piece in answer.content.iter_chunked(_PIECE):
        await response.write(piece)
    await response.write_eof()
    return response


def _path(request: web.Request) -> str:
    """The path of the route that matched, with its parts quoted. Raises InvalidArgumentError.

    A part that is "." or ".." would be resolved by another intermediary on the way, so no name may be one.
    """
    resource = request.match_info.route.resource
    assert resource is not None
    parts = dict(request.match_info)
    for name, part in parts.items():
        if part in (".", ".."):
            raise InvalidArgumentError(f"{name} must be a name, got {part!r}")
    return resource.canonical.format(**{name: quote(part, safe="") for name, part in parts.items()})
