"""The shared token, required of every network connection if one is configured; and that of brokers among themselves."""

from __future__ import annotations

import hashlib
from typing import Protocol

from engine.errors import AuthenticationError

_SCHEME = "bearer"


class Guarded(Protocol):
    """A configuration that may require a token."""

    @property
    def auth_token(self) -> str | None:
        """The required token; None: none is required."""


class Clustered(Guarded, Protocol):
    """The configuration of a broker among others."""

    @property
    def cluster_token(self) -> str | None:
        """The token by which brokers know each other; None: they use that of clients."""


def is_cluster_token(config: Clustered, given: str | None) -> bool:
    """Whether it is the token of the brokers. Takes constant time over tokens and their lengths."""
    expected = config.cluster_token
    return expected is not None and given is not None and _same(given, expected)


def token_refusal(config: Guarded, given: str | None) -> AuthenticationError | None:
    """Why this token is refused; None: it is valid. Takes constant time over tokens and their lengths."""
    if config.auth_token is None:
        return None
    if given is None:
        return AuthenticationError("a token is required, got none")
    if not _same(given, config.auth_token):
        return AuthenticationError("the token is invalid")
    return None


def _same(given: str, expected: str) -> bool:
    import hmac  # where there is a token

    return hmac.compare_digest(_digest(given), _digest(expected))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def bearer_token(authorization: str | None) -> str | None:
    """The token in an HTTP request's header Authorization, which may be missing."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == _SCHEME and token.strip() else None
