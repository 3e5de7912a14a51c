"""`Doors`: access control of the ports of a broker or a proxy: where to listen, certificate, failed attempts."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING, Any, Protocol

from engine.broker.settings.attempts import PENDING_MAX, Attempts
from engine.broker.settings.tls import (
    Certified,
    ClusterCertified,
    ask_for_certificate,
    context_to_brokers,
    tls_context,
    trust_clients,
)
from engine.broker.settings.tokens import Guarded
from engine.clock import Clock
from engine.errors import InvalidConfigurationError
from engine.wire.connector import SocketConnector
from engine.wire.url import is_loopback

if TYPE_CHECKING:
    from engine.broker.settings.certificate_files import CertificateFiles
    from engine.broker.settings.config import BrokerConfig
    from engine.wire.tls_listener import TlsListener


class Exposed(Guarded, Certified, Protocol):
    """The configuration of something that listens."""

    @property
    def insecure(self) -> bool:
        """Whether it may listen for other machines without a token."""

    @property
    def authenticates(self) -> bool:
        """Whether a client must prove an identity."""


class Doors:
    """The certificates and the token check of all listeners."""

    def __init__(self, clock: Clock, pending_max: int = PENDING_MAX) -> None:
        self.attempts = Attempts(clock.monotonic, pending_max)
        self.files: CertificateFiles[Any] | None = None  # None: none are followed
        self._listeners: list[TlsListener] = []
        self._of_brokers: list[TlsListener] = []  # those that other brokers use
        self._to_brokers: SocketConnector | None = None

    def tls(self, config: Certified) -> TlsListener | None:
        """A new listener by TLS, which does not listen yet; None: plain text. Raises InvalidConfigurationError."""
        context = tls_context(config)
        if context is None:
            return None
        from engine.wire.tls_listener import TlsListener

        listener = TlsListener(context, self.attempts)
        self._listeners.append(listener)
        return listener

    def tls_for_all(self, config: ClusterCertified) -> TlsListener | None:
        """As tls(), of a listener that other brokers use, too."""
        listener = self.tls(config)
        if listener is not None:
            ask_for_certificate(listener.context, config)
            self._of_brokers.append(listener)
        return listener

    async def close(self) -> None:
        """Close the listeners by TLS, and wait for the end of their handshakes. Idempotent."""
        for listener in self._listeners:
            listener.close()
        for listener in self._listeners:
            await listener.ended()

    def connector_to_brokers(self, config: ClusterCertified) -> SocketConnector:
        """Dials other brokers, by TLS where this one has it. Raises InvalidConfigurationError."""
        self._to_brokers = SocketConnector(tls=context_to_brokers(config))
        return self._to_brokers

    def renew(self, config: Certified) -> None:
        """Reload the certificate files, for later connections. Raises InvalidConfigurationError."""
        if config.tls_cert is None or tls_context(config) is None:  # raises before any context has half of a pair
            return
        for listener in self._listeners:
            listener.context.load_cert_chain(config.tls_cert, config.tls_key)
            trust_clients(listener.context, config)

    def renew_all(self, config: ClusterCertified) -> None:
        """Both renew() and renew_to_brokers(). Raises InvalidConfigurationError."""
        self.renew(config)
        self.renew_to_brokers(config)

    def renew_to_brokers(self, config: ClusterCertified) -> None:
        """Reload what this broker shows to others, and which authorities it trusts. Raises InvalidConfigurationError.

        A context forgets no authority: connections to others are made by another one from now on. Peers that come with
        a certificate of an authority that was taken out are refused behind the handshake (Authorities).
        """
        if self._to_brokers is not None and (fresh := context_to_brokers(config)) is not None:
            self._to_brokers.tls = fresh
        for listener in self._of_brokers:
            ask_for_certificate(listener.context, config)


def check_cluster(config: BrokerConfig) -> None:
    """Raises InvalidConfigurationError if clients are roles, and nothing tells other brokers, over TCP, from them."""
    if config.has_roles and config.cluster_token is None and config.cluster_tls_ca is None:
        raise InvalidConfigurationError(
            "cluster_token or cluster_tls_ca must be set where clients are roles and brokers share a metadata store, "
            "got neither; without one a broker cannot tell another broker from a client"
        )


async def check_exposed(host: str, config: Exposed) -> None:
    """Raises InvalidConfigurationError if other machines reach `host` and no proof of an identity is required."""
    if not config.authenticates and not config.insecure and not await _is_loopback(host):
        raise InvalidConfigurationError(
            f"auth_token must be set to listen on {host or 'all addresses'}, which other machines reach, got none; "
            "set it (auth_token_file or ENGINE_AUTH_TOKEN) or a source of roles, listen on 127.0.0.1, "
            "or set insecure (--insecure) to accept every connection"
        )


async def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name that cannot be resolved is left for the listener to refuse."""
    if is_loopback(host) or _is_address(host):
        return is_loopback(host)
    try:
        addresses = await _resolve(host)
    except OSError:
        return True
    return all(is_loopback(address) for address in addresses)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


async def _resolve(host: str) -> list[str]:
    """The addresses of a name; "": all interfaces."""
    if not host:
        return ["0.0.0.0"]
    found = await asyncio.get_running_loop().getaddrinfo(host, None)
    return [str(address[0]) for *_, address in found]
