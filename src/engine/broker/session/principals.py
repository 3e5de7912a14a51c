"""The principal of a new connection: that of the peer itself or, behind a proxy, that of the proxy's client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.broker.rights.identities import Credentials
from engine.broker.settings.attempts import Refusal

if TYPE_CHECKING:
    from engine.broker.rights.principal import Principal
    from engine.broker.session.connection import Connection
    from engine.wire.commands import Connect


def principal_of(connection: Connection, hello: Connect, broker: str | None) -> Principal | Refusal:
    """By what the peer gave. `broker`: the URL of the broker that it has proved to be.

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
