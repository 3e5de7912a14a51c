"""Commands of a connection itself: the handshake, signs of life, answers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from engine.wire.commands.command import Command
from engine.wire.commands.header import Count, ErrorCode, Header, Part, Request, Seconds


class Connect(Header, frozen=True, kw_only=True):
    """The first frame of a connection -> CONNECTED. Anything else before that is a ProtocolError.

    To a proxy, `target`: the service URL of the broker that is meant; None: any. From a proxy, `forwarded`: the address
    of its client; and where it speaks for its clients, `proxy_token`, its own, or `role`, of the client's certificate.
    From a broker, `broker`: its own service URL.
    """

    command = Command.CONNECT
    magic: str
    protocol: int
    features: list[str]
    client: str
    token: str | None = None
    target: str | None = None
    forwarded: str | None = None
    broker: str | None = None
    proxy_token: str | None = None
    role: str | None = None


class Connected(Header, frozen=True, kw_only=True):
    """The handshake is over.

    `broker`, `admin`: the broker's service and admin URLs. `keep_alive`: seconds after which a silent peer is pinged;
    twice that, it is dropped. `token_left`: seconds until the token expires and the connection is closed, unless
    AUTHENTICATE brings another one. `proxied`: a proxy is in between; every other broker is reached over it, as a
    `target`.
    """

    command = Command.CONNECTED
    protocol: Count
    features: list[str]
    broker: str
    admin: str | None = None
    keep_alive: Seconds
    frame_size_max: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    proxied: bool | None = None
    token_left: Seconds | None = None


class Ping(Header, frozen=True, kw_only=True):
    """-> PONG."""

    command = Command.PING


class Pong(Header, frozen=True, kw_only=True):
    """A sign of life."""

    command = Command.PONG


class Error(Header, frozen=True, kw_only=True):
    """A request was refused, or (0) the connection, or what `session_id` names has ended. `code`: an EngineError's."""

    command = Command.ERROR
    request_id: Count
    code: ErrorCode
    message: str
    session_id: Count = 0


class Success(Header, frozen=True, kw_only=True):
    """A request was done. `result`: a map, of the type that the request names; it is checked with the request."""

    command = Command.SUCCESS
    request_id: Count
    result: Any = None

    def fault(self) -> str | None:
        kind = type(self.result)
        return None if kind is dict or self.result is None else f"result must be a map or null, got {kind.__name__}"


class Authenticated(Part, frozen=True, kw_only=True):
    """The token is valid. `token_left`: as in CONNECTED."""

    token_left: Seconds | None = None


class Authenticate(Request[Authenticated], frozen=True, kw_only=True):
    """Another token of the same role, for a connection that lives on. AuthenticationError: it is not."""

    command = Command.AUTHENTICATE
    answer = Authenticated
    token: str
