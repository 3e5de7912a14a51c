"""What an HTTP request must be before its handler is called: for this host, not from another site, its body JSON.

A browser sends what any web page asks it to send, also to a server on its own machine, and says so in headers that the
page cannot change. So three checks keep web pages out, whether or not a token is asked for: Host (a name that a page's
owner makes resolve to this machine is refused; a literal address resolves to nothing else), Origin with Sec-Fetch-Site
(a page of another site), and the media type (what a form can send is no JSON).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engine.broker.rights.audit import Audit
from engine.broker.rights.identities import Credentials, Identities
from engine.broker.rights.need import Need
from engine.broker.rights.principal import PEER, PRINCIPAL, UNKNOWN, Principal
from engine.broker.rights.rights import Followed, Rights
from engine.broker.settings.attempts import Refusal
from engine.broker.settings.tokens import bearer_token
from engine.errors import InvalidArgumentError
from engine.wire.certificates import certificate_of

ANY_HOST = "*"
_ANY_ROLE = Need(0)
_SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing (RFC 9110, 9.2.1)
_OTHER_SITES = ("cross-site", "same-site")
_JSON = "application/json"
_JSON_TYPES = (_JSON, "application/vnd.partitioned-topic-metadata+json")  # the second is of Apache Pulsar's clients
# Of a proxy that speaks for clients: its own proof, as in Authorization; the role of the client's certificate; the
# client's address. It passes none on that a client has sent.
PROXY_TOKEN, PROXY_ROLE, PROXY_CLIENT = PROXY_HEADERS = (
    "Engine-Proxy-Authorization", "Engine-Proxy-Role", "Engine-Proxy-Client"
)  # fmt: skip


def from_here_only(hosts: Callable[[], Collection[str]], open_paths: Collection[str], audit: Audit) -> Middleware:
    """The module's checks. `hosts`: names that Host may have besides `localhost` and literal addresses. `audit`: where
    what is denied by Host or Origin is a line, of nothing that is known yet.

    Requests for one of `open_paths` are only checked for their body: a health check may use any name.
    Raises AuthorizationError, InvalidArgumentError, HTTPUnsupportedMediaType.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_open = request.path in open_paths
        if not is_open and (why := _false_host(request, hosts()) or _false_site(request)) is not None:
            raise audit.denial(UNKNOWN, request.remote, request_of(request), why)
        if request.method not in _SAFE and request.body_exists and request.content_type not in _JSON_TYPES:
            raise web.HTTPUnsupportedMediaType(reason=f"the body must be {_JSON}, got {request.content_type:.80}")
        return await handler(request)

    return check


def request_of(request: web.Request) -> str:
    """As a line of the audit log names it."""
    return f"{request.method} {request.path}"


def _false_host(request: web.Request, names: Collection[str]) -> str | None:
    """Why it is denied; None: it is not. Raises InvalidArgumentError."""
    said = request.headers.getall("Host", [])
    if len(said) != 1:
        if not said and request.version < (1, 1):
            return None  # every browser sends it
        raise InvalidArgumentError(f"a request must have one Host header, got {len(said)}")
    host = _host(said[0])
    if host in names or ANY_HOST in names or host == "localhost" or _is_address(host):
        return None
    return f"the Host header must be an address, or a name in admin_hosts, got {said[0]!r:.80}"


def _false_site(request: web.Request) -> str | None:
    """Why it is denied; None: it is not."""
    site = request.headers.get("Sec-Fetch-Site", "").lower()
    if site in _OTHER_SITES:
        return f"a request of a web page must come from the same origin, got Sec-Fetch-Site {site}"
    origin = request.headers.get("Origin")
    if origin is not None and _authority(origin) != request.headers.get("Host", "").lower():
        return f"the Origin header must be the origin of the Host header, got {origin!r:.80}"
    return None


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


def admitted(
    identities: Identities, rights: Rights, needs: Callable[[web.Request], Need | None], open_paths: Collection[str]
) -> Middleware:
    """Refuse a request that proves no principal, or whose principal may not do what it needs; before its body is read.

    Requests for one of `open_paths` are let through. `needs`: of a request; None: the table of rights does not
    have it, and nothing with limited rights may make it.
    """

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in open_paths:
            return await handler(request)
        with rights.followed() as followed:
            found, peer = await _principal(identities, rights, request, followed)
            if isinstance(found, Refusal):
                await asyncio.sleep(found.delay)
                raise found.error
            need = None if found.unlimited else _checked(rights, found, needs(request), request, peer)
            PRINCIPAL.set(found)  # requests of one connection run in one task, one after the other
            PEER.set(peer)
            if request.method not in _SAFE and rights.audit.writes:
                with audited(rights.audit, found, peer, need or needs(request) or _ANY_ROLE, request) as done:
                    return done(await handler(request))
            return await handler(request)

    return check


def _checked(rights: Rights, principal: Principal, need: Need | None, request: web.Request, peer: str | None) -> Need:
    """The need, which is met. Raises AuthorizationError."""
    said = request_of(request)
    if need is None:
        raise rights.audit.denial(principal, peer, said, f"{said:.200} is not in the table of rights")
    rights.check(principal, need, said, peer)
    return need


@contextmanager
def audited(
    audit: Audit, principal: Principal, peer: str | None, need: Need, request: web.Request
) -> Iterator[Callable[[web.StreamResponse], web.StreamResponse]]:
    """Write down that what is within was done, or its error. Yields what takes the answer, and returns it."""
    error: str | None = None

    def done(answer: web.StreamResponse) -> web.StreamResponse:
        nonlocal error
        error = None if answer.status < 400 else f"HTTP {answer.status}"
        return answer

    try:
        yield done
    except BaseException as e:
        error = type(e).__name__
        raise
    finally:
        audit.note_need(principal, peer, request_of(request), need, allowed=True, error=error)


async def _principal(
    identities: Identities, rights: Rights, request: web.Request, followed: Followed
) -> tuple[Principal | Refusal, str | None]:
    """Of a request, once it can be checked, and the address of its client. Raises what Rights.check_again() and
    Followed.known() raise.
    """
    headers = request.headers
    token, certificate = bearer_token(headers.get("Authorization")), certificate_of(request.transport)
    role = headers.get(PROXY_ROLE)
    if role is None and PROXY_TOKEN not in headers:
        found = identities.identify(Credentials(token, certificate=certificate), request.remote)
        return await _known(identities, rights, followed, found, request.remote), request.remote
    from engine.broker.rights.proxied import Claim, identify_proxied, identify_speaker

    client = headers.get(PROXY_CLIENT) or request.remote or "unknown"
    proxy = Credentials(bearer_token(headers.get(PROXY_TOKEN)), certificate=certificate)
    said = identify_speaker(identities, rights, proxy, request.remote)
    speaker = await _known(identities, rights, followed, said, request.remote)
    if isinstance(speaker, Refusal):
        return speaker, client
    found = identify_proxied(identities, rights, speaker, Claim(client, token, role), request.remote)
    return await _known(identities, rights, followed, found, request.remote), client


async def _known(
    identities: Identities, rights: Rights, followed: Followed, found: Principal | Refusal, peer: str | None
) -> Principal | Refusal:
    """The same, once its role's grants are known."""
    if not isinstance(found, Refusal) and not followed.add(found):
        await followed.known(found)
        rights.check_again(identities, found, peer)
    return found
