"""The shared token: whoever comes in over the network has to know it, if one is configured."""

from __future__ import annotations

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
    """Why somebody with this token may not come in. It takes the same time whatever is wrong with it."""
    if config.auth_token is None:
        return None
    if given is None:
        return AuthenticationError("a token is asked for here, and none was given")
    if not hmac.compare_digest(given.encode(errors="replace"), config.auth_token.encode()):
        return AuthenticationError("the token is wrong")
    return None


def bearer_refusal(config: Guarded, authorization: str | None) -> AuthenticationError | None:
    """The same for an HTTP request's header Authorization, which may be missing."""
    scheme, _, token = (authorization or "").partition(" ")
    return token_refusal(config, token.strip() if scheme.lower() == _SCHEME and token.strip() else None)
