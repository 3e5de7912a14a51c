"""TLS of the ports of a broker or a proxy, and of the connections between brokers."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterable
from typing import Protocol

from engine.errors import InvalidConfigurationError


class Certified(Protocol):
    """A configuration that may name a certificate."""

    @property
    def tls_cert(self) -> str | None:
        """The path of the certificate chain, PEM; None: no TLS."""

    @property
    def tls_key(self) -> str | None:
        """The path of the private key, PEM."""

    @property
    def tls_client_ca(self) -> str | None:
        """The path of the certificates that sign those of clients, PEM; None: none are asked for."""

    @property
    def tls_client_required(self) -> bool:
        """Whether a connection without a certificate is refused."""


class ClusterCertified(Certified, Protocol):
    """The configuration of a broker among others."""

    @property
    def cluster_tls_ca(self) -> str | None:
        """The path of the certificates that sign those of brokers, PEM; None: what the system trusts."""

    @property
    def cluster_tls_cert(self) -> str | None:
        """The path of the certificate chain that it shows to other brokers, PEM; None: that of its ports."""

    @property
    def cluster_tls_key(self) -> str | None:
        """The path of its private key, PEM."""


def tls_context(config: Certified) -> ssl.SSLContext | None:
    """The TLS context of listeners; None: no TLS. Raises InvalidConfigurationError."""
    if config.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    trust_clients(context, config)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except OSError as e:  # an SSLError is one
        files = f"tls_cert {config.tls_cert} and tls_key {config.tls_key}"
        raise InvalidConfigurationError(f"{files} cannot be used: {e.strerror or e}") from e
    return context


def trust_clients(context: ssl.SSLContext, config: Certified) -> None:
    """Have clients show a certificate, if they have one or must. Raises InvalidConfigurationError."""
    if config.tls_client_ca is not None:
        _trust(context, "tls_client_ca", config.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_required else ssl.CERT_OPTIONAL


def ask_for_certificate(context: ssl.SSLContext, config: ClusterCertified) -> None:
    """Have peers of a port show a certificate if they have one: other brokers. Raises InvalidConfigurationError.

    One that is not signed by cluster_tls_ca ends the connection.
    """
    if config.cluster_tls_ca is None:
        return
    _trust(context, "cluster_tls_ca", config.cluster_tls_ca)
    if context.verify_mode is ssl.CERT_NONE:
        context.verify_mode = ssl.CERT_OPTIONAL


def _trust(context: ssl.SSLContext, key: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as e:
        raise _unusable(key, path, e) from e


def context_to_brokers(config: ClusterCertified) -> ssl.SSLContext | None:
    """The TLS context of connections to other brokers, whose ports are like one's own; None: plain text.

    Raises InvalidConfigurationError.
    """
    if config.tls_cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=config.cluster_tls_ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    except OSError as e:
        raise _unusable("cluster_tls_ca", config.cluster_tls_ca, e) from e
    show_certificate(context, config)
    return context


def show_certificate(context: ssl.SSLContext, config: ClusterCertified) -> None:
    """Show one's own certificate to other brokers. Raises InvalidConfigurationError."""
    cert, key = config.tls_cert, config.tls_key
    if config.cluster_tls_cert is not None:
        cert, key = config.cluster_tls_cert, config.cluster_tls_key
    assert cert is not None
    try:
        context.load_cert_chain(cert, key)
    except OSError as e:
        raise _unusable("the certificate for other brokers", f"{cert} with the key {key}", e) from e


def _unusable(what: str, path: str | None, error: OSError) -> InvalidConfigurationError:
    return InvalidConfigurationError(f"{what} {path} cannot be used: {error.strerror or error}")


def is_named(host: str, names: Iterable[str]) -> bool:
    """Whether a certificate with these names is that of a host, as a client would verify it (RFC 6125)."""
    address = _address(host)
    if address is not None:
        return any(_address(name) == address for name in names)
    host = host.lower().rstrip(".")
    _, _, domain = host.partition(".")
    return any(name.lower() in (host, f"*.{domain}" if domain else host) for name in names)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
