"""`LocalAdmin`: the admin operations that every broker executes itself, on shared metadata and its own state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from engine.broker.admin.cluster_admin import ClusterAdmin
from engine.broker.admin.dynamic import DynamicConfig
from engine.broker.admin.transaction_admin import TransactionAdmin
from engine.broker.limits.records import LimitRecords
from engine.broker.rights.records import RightsRecords
from engine.broker.rights.rights import everything
from engine.broker.settings.config import BrokerConfig
from engine.broker.upkeep.backups import Backups
from engine.control.service import ScalableTopicService
from engine.errors import UnsupportedError
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.names import SegmentName, TopicName
from engine.model.policies import FOR_EVER, NamespacePolicies, resolved

T = TypeVar("T")


class LocalAdmin:
    """One method for each operation, with its name, arguments and errors.

    `dynamic`, `transactions`, `cluster`, `metrics`, `rights`, `limits`, `backups`: None where there is no broker; their
    operations raise UnsupportedError then.
    """

    def __init__(
        self,
        service: ScalableTopicService,
        config: BrokerConfig,
        *,
        dynamic: DynamicConfig | None = None,
        transactions: TransactionAdmin | None = None,
        cluster: ClusterAdmin | None = None,
        metrics: Callable[[], Awaitable[str]] | None = None,
        rights: RightsRecords | None = None,
        limits: LimitRecords | None = None,
        backups: Backups | None = None,
    ) -> None:
        self._backups = backups
        self._rights = rights
        self._limits = limits
        self._transactions = transactions
        self._cluster = cluster
        self._service = service
        self._config = config
        self._dynamic = dynamic
        self._metrics = metrics

    async def create_topic(self, topic: str, **options: Any) -> None:
        """Create a topic. An option that is None takes the default of the namespace, else of the broker."""
        await self._service.create_topic(topic, **options)

    async def list_topics(self, namespace: str, properties: Mapping[str, str] | None) -> list[str]:
        """Full topic names, sorted."""
        return await self._service.list_topics(namespace, properties)

    async def list_namespaces(self) -> list[str]:
        """Names "tenant/namespace", sorted."""
        return await self._service.list_namespaces()

    async def get_metadata(self, topic: str) -> dict[str, Any]:
        return await self._service.get_metadata(topic)

    async def get_segment_stats(self, segment: str) -> dict[str, Any]:
        """Asked of the segment's owner."""
        return await self._service.get_segment_stats(SegmentName.parse(segment))

    async def list_transactions(
        self, open_longer_than: float | None, segment: str | None, limit: int | None
    ) -> list[dict[str, Any]]:
        """Open transactions, the oldest first."""
        return await _available(self._transactions).list_open(open_longer_than, segment, limit)

    async def get_transaction(self, ident: str) -> dict[str, Any]:
        """A transaction, and where it has operations that are not applied yet."""
        return await _available(self._transactions).get(ident)

    async def abort_transaction(self, ident: str) -> None:
        await _available(self._transactions).abort(ident)

    async def get_namespace_policies(self, namespace: str, own: bool) -> dict[str, Any]:
        """The policies by snake_case name: those in effect or, with `own`, only those that the namespace sets."""
        policies = await self._service.get_namespace_policies(namespace)
        if own:
            return policies.to_mapping()
        above = await self._service.policies_above(namespace.split("/")[0])
        return resolved(policies, above, _policies_of(self._config))

    async def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Change the named policies; others stay."""
        await self._service.change_namespace_policies(namespace, policies)

    async def replace_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Replace all policies; each must be named."""
        await self._service.set_namespace_policies(namespace, NamespacePolicies.of_all(policies))

    async def get_topic_policies(self, topic: str, own: bool) -> dict[str, Any]:
        """The policies in effect or, with `own`, only those that the topic sets."""
        policies, name = await self._service.find_topic_policies(topic), TopicName.parse(topic)
        if own:
            return policies.to_mapping()
        namespace = await self._service.get_namespace_policies(f"{name.tenant}/{name.namespace}")
        above = await self._service.policies_above(name.tenant)
        found = resolved(policies, namespace, above, _policies_of(self._config))
        return {name: found[name] for name in policies.to_mapping()}

    async def remove_namespace_policies(self, namespace: str) -> None:
        await self._service.set_namespace_policies(namespace, None)

    async def get_auto_scale_policy(self, topic: str) -> dict[str, Any]:
        """The overridden settings by snake_case name."""
        return _mapping(await self._service.scaling.get_policy(topic))

    async def set_namespace_auto_scale_policy(self, namespace: str, policy: Mapping[str, Any]) -> None:
        """Replace the overrides of a namespace."""
        await self._service.scaling.set_namespace_policy(namespace, AutoScalePolicyOverride.of(policy))

    async def get_namespace_auto_scale_policy(self, namespace: str) -> dict[str, Any]:
        """The overridden settings by snake_case name."""
        return _mapping(await self._service.scaling.get_namespace_policy(namespace))

    async def remove_namespace_auto_scale_policy(self, namespace: str) -> None:
        await self._service.scaling.set_namespace_policy(namespace, None)

    async def list_tenants(self) -> list[str]:
        """Names, sorted."""
        return await _available(self._rights).list_tenants()

    async def create_tenant(self, tenant: str, roles: Sequence[str] | None) -> None:
        await _available(self._rights).create_tenant(tenant, roles)

    async def get_tenant(self, tenant: str) -> dict[str, Any]:
        """One that was created."""
        return await _available(self._rights).get_tenant(tenant)

    async def set_tenant_roles(self, tenant: str, roles: Sequence[str] | None) -> None:
        await _available(self._rights).set_tenant_roles(tenant, roles)

    async def delete_tenant(self, tenant: str) -> None:
        await _available(self._rights).delete_tenant(tenant)

    async def create_namespace(self, namespace: str) -> None:
        """One without topics or policies."""
        await self._service.create_namespace(namespace)

    async def delete_namespace(self, namespace: str) -> None:
        """With the grants on it."""
        await self._service.delete_namespace(namespace)
        await _available(self._rights).forget(namespace)

    async def list_grants(self, resource: str) -> list[dict[str, Any]]:
        """On the resource and below it."""
        return await _available(self._rights).list_grants(resource)

    async def grant(self, resource: str, role: str, rights: Sequence[str], subscription_prefix: str | None) -> None:
        """In place of those that the role has there."""
        await _available(self._rights).grant(resource, role, rights, subscription_prefix)

    async def get_permissions(self, resource: str) -> dict[str, Any]:
        """Of a caller in this process, which may do everything; HTTP answers for others itself."""
        return everything(resource)

    async def revoke(self, resource: str, role: str) -> None:
        await _available(self._rights).revoke(resource, role)

    async def list_limits(self) -> dict[str, dict[str, Any]]:
        """What each resource and role says."""
        return await _available(self._limits).list()

    async def get_limits(self, resource: str) -> dict[str, Any]:
        """What a resource or a role says itself."""
        return await _available(self._limits).get(resource)

    async def set_limits(self, resource: str, limits: Mapping[str, Any]) -> None:
        """Change the named limits; others stay."""
        await _available(self._limits).change(resource, limits)

    async def replace_limits(self, resource: str, limits: Mapping[str, Any]) -> None:
        """In place of all that it says."""
        await _available(self._limits).replace(resource, limits)

    async def remove_limits(self, resource: str) -> None:
        await _available(self._limits).remove(resource)

    async def get_metrics(self) -> str:
        """The metrics of this broker, as Prometheus text."""
        return await _available(self._metrics)()

    async def list_brokers(self) -> list[dict[str, Any]]:
        """By URL."""
        return await _available(self._cluster).list_brokers()

    async def drain_broker(self, broker: str) -> None:
        await _available(self._cluster).drain_broker(broker)

    async def undrain_broker(self, broker: str) -> None:
        await _available(self._cluster).undrain_broker(broker)

    async def balance_brokers(self, dry_run: bool) -> dict[str, Any]:
        """At the balancer."""
        return await _available(self._cluster).balance_brokers(dry_run)

    async def sweep_objects(self, dry_run: bool) -> dict[str, Any]:
        """By this broker."""
        return await _available(self._cluster).sweep_objects(dry_run)

    async def unload_topic(self, topic: str, to: str | None) -> list[dict[str, Any]]:
        """Each segment at its owner."""
        return await _available(self._cluster).unload_topic(topic, to)

    async def unload_segment(self, segment: str, to: str | None) -> list[dict[str, Any]]:
        """At its owner."""
        return await _available(self._cluster).unload_segment(segment, to)

    async def begin_backup(self) -> dict[str, Any]:
        """Of this broker's data directory."""
        return await _available(self._backups).begin()

    async def read_backup(self, ident: str, file: str, position: int, size: int) -> str:
        """In base64."""
        return await _available(self._backups).read(ident, file, position, size)

    async def renew_backup(self, ident: str) -> None:
        await _available(self._backups).renew(ident)

    async def end_backup(self, ident: str, done: bool) -> None:
        await _available(self._backups).end(ident, done)

    async def list_dynamic_configuration(self) -> list[str]:
        """The names of settings that can change at run time."""
        return _available(self._dynamic).names()

    async def get_dynamic_configuration(self) -> dict[str, Any]:
        return _available(self._dynamic).values()

    async def get_runtime_configuration(self) -> dict[str, Any]:
        """The values in effect on this broker."""
        return _available(self._dynamic).runtime()

    async def set_dynamic_configuration(self, name: str, value: str | float) -> None:
        await _available(self._dynamic).set(name, value)

    async def remove_dynamic_configuration(self, name: str) -> None:
        """Reset a setting to the value that each broker was started with."""
        await _available(self._dynamic).unset(name)


def _policies_of(config: BrokerConfig) -> NamespacePolicies:
    """The policies of a namespace that sets none."""
    time_s = FOR_EVER if config.retention_time is None else int(config.retention_time)
    size = FOR_EVER if config.retention_size is None else config.retention_size
    creates = config.auto_create_topics and config.scalable_topic_enabled
    return NamespacePolicies(
        retention_time_s=time_s,
        retention_size_bytes=size,
        message_ttl_s=FOR_EVER if config.message_ttl is None else int(config.message_ttl),
        encryption_required=False,
        flush_interval_ms=round(1000 * config.object_flush_interval),
        durability=config.durability,
        auto_create_topics=creates,
    )


def _available(part: T | None) -> T:
    if part is None:
        raise UnsupportedError("this operation needs a running broker")
    return part


def _mapping(override: AutoScalePolicyOverride | None) -> dict[str, Any]:
    return {} if override is None else override.to_mapping()
