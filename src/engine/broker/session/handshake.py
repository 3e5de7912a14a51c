"""The handshake of a new connection: CONNECT is checked, and answered with CONNECTED or an error."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.broker.pools.ports import Pause
from engine.broker.rights.identities import Credentials
from engine.broker.rights.principal import earlier
from engine.broker.session.identity import broker_of
from engine.broker.settings.attempts import Refusal
from engine.errors import AuthenticationError, EngineError, ProtocolError, UnsupportedError
from engine.metadata.keys import ROLE
from engine.wire import commands
from engine.wire.commands import (
    FEATURES,
    MAGIC,
    OBJECT_READS,
    PROTOCOL_VERSION,
    SHORT_CIRCUIT_READS,
    Connect,
    Connected,
    Header,
)

if TYPE_CHECKING:
    from engine.broker.rights.principal import Principal
    from engine.broker.session.connection import Connection

_LEFT_S_MAX = 1e9  # what the wire takes; it is told anew with each connection


def shake_hands(connection: Connection, header: Header) -> None:
    """Handle the first frame. The connection is ready, or closed: after a delay where the token was wrong."""
    if not isinstance(header, Connect) or header.magic != MAGIC:
        first = header.command.name
        connection.fail(ProtocolError(f"the first frame must be CONNECT with the magic {MAGIC!r}, got {first}"))
        return
    host = connection.host
    if (error := host.refusal(connection) or _refusal(header)) is not None:
        connection.fail(error)
        return
    broker = broker_of(connection, header)
    found = _principal_of(connection, header, broker)
    if isinstance(found, Refusal):
        connection.hold(Pause.REFUSED)
        delay = min(found.delay, host.config.handshake_timeout / 2)
        asyncio.get_running_loop().call_later(delay, connection.fail, found.error)
        return
    if not found.role or host.memory.followed.is_ready(ROLE + found.role):
        _welcome(connection, header, found, broker)
        return
    connection.hold(Pause.LIMITS)
    host.tasks.spawn(_welcome_later(connection, header, found, broker), "handshake")


async def _welcome_later(connection: Connection, header: Connect, found: Principal, broker: str | None) -> None:
    """_welcome() once the limits of the role are known."""
    host = connection.host
    try:
        await host.memory.followed.ready(ROLE + found.role, host.config.handshake_timeout / 2)
    except EngineError as e:
        connection.fail(e)
        return
    if not connection.closed:
        _welcome(connection, header, found, broker)
        if connection.ready:
            connection.pressure.release(Pause.LIMITS)


def _welcome(connection: Connection, header: Connect, found: Principal, broker: str | None) -> None:
    """The end of the handshake."""
    host, stream, config, forwarded = connection.host, connection.stream, connection.host.config, header.forwarded
    if host.memory.limits is not None and found.role:
        if (beyond := host.memory.limits.connect(found.role)) is not None:
            connection.fail(beyond)
            return
        connection.counted = True
    connection.principal = found
    connection.ready = True
    connection.broker = broker
    if not found.unlimited and host.rights.on:
        connection.restrict()
    connection.features = frozenset(header.features) & _features(connection, header)
    if forwarded:
        stream.peer = f"{forwarded!r:.100} over the proxy {stream.peer}"
    answer = Connected(
        protocol=min(PROTOCOL_VERSION, header.protocol),
        features=[f for f in FEATURES if f in connection.features],
        broker=host.addresses.url_for(stream),
        admin=host.addresses.admin_url_for(stream),
        keep_alive=config.keep_alive,
        frame_size_max=config.frame_size_max,
        token_left=_until_expiry(connection),
    )
    connection.send(answer)


def _principal_of(connection: Connection, hello: Connect, broker: str | None) -> Principal | Refusal:
    """The peer itself or, behind a proxy, the proxy's client. `broker`: the URL of the broker that it has proved to be.

    Sets the connection's `origin`, where a proxy is believed, and that it is not trusted, where it is another's.
    """
    host, stream, forwarded = connection.host, connection.stream, hello.forwarded
    config = host.config
    if hello.proxy_token is not None or hello.role is not None:
        return _proxied(connection, hello)
    if forwarded is not None and config.has_roles:
        if connection.trusted:  # a proxy of this user: the client is what its token says
            connection.trusted, connection.origin = False, forwarded
        return host.identities.identify(Credentials(hello.token, among_brokers=True), connection.origin)
    certified = broker if config.cluster_token is None and config.cluster_tls_ca is not None else None
    given = Credentials(
        hello.token,
        local=connection.trusted,
        among_brokers=True,
        broker=certified,
        certificate=stream.certificate,
        user=stream.peer_user,
    )
    return host.identities.identify(given, connection.caller)


def _proxied(connection: Connection, hello: Connect) -> Principal | Refusal:
    from engine.broker.rights.proxied import Claim, identify_proxied  # few brokers are behind such a proxy

    host, stream = connection.host, connection.stream
    client = hello.forwarded or connection.caller
    proxy = Credentials(
        hello.proxy_token, local=connection.trusted, certificate=stream.certificate, user=stream.peer_user
    )
    found = identify_proxied(
        host.identities, host.rights, proxy, Claim(client, hello.token, hello.role), connection.caller
    )
    if not isinstance(found, Refusal):
        connection.trusted, connection.origin = False, client
    return found


def authenticate(connection: Connection, header: commands.Authenticate, payload: memoryview) -> None:
    """AUTHENTICATE."""
    connection.start(header.request_id, _authenticate(connection, header))


async def _authenticate(connection: Connection, header: commands.Authenticate) -> commands.Authenticated:
    if connection.needs is None:
        return commands.Authenticated()  # it has all rights, whatever the token
    found = connection.host.identities.identify(Credentials(header.token), connection.origin)
    if isinstance(found, Refusal):
        await asyncio.sleep(found.delay)
        raise found.error
    if (found.kind, found.role) != (connection.principal.kind, connection.principal.role):
        raise AuthenticationError("the token must be of the connection's role")
    if (speaker := connection.principal.speaker) is not None:
        found = replace(found, speaker=speaker, expires=earlier(found.expires, speaker.expires))
    connection.principal = found
    return commands.Authenticated(token_left=_until_expiry(connection))


def _until_expiry(connection: Connection) -> float | None:
    """The seconds for which the connection may live on; it is closed behind them. None: without end."""
    needs, expires = connection.needs, connection.principal.expires
    if needs is None:
        return None
    needs.close()
    if expires is None:
        return None
    left = max(expires - connection.host.clock.time_ms() / 1000, 0.0)
    needs.expire(left)
    return min(left, _LEFT_S_MAX)


def _features(connection: Connection, header: Connect) -> frozenset[str]:
    """The features of this end for this peer."""
    config = connection.host.config
    near = connection.stream.is_near and not header.forwarded
    left_out = set()
    if not near or connection.needs is not None or not config.short_circuit_reads:
        left_out.add(SHORT_CIRCUIT_READS)
    if config.objects is None:
        left_out.add(OBJECT_READS)
    return frozenset(FEATURES) - left_out


def _refusal(header: Connect) -> EngineError | None:
    """Why this broker cannot serve the peer."""
    if header.protocol < 1:
        return UnsupportedError(f"protocol must be 1 to {PROTOCOL_VERSION}, got {header.protocol}")
    if "scalable-topics" not in header.features:
        return UnsupportedError("the client must have the feature scalable-topics")
    return None
