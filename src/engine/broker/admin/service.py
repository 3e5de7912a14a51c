"""`AdminService`: the administration of topics and subscriptions, in process; `rest.py` serves it over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar

from engine.broker.admin.dynamic import DynamicConfig
from engine.broker.admin.leader import LeaderAdmin
from engine.broker.admin.transaction_admin import TransactionAdmin
from engine.broker.settings.config import BrokerConfig
from engine.control.service import ScalableTopicService
from engine.errors import ConnectError, InvalidArgumentError, NotOwnerError, TimeoutError, UnsupportedError
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.names import SegmentName, TopicName
from engine.model.policies import FOR_EVER, NamespacePolicies

T = TypeVar("T")
Forward = Callable[[TopicName, str, dict[str, Any]], Awaitable[Any]]


class AdminService:
    """Topics are names in any of their written forms. Loop thread only.

    What only a topic's leader can do is tried here first: this broker leads when nobody does. When another broker
    leads, `forward(topic, method, arguments)` has the method of its LeaderAdmin called there, once; without `forward`
    NotOwnerError is raised. Every method raises InvalidArgumentError for malformed arguments.
    """

    def __init__(
        self,
        service: ScalableTopicService,
        config: BrokerConfig,
        forward: Forward | None = None,
        *,
        dynamic: DynamicConfig | None = None,
        transactions: TransactionAdmin | None = None,
        metrics: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self.leading = LeaderAdmin(service)
        self._transactions = transactions
        self._service = service
        self._config = config
        self._forward = forward
        self._dynamic = dynamic
        self._metrics = metrics

    async def _led(self, method: str, topic: str | TopicName, **arguments: Any) -> Any:
        """The method of LeaderAdmin, here or at the topic's leader."""
        name = TopicName.parse(topic)
        try:
            return await self.leading.call(method, name, arguments)
        except NotOwnerError:
            if self._forward is None:
                raise
        return await self._forward(name, method, arguments)

    # -- topics ----------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        segments: int | None = None,
        properties: Mapping[str, str] | None = None,
        key_hash: str | None = None,
        durability: str | None = None,
        entry_buckets: int | None = None,
    ) -> None:
        """Create a topic; what is None takes the namespace's or the broker's default. Raises AlreadyExistsError."""
        if not self._config.scalable_topic_enabled:
            raise UnsupportedError("scalable topics are switched off on this broker (scalable_topic_enabled)")
        await self._service.create_topic(
            topic,
            segments=segments,
            properties=properties,
            key_hash=key_hash,
            durability=durability,
            entry_buckets=entry_buckets,
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions. Raises NotFoundError."""
        await self._led("delete_topic", topic)

    async def list_topics(
        self, namespace: str = "public/default", properties: Mapping[str, str] | None = None
    ) -> list[str]:
        """The names "topic://…" of a namespace, sorted; those that have all these properties."""
        return await self._service.list_topics(namespace, properties)

    async def get_metadata(self, topic: str) -> dict[str, Any]:
        """The specification's ScalableTopicMetadata. Raises NotFoundError."""
        return await self._service.get_metadata(topic)

    async def get_stats(self, topic: str) -> dict[str, Any]:
        """Counts, rates per second, backlogs, consumers, loads, auto-scale and its reasons. Raises NotFoundError.

        From the topic's leader, if there is one that answers: only it knows consumers by name, and what it decided.
        """
        name = TopicName.parse(topic)
        if self._forward is not None:
            with suppress(ConnectError, TimeoutError, NotOwnerError):
                return dict(await self._forward(name, "get_stats", {}))
        return await self._service.get_stats(name)

    # -- the shape of a topic --------------------------------------------------------------------------------------

    async def split_segment(self, topic: str, segment_id: int) -> dict[str, Any]:
        """An active segment's range in two halves; the new metadata. Raises NotFoundError (topic)."""
        return dict(await self._led("split_segment", topic, segment_id=segment_id))

    async def merge_segments(self, topic: str, segment_id: int, other_id: int) -> dict[str, Any]:
        """Two adjacent active segments as one; the new metadata. Raises NotFoundError (topic)."""
        return dict(await self._led("merge_segments", topic, segment_id=segment_id, other_id=other_id))

    async def rebucket_segment(self, topic: str, segment_id: int, buckets: int) -> dict[str, Any]:
        """An active segment with another number of entry buckets; the new metadata. Raises NotFoundError (topic)."""
        return dict(await self._led("rebucket_segment", topic, segment_id=segment_id, buckets=buckets))

    async def prune_segment(self, topic: str | TopicName, segment_id: int) -> bool:
        """A sealed segment that retention lets go leaves the topic; False: not now. Raises NotFoundError (topic)."""
        return bool(await self._led("prune_segment", topic, segment_id=segment_id))

    # -- single segments: for repairs, and guarded by the layout ---------------------------------------------------

    async def create_segment(self, segment: str, subscriptions: Sequence[str] = ()) -> None:
        """What is missing of an active segment: its store, and its cursors for these subscriptions of the topic.

        `segment` is "segment://…". Raises NotFoundError, InvalidArgumentError unless the layout has it as active.
        """
        names = list(subscriptions)
        await self._led("create_segment", SegmentName.parse(segment).topic, segment=segment, subscriptions=names)

    async def terminate_segment(self, segment: str) -> None:
        """Nothing for a sealed segment; InvalidArgumentError for an active one: a split or merge seals it."""
        await self._led("terminate_segment", SegmentName.parse(segment).topic, segment=segment)

    async def delete_segment(self, segment: str, force: bool = False) -> None:
        """Delete one that the layout does not name, or a sealed one that is drained; `force`: drained or not.

        Raises NotFoundError (topic), InvalidArgumentError when it is active, or has parents that are still there.
        """
        await self._led("delete_segment", SegmentName.parse(segment).topic, segment=segment, force=force)

    # -- subscriptions ---------------------------------------------------------------------------------------------

    async def create_subscription(self, topic: str, subscription: str, *, initial_position: str = "latest") -> None:
        """Create it at "earliest" or "latest". Raises AlreadyExistsError, NotFoundError."""
        await self._led("create_subscription", topic, subscription=subscription, initial_position=initial_position)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete it from every segment; its consumers are told. Raises NotFoundError."""
        await self._led("delete_subscription", topic, subscription=subscription)

    async def seek_subscription(self, topic: str, subscription: str, when: str | int | datetime) -> None:
        """Move it to "earliest", "latest", an aware datetime or milliseconds. Raises NotFoundError."""
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise InvalidArgumentError(f"{when!r} has no time zone; an aware datetime is right")
            when = int(when.timestamp() * 1000)
        await self._led("seek_subscription", topic, subscription=subscription, when=when)

    async def clear_backlog(self, topic: str, subscription: str) -> None:
        """Acknowledge everything. Raises NotFoundError."""
        await self._led("clear_backlog", topic, subscription=subscription)

    async def skip_messages(self, topic: str, subscription: str, segment_id: int, first: int, last: int) -> None:
        """Acknowledge the offsets first..last of one segment. Raises NotFoundError, InvalidArgumentError."""
        await self._led(
            "skip_messages", topic, subscription=subscription, segment_id=segment_id, first=first, last=last
        )

    # -- transactions ----------------------------------------------------------------------------------------------

    async def list_transactions(
        self, *, open_longer_than: float | None = None, segment: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Open ones, the oldest first: at least so many seconds old; with operations in the segment "segment://…"."""
        return await _there(self._transactions).list_open(open_longer_than, segment, limit)

    async def get_transaction(self, ident: str) -> dict[str, Any]:
        """One, and where it has operations that are not applied yet. Raises TransactionNotFoundError."""
        return await _there(self._transactions).get(ident)

    async def abort_transaction(self, ident: str) -> None:
        """Abort it. Raises TransactionNotFoundError, TransactionConflictError when it was committed."""
        await _there(self._transactions).abort(ident)

    # -- namespaces ------------------------------------------------------------------------------------------------

    async def get_namespace_policies(self, namespace: str) -> dict[str, Any]:
        """The policies in effect, by snake_case name."""
        policies = await self._service.find_namespace_policies(namespace)
        return (policies or _policies_of(self._config)).to_mapping()

    async def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Replace the policies; what is not named has its default."""
        await self._service.set_namespace_policies(namespace, NamespacePolicies.of(policies))

    async def remove_namespace_policies(self, namespace: str) -> None:
        """Go back to the broker's defaults."""
        await self._service.set_namespace_policies(namespace, None)

    # -- auto-scale: by snake_case name, only what is overridden ---------------------------------------------------

    async def set_auto_scale_policy(self, topic: str, policy: Mapping[str, Any]) -> None:
        """Replace what a topic overrides; it counts at once. Raises NotFoundError."""
        await self._led("set_auto_scale_policy", topic, policy=AutoScalePolicyOverride.of(policy).to_mapping())

    async def get_auto_scale_policy(self, topic: str) -> dict[str, Any]:
        """What a topic overrides. Raises NotFoundError."""
        return _mapping(await self._service.scaling.get_policy(topic))

    async def remove_auto_scale_policy(self, topic: str) -> None:
        """Let a topic override nothing. Raises NotFoundError."""
        await self._led("set_auto_scale_policy", topic, policy={})

    async def set_namespace_auto_scale_policy(self, namespace: str, policy: Mapping[str, Any]) -> None:
        """Replace what a namespace overrides for its topics."""
        await self._service.scaling.set_namespace_policy(namespace, AutoScalePolicyOverride.of(policy))

    async def get_namespace_auto_scale_policy(self, namespace: str) -> dict[str, Any]:
        """What a namespace overrides."""
        return _mapping(await self._service.scaling.get_namespace_policy(namespace))

    async def remove_namespace_auto_scale_policy(self, namespace: str) -> None:
        """Let a namespace override nothing."""
        await self._service.scaling.set_namespace_policy(namespace, None)

    # -- brokers ---------------------------------------------------------------------------------------------------

    async def get_metrics(self) -> str:
        """This broker's, as Prometheus text."""
        return await _there(self._metrics)()

    async def get_dynamic_configuration(self) -> dict[str, Any]:
        """What was set at run time."""
        return _there(self._dynamic).values()

    async def get_runtime_configuration(self) -> dict[str, Any]:
        """What is in effect on this broker, of all that may be set at run time."""
        return _there(self._dynamic).runtime()

    async def set_dynamic_configuration(self, name: str, value: str | float) -> None:
        """For all brokers. Raises InvalidArgumentError (no such name), InvalidConfigurationError (value)."""
        await _there(self._dynamic).set(name, value)

    async def remove_dynamic_configuration(self, name: str) -> None:
        """Back to what each broker was started with. Raises InvalidArgumentError (no such name)."""
        await _there(self._dynamic).unset(name)

    async def close(self) -> None:
        """Nothing is held."""


def _policies_of(config: BrokerConfig) -> NamespacePolicies:
    """What holds where a namespace has none."""
    time_s = FOR_EVER if config.retention_time is None else int(config.retention_time)
    return NamespacePolicies(time_s, config.retention_size, config.durability)


def _there(part: T | None) -> T:
    if part is None:
        raise UnsupportedError("only a broker can say that")
    return part


def _mapping(override: AutoScalePolicyOverride | None) -> dict[str, Any]:
    return {} if override is None else override.to_mapping()
