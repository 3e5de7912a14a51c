"""TLS of the ports of a broker or a proxy."""

from __future__ import annotations

import ssl
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


def tls_context(config: Certified) -> ssl.SSLContext | None:
    """The TLS context of listeners; None: no TLS. Raises InvalidConfigurationError."""
    if config.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except OSError as e:  # an SSLError is one
        files = f"tls_cert {config.tls_cert} and tls_key {config.tls_key}"
        raise InvalidConfigurationError(f"{files} cannot be used: {e.strerror or e}") from e
    return context
