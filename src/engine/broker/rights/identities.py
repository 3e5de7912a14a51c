"""`Identities`: the one place where principals are made, for the wire protocol and for the HTTP API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.broker.rights.principal import ANONYMOUS, OWNER, SHARED, Kind, Principal, Proof
from engine.broker.settings.attempts import Attempts, Refusal
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.tokens import is_cluster_token, token_refusal
from engine.errors import AuthenticationError


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a peer has given. `local`: it is in this process or, over a Unix socket, of its user.

    `among_brokers`: over a port that other brokers use, too. `broker`: the URL of the broker that it says to be, where
    its certificate names that host.
    """

    token: str | None = field(default=None, repr=False)
    local: bool = False
    among_brokers: bool = False
    broker: str | None = None


class Identities:
    """Makes principals of credentials, by the configuration in effect."""

    def __init__(self, attempts: Attempts, config: Callable[[], BrokerConfig]) -> None:
        self._attempts = attempts
        self._config = config

    def identify(self, given: Credentials, peer: str | None) -> Principal | Refusal:
        """The principal, or why there is none and when to say so. A failure counts for the address of `peer`."""
        if given.local:
            return OWNER
        crowded = self._attempts.crowded(peer)
        if crowded is not None:
            return Refusal(crowded, 0.0)
        try:
            return self._principal(given)
        except AuthenticationError as e:
            return Refusal(e, self._attempts.failed(peer, e, guess=given.token is not None))

    def _principal(self, given: Credentials) -> Principal:
        """Raises AuthenticationError."""
        config, token = self._config(), given.token
        if given.among_brokers and is_cluster_token(config, token):
            return Principal(Kind.BROKER, Proof.TOKEN)
        if config.auth_token is None:
            if given.among_brokers and config.cluster_token is not None and token is not None:
                raise AuthenticationError("the token is invalid")  # it may be a guess
            return ANONYMOUS
        refusal = token_refusal(config, token)
        if refusal is not None:
            raise refusal
        return SHARED
