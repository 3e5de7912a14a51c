"""The shared token: whoever comes in over the network has to know it, if one is configured."""

from __future__ import annotations

import hashlib
import hmac
from typing import Protocol

from engine.errors import AuthenticationError

_SCHEME = "bearer"


class Guarded(Protocol):
    """The configuration of something that may ask for a token."""

    @property
    def auth_token(self) -> str | None:
        """What to say; None: nothing."""


def token_refusal(config: Guarded, given: str | None) -> AuthenticationError | None:
    """Why this token does not do. The time it takes does not depend on the token, nor on its length."""
    if config.auth_token is None:
        return None
    if given is None:
        return AuthenticationError("a token is asked for here, and none was given")
    if not hmac.compare_digest(_digest(given), _digest(config.auth_token)):
        return AuthenticationError("the token is wrong")
    return None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def bearer_token(authorization: str | None) -> str | None:
    """The token in an HTTP request's header Authorization, which may be missing."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == _SCHEME and token.strip() else None
