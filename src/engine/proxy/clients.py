"""`Clients`: what the clients of a proxy prove to it: by the shared token, or a role by a certificate."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.broker.rights.authorities import Authorities, role_of
from engine.broker.rights.principal import SHARED, UNKNOWN, Kind, Principal, Proof
from engine.broker.settings.attempts import Attempts, Refusal
from engine.clock import Clock
from engine.errors import AuthenticationError
from engine.wire.certificates import certificate_of

if TYPE_CHECKING:
    from engine.proxy.config import ProxyConfig


class Clients:
    """The check of each connection and request. A token of a role is checked by the brokers."""

    def __init__(self, config: ProxyConfig, attempts: Attempts, clock: Clock) -> None:
        """Raises InvalidConfigurationError."""
        self._clock = clock
        self._attempts = attempts
        ca = config.tls_client_ca
        self._signers = None if ca is None else Authorities("tls_client_ca", ca)

    def identify(
        self, config: ProxyConfig, token: str | None, transport: asyncio.BaseTransport | None, peer: str | None
    ) -> str | Refusal | None:
        """The role that the client's certificate names; None: it has shown none, and a token has to say."""
        refusal = self._attempts.refusal(config, token, peer)
        if refusal is not None or not config.speaks_for_clients or token is not None:
            return refusal
        try:
            return self._role(config, transport)
        except AuthenticationError as e:
            return Refusal(e, self._attempts.failed(peer, e, guess=False))

    def principal(self, config: ProxyConfig, token: str | None, role: str | None) -> Principal:
        """That of an identified client, as the audit of this proxy names it. `role`: what its certificate names. Which
        role a token is of, the brokers know.
        """
        if role is not None:
            return Principal(Kind.ROLE, Proof.CERTIFICATE, role)
        if config.auth_token is not None:
            return SHARED
        return UNKNOWN if token is None else replace(UNKNOWN, proof=Proof.TOKEN)

    def seconds_left(self, transport: asyncio.BaseTransport | None) -> float:
        """Until the client's certificate expires; 0 where it has shown none."""
        found = certificate_of(transport)
        return 0.0 if found is None else max(found.expires - self._clock.time_ms() / 1000, 0.0)

    def _role(self, config: ProxyConfig, transport: asyncio.BaseTransport | None) -> str:
        found = None if self._signers is None else certificate_of(transport)
        if found is not None and self._signers is not None:
            if not self.seconds_left(transport):
                raise AuthenticationError("the certificate has expired")
            self._signers.refresh()
            if self._signers.signer(found) is not None:
                return role_of(found, config.tls_client_role)
        raise AuthenticationError("a token or a certificate is required, got none")
