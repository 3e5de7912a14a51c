# Generated from src/engine/model/admin_operations.py by tools/generate_admin.py: do not edit.

"""`AdminMethods`: the operations of the admin API as methods that are awaited."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

from engine.model import admin_broker_operations as brokers
from engine.model import admin_cluster_operations as cluster
from engine.model import admin_limit_operations as limiting
from engine.model import admin_operations as operations
from engine.model import admin_rights_operations as access
from engine.model.admin_dictionaries import TopicMetadata, TopicStatistics
from engine.model.admin_requests import Operation

R = TypeVar("R")


class AdminMethods(ABC):
    """Each checks its arguments and has `_call` carry the operation out."""

    @abstractmethod
    async def _call(self, operation: Operation[R], arguments: Mapping[str, Any]) -> R:
        """Carry it out, with checked arguments by name."""

    async def _ask(self, operation: Operation[R], *values: Any) -> R:
        return await self._call(operation, operation.check(*values))

    async def create_topic(
        self,
        topic: str,
        *,
        segments: int | None = None,
        properties: Mapping[str, str] | None = None,
        key_hash: Literal["xxh64", "murmur3", "murmur3-low"] | None = None,
        durability: Literal["fsync", "interval", "os", "object"] | None = None,
        entry_buckets: int | None = None,
        auto_scale: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a topic of `segments` equal hash ranges.

        `properties`: text to text. `key_hash`: "xxh64", "murmur3" or "murmur3-low", which cannot be changed later.
        `durability`: what an acknowledgement means: "fsync", "interval" or "os". `entry_buckets`: over the whole topic.
        Defaults are those of the namespace's policies, then of the broker's configuration: out of the box 1 segment,
        "xxh64", "fsync" and 4 entry buckets. `auto_scale`: as of `set_auto_scale_policy`. Raises AlreadyExistsError,
        InvalidArgumentError, UnsupportedError.
        """
        await self._ask(
            operations.CREATE_TOPIC, topic, segments, properties, key_hash, durability, entry_buckets, auto_scale
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions. Raises NotFoundError."""
        await self._ask(operations.DELETE_TOPIC, topic)

    async def list_topics(
        self, namespace: str = "public/default", properties: Mapping[str, str] | None = None
    ) -> list[str]:
        """The full names of a namespace's topics, sorted.

        `properties`: only those topics that have all of them.
        """
        return await self._ask(operations.LIST_TOPICS, namespace, properties)

    async def get_metadata(self, topic: str) -> TopicMetadata:
        """The topic's layout and properties: the specification's JSON as a dict. Raises NotFoundError."""
        return await self._ask(operations.GET_METADATA, topic)

    async def get_stats(self, topic: str) -> TopicStatistics:
        """Segments, rates, subscriptions, consumers, auto-scale: the specification's JSON as a dict.

        Raises NotFoundError.
        """
        return await self._ask(operations.GET_STATS, topic)

    async def set_topic_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of a topic: text to text. Consumers that choose topics by them follow.

        Raises NotFoundError, InvalidArgumentError.
        """
        await self._ask(operations.SET_TOPIC_PROPERTIES, topic, properties)

    async def get_topic_policies(self, topic: str, *, own: bool = False) -> dict[str, Any]:
        """The policies in effect for a topic: retention_time_s, retention_size_bytes, message_ttl_s; -1: no limit.

        And encryption_required, flush_interval_ms (of durability "object"). Each is the topic's own, else the
        namespace's, else the broker's. `own`: only what the topic says itself, None where it says nothing. Raises
        NotFoundError.
        """
        return await self._ask(operations.GET_TOPIC_POLICIES, topic, own)

    async def set_topic_policies(self, topic: str, policies: Mapping[str, Any]) -> None:
        """Set these policies of a topic; None leaves one to the namespace again. What is not named stays.

        Raises NotFoundError, InvalidArgumentError.
        """
        await self._ask(operations.SET_TOPIC_POLICIES, topic, policies)

    async def remove_topic_policies(self, topic: str) -> None:
        """Leave all policies of a topic to its namespace. Raises NotFoundError."""
        await self._ask(operations.REMOVE_TOPIC_POLICIES, topic)

    async def split_segment(self, topic: str, segment_id: int) -> TopicMetadata:
        """Split an active segment's hash range in two halves, while the topic is in use; the new metadata.

        Producers and consumers follow by themselves. Raises NotFoundError (topic), and InvalidArgumentError when the
        segment is unknown, sealed or of one hash value: then nothing has changed.
        """
        return await self._ask(operations.SPLIT_SEGMENT, topic, segment_id)

    async def merge_segments(self, topic: str, segment_id: int, other_id: int) -> TopicMetadata:
        """Merge two active segments whose hash ranges are neighbours; the new metadata.

        Raises NotFoundError (topic), and InvalidArgumentError when one is unknown or sealed, or they are not
        neighbours: then nothing has changed.
        """
        return await self._ask(operations.MERGE_SEGMENTS, topic, segment_id, other_id)

    async def rebucket_segment(self, topic: str, segment_id: int, buckets: int) -> TopicMetadata:
        """Replace an active segment by one of the same range with `buckets` entry buckets; the new metadata.

        Raises NotFoundError (topic), and InvalidArgumentError when it is unknown or sealed, or has that many already.
        """
        return await self._ask(operations.REBUCKET_SEGMENT, topic, segment_id, buckets)

    async def create_segment(self, segment: str, subscriptions: Sequence[str] = ()) -> None:
        """Make what is missing of an active segment: its store, and cursors for these subscriptions of the topic.

        `segment`: its whole name, "segment://tenant/namespace/topic/0000-7fff-1". For repairs: what the topic's layout
        does not call for is refused. Raises NotFoundError, and InvalidArgumentError unless the layout has it as active.
        """
        await self._ask(operations.CREATE_SEGMENT, segment, subscriptions)

    async def terminate_segment(self, segment: str) -> None:
        """Seal a segment that a change under way seals; a sealed one stays as it is.

        For repairs: what the topic's layout does not call for is refused. Raises NotFoundError, and
        InvalidArgumentError for any other segment: splits and merges seal segments.
        """
        await self._ask(operations.TERMINATE_SEGMENT, segment)

    async def delete_segment(self, segment: str, force: bool = False) -> None:
        """Delete a segment that the layout does not name, or a sealed one that every subscription has drained.

        For repairs: what the topic's layout does not call for is refused. `force`: a sealed one also when it is not
        drained; subscriptions lose the messages that they have not read. Raises NotFoundError (topic),
        InvalidArgumentError when it is active or has parents that are still there.
        """
        await self._ask(operations.DELETE_SEGMENT, segment, force)

    async def get_segment_stats(self, segment: str) -> dict[str, Any]:
        """One segment's numbers, asked of its owner: offsets, size, owner, and each subscription's part in it.

        Raises NotFoundError when the topic, or its layout, has no such segment.
        """
        return await self._ask(operations.GET_SEGMENT_STATS, segment)

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        initial_position: Literal["earliest", "latest"] = "latest",
        kind: Literal["stream", "queue"] | None = None,
    ) -> None:
        """Create a subscription, at "earliest" or "latest".

        `kind`: "stream" or "queue", which statistics show before its first consumer comes; None: not known yet. Raises
        AlreadyExistsError, NotFoundError.
        """
        await self._ask(operations.CREATE_SUBSCRIPTION, topic, subscription, initial_position, kind)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription in every segment, sealed ones too. Its consumers get NotFoundError.

        Raises NotFoundError.
        """
        await self._ask(operations.DELETE_SUBSCRIPTION, topic, subscription)

    async def seek_subscription(
        self, topic: str, subscription: str, when: Literal["earliest", "latest"] | datetime
    ) -> None:
        """Move a subscription: to the earliest or latest message, or to the first one published since an instant.

        `when`: "earliest", "latest", or an aware datetime (semantics 38). Raises NotFoundError.
        """
        await self._ask(operations.SEEK_SUBSCRIPTION, topic, subscription, when)

    async def clear_backlog(self, topic: str, subscription: str) -> None:
        """Acknowledge everything that a subscription has not acknowledged. Raises NotFoundError."""
        await self._ask(operations.CLEAR_BACKLOG, topic, subscription)

    async def skip_messages(
        self, topic: str, subscription: str, segment_id: int, first: int, last: int | None = None
    ) -> None:
        """Acknowledge the offsets `first` to `last` of one segment, as those of a bad entry that consumers stop at.

        `last`: None is `first`. Consumers go on behind it. Raises NotFoundError, InvalidArgumentError,
        TransactionConflictError.
        """
        await self._ask(operations.SKIP_MESSAGES, topic, subscription, segment_id, first, last)

    async def list_transactions(
        self, *, open_longer_than: float | None = None, segment: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """The open transactions, the oldest first: the oldest `limit`, out of the box 1,000.

        `open_longer_than`: only those that are at least so many seconds old. `segment`: "segment://…", only those with
        operations in it.
        """
        return await self._ask(operations.LIST_TRANSACTIONS, open_longer_than, segment, limit)

    async def get_transaction(self, ident: str) -> dict[str, Any]:
        """How a transaction stands, and where it has operations that did not take effect yet.

        Raises TransactionNotFoundError.
        """
        return await self._ask(operations.GET_TRANSACTION, ident)

    async def abort_transaction(self, ident: str) -> None:
        """Abort a transaction that is open.

        Raises TransactionNotFoundError, TransactionConflictError when it was committed.
        """
        await self._ask(operations.ABORT_TRANSACTION, ident)

    async def list_namespaces(self) -> list[str]:
        """Every "tenant/namespace" with a topic, or with policies of its own, sorted."""
        return await self._ask(operations.LIST_NAMESPACES)

    async def get_namespace_policies(self, namespace: str, *, own: bool = False) -> dict[str, Any]:
        """The policies in effect for a namespace.

        retention_time_s, retention_size_bytes, message_ttl_s, encryption_required, flush_interval_ms, durability,
        auto_create_topics. -1 is without limit. Each is the namespace's, else the broker's. `own`: only what the
        namespace says itself, None where it says nothing.
        """
        return await self._ask(operations.GET_NAMESPACE_POLICIES, namespace, own)

    async def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Set these policies of a namespace; None leaves one to the broker again. What is not named stays.

        Raises InvalidArgumentError.
        """
        await self._ask(operations.SET_NAMESPACE_POLICIES, namespace, policies)

    async def replace_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Replace all policies of a namespace: each must be named, None leaves it to the broker.

        Raises InvalidArgumentError.
        """
        await self._ask(operations.REPLACE_NAMESPACE_POLICIES, namespace, policies)

    async def remove_namespace_policies(self, namespace: str) -> None:
        """Leave all policies of a namespace to the broker."""
        await self._ask(operations.REMOVE_NAMESPACE_POLICIES, namespace)

    async def set_auto_scale_policy(self, topic: str, policy: Mapping[str, Any]) -> None:
        """Replace what a topic overrides of how it changes its own shape.

        `policy`: any of `enabled`, `max_segments`, `split_cooldown` and so on: the configuration's keys without
        `scalable_topic_`; times in seconds. The rest is as the namespace and the broker say. It counts at once. Raises
        NotFoundError, InvalidArgumentError.
        """
        await self._ask(operations.SET_AUTO_SCALE_POLICY, topic, policy)

    async def get_auto_scale_policy(self, topic: str) -> dict[str, Any]:
        """What the topic itself overrides; {} for nothing. What is in effect is in its statistics.

        Raises NotFoundError.
        """
        return await self._ask(operations.GET_AUTO_SCALE_POLICY, topic)

    async def remove_auto_scale_policy(self, topic: str) -> None:
        """Let the namespace and the broker decide. Raises NotFoundError."""
        await self._ask(operations.REMOVE_AUTO_SCALE_POLICY, topic)

    async def get_auto_scale_history(self, topic: str) -> dict[str, Any]:
        """What auto-scale decided about a topic, and why: the last 64 decisions, the newest first.

        {"leading", "decisions"}: decisions of the present leader since it leads the topic; those that said the same one
        after the other are one. `leading` is false, and there are none, where no leader answers. Raises NotFoundError.
        """
        return await self._ask(operations.GET_AUTO_SCALE_HISTORY, topic)

    async def set_namespace_auto_scale_policy(self, namespace: str, policy: Mapping[str, Any]) -> None:
        """The same for all topics of a namespace, where they override nothing themselves.

        Raises InvalidArgumentError.
        """
        await self._ask(operations.SET_NAMESPACE_AUTO_SCALE_POLICY, namespace, policy)

    async def get_namespace_auto_scale_policy(self, namespace: str) -> dict[str, Any]:
        """What the namespace itself overrides; {} for nothing."""
        return await self._ask(operations.GET_NAMESPACE_AUTO_SCALE_POLICY, namespace)

    async def remove_namespace_auto_scale_policy(self, namespace: str) -> None:
        """Let the broker decide."""
        await self._ask(operations.REMOVE_NAMESPACE_AUTO_SCALE_POLICY, namespace)

    async def list_tenants(self) -> list[str]:
        """Every tenant that was created, or has a namespace, sorted."""
        return await self._ask(access.LIST_TENANTS)

    async def create_tenant(self, tenant: str, *, roles: Sequence[str] | None = None) -> None:
        """Create a tenant. A tenant that was not created is there as soon as it has a namespace.

        `roles`: only these may be granted rights in it; None: any. Raises AlreadyExistsError, InvalidArgumentError.
        """
        await self._ask(access.CREATE_TENANT, tenant, roles)

    async def get_tenant(self, tenant: str) -> dict[str, Any]:
        """A tenant that was created: the roles that may be granted rights in it, null for any.

        Raises NotFoundError.
        """
        return await self._ask(access.GET_TENANT, tenant)

    async def set_tenant_roles(self, tenant: str, roles: Sequence[str] | None) -> None:
        """Set the roles that may be granted rights in a tenant that was created.

        `roles`: in place of those of before; None: any. Each role that has a grant in the tenant must be among them:
        revoke it first. Raises NotFoundError, InvalidArgumentError.
        """
        await self._ask(access.SET_TENANT_ROLES, tenant, roles)

    async def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant that has no namespaces, with the grants on it.

        Raises NotFoundError, InvalidArgumentError.
        """
        await self._ask(access.DELETE_TENANT, tenant)

    async def create_namespace(self, namespace: str) -> None:
        """Create a namespace. One that was not created is there as soon as it has a topic or policies.

        Raises AlreadyExistsError, InvalidArgumentError.
        """
        await self._ask(access.CREATE_NAMESPACE, namespace)

    async def delete_namespace(self, namespace: str) -> None:
        """Delete a namespace that has no topics, with its policies and the grants on it.

        Raises NotFoundError, InvalidArgumentError.
        """
        await self._ask(access.DELETE_NAMESPACE, namespace)

    async def list_grants(self, resource: str) -> list[dict[str, Any]]:
        """The grants on a resource and on what lies below it; "*" for all.

        `resource`: "tenant", "tenant/namespace", "tenant/namespace/topic" or "*", the cluster.
        """
        return await self._ask(access.LIST_GRANTS, resource)

    async def grant(
        self, resource: str, role: str, rights: Sequence[str], *, subscription_prefix: str | None = None
    ) -> None:
        """Grant a role these rights on a resource and what lies below it, in place of those that it has there.

        `resource`: as of `list_grants`. `rights`: "produce", "consume", "lookup", "admin"; on "*" also "operate" and
        "superuser". `subscription_prefix`: `consume` is of subscriptions whose names begin so. It counts at once, on
        other brokers within a second. Raises InvalidArgumentError.
        """
        await self._ask(access.GRANT, resource, role, rights, subscription_prefix)

    async def revoke(self, resource: str, role: str) -> None:
        """Take the rights of a role on a resource away: what it has open by them ends within a second.

        Raises NotFoundError.
        """
        await self._ask(access.REVOKE, resource, role)

    async def get_permissions(self, resource: str) -> dict[str, Any]:
        """The rights that the caller itself has on a resource, with those that they imply.

        `resource`: as of `list_grants`. {"role", "resource", "rights", "subscriptionPrefixes"}; the last is what names
        of subscriptions must begin with for `consume`, None for nothing. Whether the resource exists is not looked at.
        """
        return await self._ask(access.GET_PERMISSIONS, resource)

    async def list_limits(self) -> dict[str, dict[str, Any]]:
        """The limits that each resource and role says itself, by its name."""
        return await self._ask(limiting.LIST_LIMITS)

    async def get_limits(self, resource: str) -> dict[str, Any]:
        """The limits that a resource or a role says itself, None where it says nothing.

        `resource`: "tenant", "tenant/namespace", "tenant/namespace/topic", "*" for each broker, "role:NAME", or
        "role:*" for each role that says nothing itself. Those in effect for a topic, with their origin, are in
        `get_stats`. Raises InvalidArgumentError.
        """
        return await self._ask(limiting.GET_LIMITS, resource)

    async def set_limits(self, resource: str, limits: Mapping[str, Any]) -> None:
        """Set these limits of a resource or a role; None takes one back. What is not named stays.

        `resource`: as of `get_limits`. `limits`: by name; -1 for none, whatever is said above. They hold within a
        second, also for what is attached. Raises InvalidArgumentError.
        """
        await self._ask(limiting.SET_LIMITS, resource, limits)

    async def replace_limits(self, resource: str, limits: Mapping[str, Any]) -> None:
        """Set these limits of a resource or a role in place of all that it says. Raises InvalidArgumentError."""
        await self._ask(limiting.REPLACE_LIMITS, resource, limits)

    async def remove_limits(self, resource: str) -> None:
        """Take back all limits that a resource or a role says. Raises InvalidArgumentError."""
        await self._ask(limiting.REMOVE_LIMITS, resource)

    async def list_brokers(self) -> list[dict[str, Any]]:
        """The live brokers that share the metadata store, by URL: what each has open, its load, whether it drains."""
        return await self._ask(cluster.LIST_BROKERS)

    async def drain_broker(self, broker: str) -> None:
        """Have a broker hand over all its segments and leaderships, and take no more, until undrain_broker.

        It begins at once and goes on behind the answer: list_brokers shows how much is left. A broker that is started
        again does not drain. Raises NotFoundError (no such broker lives), InvalidArgumentError (no other takes
        segments), ConnectError (it does not answer).
        """
        await self._ask(cluster.DRAIN_BROKER, broker)

    async def undrain_broker(self, broker: str) -> None:
        """Let a broker take segments again. It gets new ones, and its share of the others from the balancer.

        Raises NotFoundError, ConnectError.
        """
        await self._ask(cluster.UNDRAIN_BROKER, broker)

    async def balance_brokers(self, *, dry_run: bool = False) -> dict[str, Any]:
        """Run one round of balance now, whether the balancer is enabled or not: the imbalance and the moves.

        As a round that runs by itself, but for the cooldown: a segment may go that has just come. `dry_run`: decide,
        and move nothing. Raises NotOwnerError while the balancer changes, ConnectError when it does not answer.
        """
        return await self._ask(cluster.BALANCE_BROKERS, dry_run)

    async def unload_topic(self, topic: str, *, to: str | None = None) -> list[dict[str, Any]]:
        """Hand every open segment of a topic over to another broker, in order, while it is in use; the moves.

        `to`: the URL of that broker; None: one that has little load. Where no other broker takes segments, clients come
        again to this one. Raises NotFoundError, InvalidArgumentError, NotOwnerError (one changes its owner or its shape
        just now: try again; those before it went), ConnectError (a broker does not answer).
        """
        return await self._ask(cluster.UNLOAD_TOPIC, topic, to)

    async def unload_segment(self, segment: str, *, to: str | None = None) -> list[dict[str, Any]]:
        """Hand one segment over to another broker, in order, while it is in use; the move, none if it is not open.

        `segment`: its whole name, "segment://tenant/namespace/topic/0000-7fff-1". `to`: the URL of that broker; None:
        one that has little load. Where no other broker takes segments, clients come again to this one. Raises as
        unload_topic does: NotFoundError, InvalidArgumentError, NotOwnerError, ConnectError.
        """
        return await self._ask(cluster.UNLOAD_SEGMENT, segment, to)

    async def sweep_objects(self, *, dry_run: bool = False) -> dict[str, Any]:
        """Delete objects that brokers which have ended left behind, and that no segment needs.

        As one broker of the cluster does once an hour: objects younger than an hour stay. `dry_run`: list what would
        go. Raises UnsupportedError (this broker keeps no segments in an object store), StorageError (another sweep is
        under way, or the store does not answer).
        """
        return await self._ask(cluster.SWEEP_OBJECTS, dry_run)

    async def get_metrics(self) -> str:
        """The metrics of the broker that answers, as Prometheus text."""
        return await self._ask(brokers.GET_METRICS)

    async def get_dynamic_configuration(self) -> dict[str, Any]:
        """What was set at run time, by the keys of the configuration."""
        return await self._ask(brokers.GET_DYNAMIC_CONFIGURATION)

    async def get_runtime_configuration(self) -> dict[str, Any]:
        """What is in effect on the broker that answers, of all that may be set at run time."""
        return await self._ask(brokers.GET_RUNTIME_CONFIGURATION)

    async def set_dynamic_configuration(self, name: str, value: str | float) -> None:
        """Set a limit for all brokers, at once and over restarts, whatever they were started with.

        `name`: a key of the configuration, or the specification's name, with the value in the unit it has there; text
        may have a unit. Raises InvalidArgumentError (it cannot be set at run time), InvalidConfigurationError (value).
        """
        await self._ask(brokers.SET_DYNAMIC_CONFIGURATION, name, value)

    async def remove_dynamic_configuration(self, name: str) -> None:
        """Go back to what each broker was started with.

        Raises InvalidArgumentError (it cannot be set at run time).
        """
        await self._ask(brokers.REMOVE_DYNAMIC_CONFIGURATION, name)
