"""`Identities`: the one place where principals are made, for the wire protocol and for the HTTP API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.broker.rights.principal import ANONYMOUS, OWNER, SHARED, Kind, Principal, Proof
from engine.broker.settings.attempts import Attempts, Refusal
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.tokens import is_cluster_token, token_refusal
from engine.errors import AuthenticationError

if TYPE_CHECKING:
    from engine.broker.rights.authorities import Authorities
    from engine.broker.rights.token_file import TokenFile
    from engine.broker.rights.web_tokens import WebTokens
    from engine.wire.certificates import Certificate

_WEB_TOKEN_DOTS = 2  # between header, claims and signature


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a peer has given. `local`: it is in this process or, over a Unix socket, of its user.

    `among_brokers`: over a port that other brokers use, too. `broker`: the URL of the broker that its certificate
    proves it to be. `certificate`: that TLS has verified. `user`: the id of its user, over a Unix socket.
    """

    token: str | None = field(default=None, repr=False)
    local: bool = False
    among_brokers: bool = False
    broker: str | None = None
    certificate: Certificate | None = field(default=None, repr=False)
    user: int | None = None


class Identities:
    """Makes principals of credentials, by the configuration in effect. Files of tokens and keys are read by load().

    `generation` rises with every change of the files that a refresh() has seen, by any caller.
    """

    def __init__(self, attempts: Attempts, config: Callable[[], BrokerConfig]) -> None:
        self.generation = 0
        self._attempts = attempts
        self._config = config
        self._tokens: TokenFile | None = None
        self._web_tokens: WebTokens | None = None
        self._clients: Authorities | None = None  # that sign the certificates of clients
        self._brokers: Authorities | None = None  # of brokers
        self._users: tuple[tuple[str, ...], dict[int, str]] = (), {}  # of a setting, what it says

    def load(self) -> None:
        """Read the files that the configuration names. Raises InvalidConfigurationError."""
        config = self._config()
        if config.roles_file is not None:
            from engine.broker.rights.token_file import TokenFile

            self._tokens = TokenFile(config.roles_file)
        if config.jwt_keys is not None:
            from engine.broker.rights.web_tokens import WebTokens

            self._web_tokens = WebTokens(config.jwt_keys, config.jwt_audience, config.jwt_role_claim)
        if config.tls_client_ca is not None or config.cluster_tls_ca is not None:
            from engine.broker.rights.authorities import Authorities

            if config.tls_client_ca is not None:
                self._clients = Authorities("tls_client_ca", config.tls_client_ca)
            if config.cluster_tls_ca is not None:
                self._brokers = Authorities("cluster_tls_ca", config.cluster_tls_ca)
        self.roles_of_users()

    def roles_of_users(self) -> dict[int, str]:
        """The roles of other users of the Unix socket, by their ids. Raises InvalidConfigurationError."""
        said = self._config().unix_users
        if said != self._users[0]:
            from engine.broker.rights.unix_users import parse_users

            self._users = said, parse_users(said)
        return self._users[1]

    def is_of_brokers(self, certificate: Certificate | None) -> bool:
        """Whether the authority of brokers, as it is now, has signed a certificate that was verified."""
        if certificate is None or self._brokers is None:
            return False
        self._brokers.refresh()
        return self._brokers.signer(certificate) is not None

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

    def refresh(self) -> bool:
        """Read files again that have changed; whether one has."""
        tokens = self._tokens is not None and self._tokens.refresh()
        keys = self._web_tokens is not None and self._web_tokens.refresh()
        signers = [one.refresh() for one in (self._clients, self._brokers) if one is not None]
        changed = tokens or keys or any(signers)
        self.generation += changed
        return changed

    def stands(self, principal: Principal) -> bool:
        """Whether a principal that was made earlier would be made again, apart from its expiry."""
        speaker, secret = principal.speaker, principal.secret
        if speaker is not None and not self.stands(speaker):
            return False
        if principal.kind is not Kind.ROLE:
            return True
        match principal.proof:
            case Proof.TOKEN_FILE:
                return self._tokens is not None and self._tokens.has(secret, principal.role)
            case Proof.JWT:
                return self._web_tokens is not None and self._web_tokens.has(secret)
            case Proof.CERTIFICATE:
                return self._clients is not None and self._clients.has(secret)
            case Proof.UNIX_USER:
                return self.roles_of_users().get(int(secret)) == principal.role
            case _:
                return True

    def _principal(self, given: Credentials) -> Principal:
        """Raises AuthenticationError."""
        config, token = self._config(), given.token
        if given.among_brokers and is_cluster_token(config, token):
            return Principal(Kind.BROKER, Proof.TOKEN)
        if config.has_roles:
            return self._role(config, given)
        if config.auth_token is None:
            if given.among_brokers and config.cluster_token is not None and token is not None:
                raise AuthenticationError("the token is invalid")  # it may be a guess
            return ANONYMOUS
        refusal = token_refusal(config, token)
        if refusal is not None:
            raise refusal
        return SHARED

    def _role(self, config: BrokerConfig, given: Credentials) -> Principal:
        """Where there are roles. Raises AuthenticationError."""
        token = given.token
        if token is None:
            return self._without_token(config, given)
        if config.auth_token is not None and token_refusal(config, token) is None:
            return SHARED
        self.refresh()
        if self._tokens is not None and (found := self._tokens.find(token)) is not None:
            role, digest = found
            return Principal(Kind.ROLE, Proof.TOKEN_FILE, role, secret=digest)
        if self._web_tokens is not None and token.count(".") == _WEB_TOKEN_DOTS:
            claims = self._web_tokens.verify(token)
            return Principal(Kind.ROLE, Proof.JWT, claims.role, claims.expires, claims.key)
        raise AuthenticationError("the token is invalid")

    def _without_token(self, config: BrokerConfig, given: Credentials) -> Principal:
        """By what the connection itself proves. Raises AuthenticationError."""
        if given.broker is not None:
            return Principal(Kind.BROKER, Proof.CERTIFICATE)
        certificate = given.certificate
        if certificate is not None and self._clients is not None:
            self.refresh()
            signer = self._clients.signer(certificate)
            if signer is not None:
                from engine.broker.rights.authorities import role_of

                role = role_of(certificate, config.tls_client_role)
                return Principal(Kind.ROLE, Proof.CERTIFICATE, role, certificate.expires, signer)
        if given.user is not None and (found := self.roles_of_users().get(given.user)) is not None:
            return Principal(Kind.ROLE, Proof.UNIX_USER, found, secret=str(given.user).encode())
        raise AuthenticationError("a token is required, got none")
