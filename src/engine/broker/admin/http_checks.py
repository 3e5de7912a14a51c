"""What an HTTP request must be before its handler is called: for this host, not from another site, its body JSON.

A browser sends what any web page asks it to send, also to a server on its own machine, and says so in headers that the
page cannot change. So three checks keep web pages out, whether or not a token is asked for: Host (a name that a page's
owner makes resolve to this machine is refused; a literal address resolves to nothing else), Origin with Sec-Fetch-Site
(a page of another site), and the media type (what a form can send is no JSON).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Collection
from contextvars import ContextVar
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engine.broker.rights.audit import Audit
from engine.broker.rights.identities import Credentials, Identities
from engine.broker.rights.need import Need
from engine.broker.rights.principal import ANONYMOUS, Principal
from engine.broker.rights.rights import Rights
from engine.broker.settings.attempts import Refusal
from engine.broker.settings.tokens import bearer_token
from engine.errors import AuthorizationError, InvalidArgumentError
from engine.wire.certificates import certificate_of

ANY_HOST = "*"
_SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing (RFC 9110, 9.2.1)
_OTHER_SITES = ("cross-site", "same-site")
_JSON = "application/json"
_JSON_TYPES = (_JSON, "application/vnd.partitioned-topic-metadata+json")  # the second is of Apache Pulsar's clients
# Of a proxy that speaks for clients: its own proof, as in Authorization; the role of the client's certificate; the
# client's address. It passes none on that a client has sent.
PROXY_TOKEN, PROXY_ROLE, PROXY_CLIENT = PROXY_HEADERS = (
    "Engine-Proxy-Authorization", "Engine-Proxy-Role", "Engine-Proxy-Client"
)  # fmt: skip


def from_here_only(hosts: Callable[[], Collection[str]], open_paths: Collection[str]) -> Middleware:
    """The module's checks. `hosts`: names that Host may have besides `localhost` and literal addresses.

    Requests for one of `open_paths` are only checked for their body: a health check may use any name.
    Raises AuthorizationError, InvalidArgumentError, HTTPUnsupportedMediaType.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in open_paths:
            _check_host(request, hosts())
            _check_site(request)
        if request.method not in _SAFE and request.body_exists and request.content_type not in _JSON_TYPES:
            raise web.HTTPUnsupportedMediaType(reason=f"the body must be {_JSON}, got {request.content_type:.80}")
        return await handler(request)

    return check


def _check_host(request: web.Request, names: Collection[str]) -> None:
    said = request.headers.getall("Host", [])
    if len(said) != 1:
        if not said and request.version < (1, 1):
            return  # every browser sends it
        raise InvalidArgumentError(f"a request must have one Host header, got {len(said)}")
    host = _host(said[0])
    if host in names or ANY_HOST in names or host == "localhost" or _is_address(host):
        return
    raise AuthorizationError(f"the Host header must be an address, or a name in admin_hosts, got {said[0]!r:.80}")


def _check_site(request: web.Request) -> None:
    site = request.headers.get("Sec-Fetch-Site", "").lower()
    if site in _OTHER_SITES:
        raise AuthorizationError(f"a request of a web page must come from the same origin, got Sec-Fetch-Site {site}")
    origin = request.headers.get("Origin")
    if origin is not None and _authority(origin) != request.headers.get("Host", "").lower():
        raise AuthorizationError(f"the Origin header must be the origin of the Host header, got {origin!r:.80}")


def _authority(url: str) -> str | None:
    try:
        return urlsplit(url).netloc.lower() or None
    except ValueError:
        return None


def hosts_of(configured: Collection[str], *urls: str | None) -> set[str]:
    """Names that a request's Host header may have: those configured, and those of advertised URLs."""
    authorities = (_authority(url) for url in urls if url is not None)
    return {*(host.lower() for host in configured), *(_host(authority) for authority in authorities if authority)}


def _host(authority: str) -> str:
    """The host of `host`, `host:port` or `[v6]:port`, in lower case, without brackets."""
    authority = authority.strip().lower()
    host, bracket, behind = authority.partition("]")
    if bracket:
        return host.removeprefix("[") if not behind or behind.startswith(":") else authority
    return host.partition(":")[0].removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


PRINCIPAL: ContextVar[Principal] = ContextVar("principal", default=ANONYMOUS)  # of the request in this task


def admitted(
    identities: Identities, rights: Rights, needs: Callable[[web.Request], Need], open_paths: Collection[str]
) -> Middleware:
    """Refuse a request that proves no principal, or whose principal may not do what it needs; before its body is read.

    Requests for one of `open_paths` are let through. `needs`: of a request, for a principal that not all is allowed to.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in open_paths:
            found, peer = _principal(identities, rights, request)
            if isinstance(found, Refusal):
                await asyncio.sleep(found.delay)
                raise found.error
            if not found.unlimited:
                rights.check(found, needs(request), f"{request.method} {request.path}", peer)
            PRINCIPAL.set(found)  # requests of one connection run in one task, one after the other
            if request.method not in _SAFE and rights.audit.writes:
                return await _audited(rights.audit, found, peer, needs(request), request, handler)
        return await handler(request)

    return check


async def _audited(
    audit: Audit, principal: Principal, peer: str | None, need: Need, request: web.Request, handler: Handler
) -> web.StreamResponse:
    """Call the handler, and write down that it was done, or its error."""
    error: str | None = None
    try:
        answer = await handler(request)
        error = None if answer.status < 400 else f"HTTP {answer.status}"
        return answer
    except BaseException as e:
        error = type(e).__name__
        raise
    finally:
        audit.note_need(principal, peer, f"{request.method} {request.path}", need, allowed=True, error=error)


def _principal(identities: Identities, rights: Rights, request: web.Request) -> tuple[Principal | Refusal, str | None]:
    """Of a request, and the address of its client."""
    headers = request.headers
    token, certificate = bearer_token(headers.get("Authorization")), certificate_of(request.transport)
    role = headers.get(PROXY_ROLE)
    if role is None and PROXY_TOKEN not in headers:
        return identities.identify(Credentials(token, certificate=certificate), request.remote), request.remote
    from engine.broker.rights.proxied import Claim, identify_proxied

    client = headers.get(PROXY_CLIENT) or request.remote or "unknown"
    proxy = Credentials(bearer_token(headers.get(PROXY_TOKEN)), certificate=certificate)
    found = identify_proxied(identities, rights, proxy, Claim(client, token, role), request.remote)
    return found, client
