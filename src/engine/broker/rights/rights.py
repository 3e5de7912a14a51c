"""`Rights`: the one check of a need against what a principal may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.broker.rights.audit import Audit
from engine.broker.rights.need import Need
from engine.broker.rights.principal import Kind, Principal
from engine.broker.settings.config import BrokerConfig
from engine.errors import AuthorizationError
from engine.model.rights import CLUSTER, GRANTABLE, Right, check_resource, names_of

if TYPE_CHECKING:
    import random

    from engine.broker.rights.changes import Changes
    from engine.broker.rights.claims import Claims
    from engine.broker.rights.grants import Grants

# Members of enumerations are looked up slowly by Python 3.11.
_ROLE, _OF_BROKERS, _BROKER = Kind.ROLE, Kind.BROKER, Right.BROKER


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

    def allows(self, principal: Principal, need: Need) -> bool:
        """Whether the principal may do what needs this."""
        rights, resource, subscription, in_part = need
        kind = principal.kind
        if kind is not _ROLE:
            return principal.unlimited or (kind is _OF_BROKERS and (not self.on or rights == _BROKER))
        grants, role = self._grants, principal.role
        if not rights:
            return True
        if grants is not None:
            if grants.holds(role, rights, resource, subscription):
                return True
            if in_part and grants.some_below(role, resource):
                return True
        return role in self._config().superusers and rights != _BROKER

    def check(self, principal: Principal, need: Need, request: str, peer: str | None) -> None:
        """Raises AuthorizationError, which names right and resource; the denial is counted and audited."""
        if self.allows(principal, need):
            return
        raise self.denial(principal, need, request, peer)

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
        if principal.unlimited or (principal.kind is Kind.ROLE and role in self._config().superusers):
            return {**everything(resource), "role": role}
        held, prefixes = (0, None) if self._grants is None else self._grants.held(role, resource)
        return {**_permissions(resource, held, prefixes), "role": role}

    def sees(self, principal: Principal, resource: str) -> bool:
        """Whether a list may show the resource to the principal: a namespace also for a topic in it."""
        return self.allows(principal, Need(Right.LOOKUP, resource, in_part=True))

    def subscriptions_shown(self, principal: Principal, resource: str) -> tuple[str, ...] | None:
        """How the names of a topic's subscriptions begin that are shown to the principal; None: all are."""
        role = principal.role
        if self._grants is None or principal.kind is not _ROLE or role in self._config().superusers:
            return None
        return self._grants.shown(role, resource)

    def listed(self, principal: Principal, namespace: str) -> frozenset[str] | None:
        """The own names of the topics that a list of the namespace may show to the principal; None: all."""
        if self._grants is None or self.allows(principal, Need(Right.LOOKUP, namespace)):
            return None
        return self._grants.topics(principal.role, namespace)


def everything(resource: str) -> dict[str, Any]:
    """The permissions of a caller that may do everything."""
    return _permissions(resource, sum(Right[name.upper()] for name in GRANTABLE))


def _permissions(resource: str, held: int = 0, prefixes: list[str] | None = None) -> dict[str, Any]:
    rights = [name for name in GRANTABLE if held & Right[name.upper()]]
    return {"role": "", "resource": check_resource(resource), "rights": rights, "subscriptionPrefixes": prefixes}
