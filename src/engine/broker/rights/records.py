"""`RightsRecords`: tenants and grants as records in the metadata store, as administrators change them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.broker.rights.need import Need
from engine.broker.rights.principal import PEER, PRINCIPAL
from engine.errors import AlreadyExistsError, CorruptionError, InvalidArgumentError, NotFoundError, UnknownOutcomeError
from engine.metadata import keys
from engine.metadata.store import ABSENT, ConflictError, Indexes, MetadataStore, OutcomeUnknownError
from engine.model.names import check_new_name
from engine.model.rights import CLUSTER, Grant, Right, check_resource, check_role

if TYPE_CHECKING:
    from engine.broker.rights.rights import Rights

Noted = Callable[[str, bytes | None], object]
INDEX_GRANTS = "grants-by-role"  # of all grants; holds keys.grant_by_role()


def indexes_of(resource: str, role: str) -> Indexes:
    """With which each grant is written."""
    return {INDEX_GRANTS: keys.grant_by_role(resource, role)}


class RightsRecords:
    """`noted`: told of each grant that is written or deleted here, before the watch tells of it."""

    def __init__(
        self,
        metadata: MetadataStore,
        namespaces: Callable[[], Awaitable[list[str]]],
        noted: Noted,
        rights: Callable[[], Rights],
    ) -> None:
        """`namespaces`: the names of all."""
        self._metadata = metadata
        self._namespaces = namespaces
        self._noted = noted
        self._rights = rights

    # -- tenants ---------------------------------------------------------------------------------------------------

    async def list_tenants(self) -> list[str]:
        """Names, sorted."""
        found = {name.partition("/")[0] for name in await self._namespaces()}
        for key in await self._metadata.newest.list_keys(keys.TENANTS, keys.prefix_end(keys.TENANTS)):
            found.add(keys.decode(key.removeprefix(keys.TENANTS)))
        return sorted(found)

    async def create_tenant(self, tenant: str, roles: Sequence[str] | None) -> None:
        """Raises AlreadyExistsError, InvalidArgumentError."""
        check_new_name(tenant, "tenant")
        value = await self._allowing(tenant, roles)  # a tenant may have grants before it was created
        try:
            await self._metadata.put(keys.tenant(tenant), value, ABSENT)
        except ConflictError:
            raise AlreadyExistsError(f"the tenant {tenant} exists") from None
        except OutcomeUnknownError as e:
            raise UnknownOutcomeError(f"the tenant {tenant} may have been created: {e}") from e

    async def get_tenant(self, tenant: str) -> dict[str, Any]:
        """Raises NotFoundError."""
        roles = await self._roles(tenant)
        if roles is ...:
            raise NotFoundError(f"the tenant {tenant} was not created")
        return {"tenant": tenant, "roles": roles}

    async def set_tenant_roles(self, tenant: str, roles: Sequence[str] | None) -> None:
        """Raises NotFoundError, InvalidArgumentError."""
        while True:
            record = await self._metadata.newest.get(keys.tenant(tenant))
            if record is None:
                raise NotFoundError(f"the tenant {tenant} was not created")
            value = await self._allowing(tenant, roles)
            try:
                await self._metadata.put(keys.tenant(tenant), value, record.stat.version)
            except ConflictError:
                continue  # it was changed or deleted meanwhile
            except OutcomeUnknownError as e:
                raise UnknownOutcomeError(f"the roles of the tenant {tenant} may have been set: {e}") from e
            return

    async def _allowing(self, tenant: str, roles: Sequence[str] | None) -> bytes:
        """The record of a tenant with these roles. Raises InvalidArgumentError: another role has a grant in it."""
        if roles is None:
            return json.dumps({"roles": None}).encode()
        allowed = sorted({check_role(role) for role in roles})
        for grant in await self._grants(tenant):
            if grant.role not in allowed:
                granted = f"{grant.role!r:.200}, which has a grant on {grant.resource:.200}"
                raise InvalidArgumentError(f"roles must have {granted}, got {', '.join(roles):.200}")
        return json.dumps({"roles": allowed}).encode()

    async def delete_tenant(self, tenant: str) -> None:
        """Raises NotFoundError, InvalidArgumentError (it has namespaces)."""
        await self.get_tenant(tenant)
        inside = [name for name in await self._namespaces() if name.partition("/")[0] == tenant]
        if inside:
            raise InvalidArgumentError(f"the tenant must have no namespaces, got {', '.join(inside):.200}")
        await self.forget(tenant)
        await self._metadata.delete(keys.tenant(tenant))

    async def _roles(self, tenant: str) -> Any:
        """The roles that may be granted rights in it; None: any; ...: it was not created."""
        record = await self._metadata.newest.get(keys.tenant(tenant))
        if record is None:
            return ...
        try:
            return json.loads(record.value)["roles"]
        except (ValueError, KeyError, TypeError) as e:
            raise CorruptionError(f"tenant record of {tenant!r}: {e}") from e

    # -- grants ----------------------------------------------------------------------------------------------------

    async def list_grants(self, resource: str) -> list[dict[str, Any]]:
        """On the resource and below it, by resource and role."""
        return [grant.to_mapping() for grant in await self._grants(resource)]

    async def grant(
        self, resource: str, role: str, rights: Sequence[str], subscription_prefix: str | None = None
    ) -> None:
        """Raises InvalidArgumentError; AuthorizationError: as GET_TENANT does, where the tenant's roles forbid it."""
        grant = Grant(resource, role, tuple(rights), subscription_prefix)
        if resource != CLUSTER:
            tenant = resource.partition("/")[0]
            roles = await self._roles(tenant)
            if isinstance(roles, list) and role not in roles:  # which these are is for what may look the tenant up
                self._rights().check(PRINCIPAL.get(), Need(Right.ADMIN, tenant), f"grant to {role!r:.200}", PEER.get())
                raise InvalidArgumentError(f"role must be one of those of the tenant {tenant}, got {role!r:.200}")
        key, value = keys.grant(resource, role), grant.to_json()
        await self._metadata.put(key, value, indexes=indexes_of(resource, role))
        self._noted(key, value)

    async def revoke(self, resource: str, role: str) -> None:
        """Raises NotFoundError."""
        key = keys.grant(check_resource(resource), check_role(role))
        if not await self._metadata.delete(key):
            raise NotFoundError(f"{role} has no grant on {resource}")
        self._noted(key, None)

    async def forget(self, resource: str) -> None:
        """Delete the grants on a resource and below it."""
        for grant in await self._grants(resource):
            key = keys.grant(grant.resource, grant.role)
            await self._metadata.delete(key)
            self._noted(key, None)

    async def _grants(self, resource: str) -> list[Grant]:
        check_resource(resource)
        newest, found = self._metadata.newest, []
        below = keys.GRANTS if resource == CLUSTER else f"{keys.GRANTS}{keys.encode(resource + '/')}"
        prefixes = [below] if resource == CLUSTER else [keys.grants_on(resource), below]
        for prefix in prefixes:
            for record in await newest.list(prefix, keys.prefix_end(prefix)):
                found.append(Grant.of(*keys.grant_of(record.key), record.value))
        return sorted(found, key=lambda grant: (grant.resource, grant.role))
