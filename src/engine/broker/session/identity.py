"""Which peers are brokers: calls between brokers are for them alone, where the brokers have an identity.

A broker names itself in the handshake by its service URL. What it has to prove by that is configured: that it knows the
cluster's token (`cluster_token`), that its certificate, signed by the brokers' authority (`cluster_tls_ca`), is that of
the host in this URL; or both. A call is answered if, besides, a broker of that URL is registered in the metadata store:
a certificate of the same authority alone makes no broker of a client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.broker.rights.principal import Kind
from engine.broker.settings.tls import is_named
from engine.broker.settings.tokens import is_cluster_token
from engine.errors import InvalidArgumentError, NotOwnerError
from engine.wire.commands import Connect
from engine.wire.url import parse_url

if TYPE_CHECKING:
    from engine.broker.rights.need import Need
    from engine.broker.session.connection import Connection


def broker_of(connection: Connection, hello: Connect) -> str | None:
    """The URL of the broker that the peer has proved to be, by what is configured; None: it has not, or is none."""
    config, url = connection.host.config, hello.broker
    if url is None or hello.forwarded is not None:
        return None
    if config.cluster_token is not None and not is_cluster_token(config, hello.token):
        return None
    if config.cluster_tls_ca is not None:
        try:
            host, _ = parse_url(url)
        except InvalidArgumentError:
            return None
        certificate = connection.stream.certificate
        if certificate is None or not is_named(host, certificate.hosts):
            return None
        if not connection.host.identities.is_of_brokers(certificate):
            return None
    return url


def check_broker(connection: Connection, call: str) -> None:
    """Raise AuthorizationError unless the peer is a broker, where brokers have an identity; NotOwnerError, with which
    the call is repeated, where it is not known here yet. A peer within this process or of its user needs none. `call`:
    what it asks, for the audit.
    """
    config, url = connection.host.config, connection.broker
    kind = connection.principal.kind
    if config.has_roles and (kind is Kind.ROLE or (kind is Kind.SHARED and url is None)):
        raise connection.host.rights.denial(connection.principal, _need(), call, connection.origin)
    if connection.trusted or (config.cluster_token is None and config.cluster_tls_ca is None):
        return
    if url is None:
        proofs = [name for name in ("cluster_token", "cluster_tls_ca") if getattr(config, name) is not None]
        why = f"the caller must be a broker, by {' and '.join(proofs)} of the configuration"
        raise connection.denial(call, why, _need())
    if url not in connection.host.members.brokers.live:
        raise NotOwnerError(f"{url:.200} is not among the live brokers that are known here; try again")


def _need() -> Need:
    from engine.broker.rights.need import Need  # an engine without roles does without
    from engine.model.rights import Right

    return Need(Right.BROKER)
