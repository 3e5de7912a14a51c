"""`Rights`: the one check of a need against what a principal may do, and `Followed`, which makes it possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.broker.rights.audit import Audit
from engine.broker.rights.need import Need
from engine.broker.rights.principal import Kind, Principal
from engine.broker.settings.config import BrokerConfig
from engine.errors import AuthenticationError, AuthorizationError, TimeoutError
from engine.model.rights import CLUSTER, GRANTABLE, Right, check_resource, names_of

if TYPE_CHECKING:
    import random

    from engine.broker.rights.changes import Changes
    from engine.broker.rights.claims import Claims
    from engine.broker.rights.grants import Grants
    from engine.broker.rights.identities import Identities

# Members of enumerations are looked up slowly by Python 3.11.
_ROLE, _OF_BROKERS, _BROKER = Kind.ROLE, Kind.BROKER, Right.BROKER

KNOWN_S_MAX = 20.0  # until the metadata store has told the grants of a role


class Rights:
    """Loop thread only. Without roles in the configuration every principal may do everything."""

    def __init__(self, config: Callable[[], BrokerConfig], audit: Audit) -> None:
        self._config = config
        self._grants: Grants | None = None
        self._claims: Claims | None = None
        self._changes: Changes | None = None
        self.audit = audit

    @property
    def on(self) -> bool:
        """Whether principals have rights of their own."""
        return self._config().has_roles

    @property
    def claims(self) -> Claims:
        """Seals of claims to exclusive access. After use()."""
        assert self._claims is not None
        return self._claims

    @property
    def denials(self) -> int:
        """So far."""
        return self.audit.denials

    def use(self, grants: Grants, changes: Changes, rng: random.Random) -> None:
        """The grants, once they are read; nothing is granted before. `rng`: of keys, not to be guessed."""
        from engine.broker.rights.claims import Claims

        self._grants, self._changes, self._claims = grants, changes, Claims(rng)

    def followed(self) -> Followed:
        """For one connection, or one HTTP request."""
        return Followed(self, self._grants)

    def allows(self, principal: Principal, need: Need) -> bool:
        """Whether the principal may do what needs this. Raises TimeoutError where its role is not Followed."""
        rights, resource, subscription, in_part = need
        kind = principal.kind
        if kind is not _ROLE:
            return principal.unlimited or (kind is _OF_BROKERS and (not self.on or rights == _BROKER))
        grants, role = self._grants, principal.role
        if not rights:
            return True
        if grants is not None:
            try:
                if grants.holds(role, rights, resource, subscription):
                    return True
                if in_part and grants.some_below(role, resource):
                    return True
            except TimeoutError:
                if not self.is_superuser(role):
                    raise
        return self.is_superuser(role) and rights != _BROKER

    def is_superuser(self, role: str) -> bool:
        """Whether a role may do everything whatever it is granted, so that its grants need not be known."""
        return role in self._config().superusers

    def check(self, principal: Principal, need: Need, request: str, peer: str | None) -> None:
        """Raises AuthorizationError, which names right and resource; the denial is counted and audited. TimeoutError
        where the principal's role is not Followed.
        """
        if self.allows(principal, need):
            return
        raise self.denial(principal, need, request, peer)

    def check_again(self, identities: Identities, principal: Principal, peer: str | None) -> None:
        """Behind a wait before which it was identified: its proof may have been withdrawn meanwhile, or the right of
        the proxy that has named it. Raises AuthenticationError, AuthorizationError.
        """
        if not identities.stands(principal):
            raise AuthenticationError("the token was revoked")
        if principal.speaker is not None:
            self.check(principal.speaker, Need(Right.PROXY), "speak for a client", peer)

    def denial(self, principal: Principal, need: Need, request: str, peer: str | None) -> AuthorizationError:
        """The error of a need that is not met, once it is counted and audited."""
        where = "the cluster" if need.resource == CLUSTER else repr(need.resource)
        of = "" if need.subscription is None else f", subscription {need.subscription!r:.200}"
        why = f"the right {names_of(need.rights)} is needed on {where}{of}"
        self.audit.note_need(principal, peer, request, need, allowed=False)
        return AuthorizationError(why)

    def changed_since(self, role: str, time_ms: int) -> bool:
        """Whether a role's rights may have changed since then."""
        return self._changes is not None and self._changes.since(role, time_ms)

    def permissions(self, principal: Principal, resource: str) -> dict[str, Any]:
        """What the principal may do on a resource, as the admin API says it."""
        role = principal.role
        if principal.unlimited or (principal.kind is _ROLE and self.is_superuser(role)):
            return {**everything(resource), "role": role}
        held, prefixes = (0, None) if self._grants is None else self._grants.held(role, resource)
        return {**_permissions(resource, held, prefixes), "role": role}

    def sees(self, principal: Principal, resource: str) -> bool:
        """Whether a list may show the resource to the principal: a namespace also for a topic in it."""
        return self.allows(principal, Need(Right.LOOKUP, resource, in_part=True))

    def subscriptions_shown(self, principal: Principal, resource: str) -> tuple[str, ...] | None:
        """How the names of a topic's subscriptions begin that are shown to the principal; None: all are."""
        role = principal.role
        if self._grants is None or principal.kind is not _ROLE or self.is_superuser(role):
            return None
        return self._grants.shown(role, resource)

    def listed(self, principal: Principal, namespace: str) -> frozenset[str] | None:
        """The own names of the topics that a list of the namespace may show to the principal; None: all."""
        if self._grants is None or self.allows(principal, Need(Right.LOOKUP, namespace)):
            return None
        return self._grants.topics(principal.role, namespace)


class Followed:
    """The roles whose grants one connection, or one HTTP request, needs: they are followed until close()."""

    __slots__ = ("_grants", "_rights", "_roles", "_until")

    def __init__(self, rights: Rights, grants: Grants | None) -> None:
        self._rights = rights
        self._grants = grants
        self._roles: list[str] = []
        self._until: float | None = None  # by the loop's clock, from the first wait on

    def add(self, principal: Principal) -> bool:
        """Follow what it may be granted. Whether it can be checked now; if not, known() waits for that.

        A superuser need not wait, so that it is let in where the metadata store says nothing.
        """
        grants, role = self._grants, principal.role
        if grants is None or principal.kind is not _ROLE:
            return True
        grants.use(role)
        self._roles.append(role)
        return grants.knows(role) or self._rights.is_superuser(role)

    async def known(self, principal: Principal, seconds: float = KNOWN_S_MAX) -> None:
        """Wait until one that was added can be checked, so many seconds at most, and for all of them together
        KNOWN_S_MAX. Raises TimeoutError, TooManyRequestsError.
        """
        if self._grants is not None:
            now = asyncio.get_running_loop().time()
            self._until = self._until or now + KNOWN_S_MAX
            await self._grants.known(principal.role, min(seconds, max(self._until - now, 0.0)))

    def close(self) -> None:
        """Idempotent."""
        roles, self._roles = self._roles, []
        for role in roles:
            if self._grants is not None:
                self._grants.leave(role)

    def __enter__(self) -> Followed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def everything(resource: str) -> dict[str, Any]:
    """The permissions of a caller that may do everything."""
    return _permissions(resource, sum(Right[name.upper()] for name in GRANTABLE))


def _permissions(resource: str, held: int = 0, prefixes: list[str] | None = None) -> dict[str, Any]:
    rights = [name for name in GRANTABLE if held & Right[name.upper()]]
    return {"role": "", "resource": check_resource(resource), "rights": rights, "subscriptionPrefixes": prefixes}
