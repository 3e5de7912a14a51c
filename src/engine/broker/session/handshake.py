"""The handshake of a new connection: CONNECT is checked, and answered with CONNECTED or an error.

What a role is granted, and its limits, must be known before anything is checked. Where they are, the handshake ends at
once. Where they are not, the peer is not read from until they are, while other connections go on; behind a proxy that
speaks for its client, first for the grants of the proxy's role and then for those of the client's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine.broker.pools.ports import Pause
from engine.broker.rights.identities import Credentials
from engine.broker.rights.principal import Kind, earlier
from engine.broker.session.identity import broker_of
from engine.broker.settings.attempts import Refusal
from engine.errors import (
    AuthenticationError,
    ConnectError,
    EngineError,
    ProtocolError,
    TimeoutError,
    TooManyRequestsError,
    UnsupportedError,
)
from engine.model.names import ROLE
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
    admit = partial(_limited, connection, header, broker)
    if header.proxy_token is not None or header.role is not None:
        _when_known(connection, header, _speaker_of(connection, header), partial(_proxied, connection, header, admit))
    else:
        _when_known(connection, header, _principal_of(connection, header, broker), admit)


def _when_known(
    connection: Connection, header: Connect, found: Principal | Refusal, go_on: Callable[[Principal], None]
) -> None:
    """Go on once the grants of the principal's role are known: now, or later while the peer is not read from."""
    host = connection.host
    if isinstance(found, Refusal):
        connection.hold(Pause.REFUSED)
        delay = min(found.delay, host.config.handshake_timeout / 2)
        asyncio.get_running_loop().call_later(delay, connection.fail, found.error)
        return
    if found.kind is not Kind.ROLE:
        go_on(found)
        return
    if connection.followed is None:
        connection.followed = host.rights.followed()
    if connection.followed.add(found):
        go_on(found)
    else:
        known = partial(connection.followed.known, found)
        connection.hold(Pause.ROLE)
        host.tasks.spawn(_wait(connection, header, known, found, go_on), "handshake")


def _limited(connection: Connection, header: Connect, broker: str | None, found: Principal) -> None:
    """_admit() once the limits of the principal's role are known: likewise, of a superuser as well."""
    host, admit = connection.host, partial(_admit, connection, header, broker)
    if not found.role or host.memory.followed.is_ready(ROLE + found.role):
        admit(found)
    else:
        known = partial(host.memory.followed.ready, ROLE + found.role)
        connection.hold(Pause.ROLE)
        host.tasks.spawn(_wait(connection, header, known, found, admit), "handshake")


async def _wait(
    connection: Connection,
    header: Connect,
    known: Callable[[float], Awaitable[object]],
    found: Principal,
    go_on: Callable[[Principal], None],
) -> None:
    """`known`: waits for as many seconds at most."""
    host = connection.host
    left = connection.pulse.since + host.config.handshake_timeout - asyncio.get_running_loop().time()
    try:
        await known(max(left, 0.0) / 2)  # before the connection is dropped for it
        host.rights.check_again(host.identities, found, connection.caller)
        if not connection.closed:
            go_on(found)
    except (TimeoutError, TooManyRequestsError) as e:  # as where there is no room for a connection: clients try again
        connection.fail(ConnectError(str(e)))
    except EngineError as e:
        connection.fail(e)
    except Exception as e:
        connection.failed(header, e)


def _admit(connection: Connection, header: Connect, broker: str | None, found: Principal) -> None:
    """The connection is of this principal, and ready, unless its role has as many as it may. `broker`: the URL of the
    broker that the peer has proved to be.
    """
    host, stream = connection.host, connection.stream
    config, forwarded = host.config, header.forwarded
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
    connection.pressure.release(Pause.ROLE)


def _principal_of(connection: Connection, hello: Connect, broker: str | None) -> Principal | Refusal:
    """The peer itself or, behind a proxy of this user, the proxy's client. `broker`: the URL of the broker that it has
    proved to be.

    Sets the connection's `origin`, where a proxy is believed, and that it is not trusted, where it is another's.
    """
    host, stream, forwarded = connection.host, connection.stream, hello.forwarded
    config = host.config
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


def _speaker_of(connection: Connection, hello: Connect) -> Principal | Refusal:
    """The proxy, where it speaks for its client."""
    from engine.broker.rights.proxied import identify_speaker  # few brokers are behind such a proxy

    host, stream = connection.host, connection.stream
    proxy = Credentials(
        hello.proxy_token, local=connection.trusted, certificate=stream.certificate, user=stream.peer_user
    )
    return identify_speaker(host.identities, host.rights, proxy, connection.caller)


def _proxied(connection: Connection, hello: Connect, admit: Callable[[Principal], None], speaker: Principal) -> None:
    """Go on with the client of a proxy. Sets the connection's `origin`, and that it is not trusted, where the proxy is
    believed.
    """
    from engine.broker.rights.proxied import Claim, identify_proxied

    host = connection.host
    client = hello.forwarded or connection.caller
    claim = Claim(client, hello.token, hello.role)
    found = identify_proxied(host.identities, host.rights, speaker, claim, connection.caller)
    if not isinstance(found, Refusal):
        connection.trusted, connection.origin = False, client
    _when_known(connection, hello, found, admit)


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
