"""`ScalableTopicService`: the control plane of one broker, and its only entrance (PIP-468)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from engine.aio.memory_limiter import AsyncDualMemoryLimiter
from engine.aio.pace import Pace
from engine.aio.tasks import Supervisor
from engine.clock import Clock
from engine.control.auto_scaler import AutoScaling
from engine.control.base.brokers import Brokers
from engine.control.base.config import ControlConfig
from engine.control.base.ports import (
    ConsumerChannel,
    SegmentHost,
    SegmentSpec,
    TopicListener,
    TopicView,
    TopicWatch,
    segment_spec,
)
from engine.control.base.topic_records import (
    LeaderRecord,
    ScalableTopicResources,
    TopicRecord,
    check_new_properties,
    classic_facts,
)
from engine.control.topic.registry import Controllers
from engine.control.topic.watches import TopicWatches
from engine.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, UnsupportedError
from engine.metadata.store import ABSENT, ConflictError, MetadataStore
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.layout import SegmentLayout, check_properties
from engine.model.names import SegmentName, TopicName, check_name, check_new_name, parse_namespace
from engine.model.policies import NOTHING_SAID, NamespacePolicies, TopicPolicies, resolved
from engine.model.subscriptions import (
    ConsumerAssignment,
    InitialPosition,
    SubscriptionKind,
    SubscriptionMetadata,
    SubscriptionState,
)

if TYPE_CHECKING:
    from engine.control.base.quotas import LimitsOf
    from engine.control.schemas import TopicSchemas
    from engine.control.segment_admin import SegmentAdmin
    from engine.control.shape.shape import Plan
    from engine.control.topic.topic_lists import TopicLists

_CREATE_ATTEMPTS_MAX = 5


class ScalableTopicService:
    """Loop thread only. Topics are given as text or TopicName; every method may raise InvalidArgumentError.

    A method that only the leader can run makes this broker the leader when there is none, and raises NotOwnerError,
    naming the leader, when another broker leads.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        host: SegmentHost,
        *,
        clock: Clock,
        broker_url: str,
        config: ControlConfig | None = None,
        brokers: Brokers | None = None,
        list_pace: Pace | None = None,
        list_memory: AsyncDualMemoryLimiter | None = None,
        shared: bool = False,
    ) -> None:
        """`brokers`: provides the session of the leaderships; without it they have one of their own. `shared`: other
        brokers may use the metadata store, so that only topics which are served here are followed.

        `list_pace`, `list_memory`: see TopicLists.
        """
        self.config = config or ControlConfig()
        self._host = host
        self._clock = clock
        self._broker_url = broker_url
        self._resources = ScalableTopicResources(metadata)
        self._tasks = Supervisor("control")
        self._controllers = Controllers(
            self._resources,
            host,
            clock=clock,
            config=self.config,
            broker_url=broker_url,
            tasks=self._tasks,
            brokers=brokers,
        )
        self.statistics = self._controllers.statistics
        self._list_limits = list_pace, list_memory
        self.scaling = AutoScaling(self._controllers, self._resources, self.config, self._tasks)
        self._watches = TopicWatches(
            self._resources,
            broker_url,
            led=self._controllers.keys,
            topic_seen=self._controllers.topic_seen,
            leader_seen=self._leader_seen,
            leaders_shown=self._controllers.resumption.search,
            selects=shared,
        )
        self.topic_created: Callable[[TopicName], object] = lambda topic: None  # by this broker
        self._controllers.made, self._controllers.dropped = self._watches.follow, self._watches.leave
        if shared and brokers is not None:  # of most topics nothing is heard when the broker that led them is gone
            brokers.changed.append(self._controllers.resumption.search)

    def go_by(self, limits_of: LimitsOf) -> None:
        """Refuse topics, subscriptions and schemas beyond the limits of their tenants from now on."""
        self._resources.limits_of = limits_of

    @cached_property
    def schemas(self) -> TopicSchemas:
        """The schemas of topics."""
        from engine.control.schemas import TopicSchemas  # with the first topic that has one

        return TopicSchemas(self._resources)

    @cached_property
    def topic_lists(self) -> TopicLists:
        """The topics of namespaces, as clients follow them."""
        from engine.control.topic.topic_lists import TopicLists

        return TopicLists(self._resources, *self._list_limits)

    @cached_property
    def segments(self) -> SegmentAdmin:
        """Operators' access to single segments."""
        from engine.control.segment_admin import SegmentAdmin

        return SegmentAdmin(self._controllers, self._resources, self._host)

    async def start(self) -> None:
        """Begin to follow the metadata store, and resume pending changes."""
        self._watches.start()
        self._controllers.resumption.search()
        self.scaling.start()

    async def close(self) -> None:
        """Resign all leaderships; consumers' channels get AlreadyClosedError, their sessions stay. Idempotent."""
        await self._watches.close()
        if "topic_lists" in self.__dict__:
            await self.topic_lists.close()
        await self._controllers.close()
        await self._tasks.close()

    # Leaderships.

    def led(self) -> list[TopicName]:
        """The topics that this broker leads."""
        return [controller.topic for controller in self._controllers.led()]

    async def lead(self, topic: str | TopicName) -> None:
        """Become the topic's leader, if there is none. Raises NotOwnerError, NotFoundError."""
        await self._controllers.lead(TopicName.parse(topic))

    async def resign(self, topic: TopicName) -> None:
        """Stop leading it, after the change under way; its consumers look for the next leader. Idempotent."""
        await self._controllers.release(topic)

    # Topics.

    async def create_topic(
        self,
        topic: str | TopicName,
        *,
        segments: int | None = None,
        properties: Mapping[str, str] | None = None,
        key_hash: str | None = None,
        durability: str | None = None,
        entry_buckets: int | None = None,
        auto_scale: Mapping[str, Any] | None = None,
    ) -> TopicView:
        """Create a topic; None takes the namespace's or the broker's default. Only its record is written:
        owners create segments on first use. Raises AlreadyExistsError, InvalidArgumentError, UnsupportedError.
        """
        name = TopicName.parse(topic)
        if not self.config.new_topics:
            raise UnsupportedError(f"{name} is not created: this broker creates no topics (scalable_topic_enabled)")
        await self._resources.check_new_topic(name, properties or {})
        if (limits := await self._resources.limits_of(name.tenant)) is not None:
            from engine.control.base.quotas import check_topics

            await check_topics(limits, self._resources, name)
        policies = await self.get_namespace_policies(f"{name.tenant}/{name.namespace}")
        config = self.config
        config.check_durability(chosen := durability or policies.durability or config.durability)
        if name.classic:
            segments, key_hash, entry_buckets, auto_scale = classic_facts(name, segments, key_hash, entry_buckets)
        layout = SegmentLayout.create(
            config.segments if segments is None else segments,
            now_ms=self._clock.time_ms(),
            buckets_total=config.entry_buckets if entry_buckets is None else entry_buckets,
            key_hash=config.key_hash if key_hash is None else key_hash,
            durability=chosen,
            properties=properties,
            auto_scale_policy=None if auto_scale is None else AutoScalePolicyOverride.of(auto_scale),
        )
        for _ in range(_CREATE_ATTEMPTS_MAX):
            try:
                await self._resources.save_topic(name, layout, ABSENT)
                self.topic_created(name)
                return TopicView(name, layout, self._broker_url)
            except ConflictError:
                if await self._find(name) is not None:
                    raise AlreadyExistsError(f"{name} exists already") from None
                await self._controllers.finish_change(name)
        raise AlreadyExistsError(f"{name} is being deleted; try again")

    async def ensure_topic(
        self, topic: str | TopicName, *, create: bool = True, key_hash: str | None = None
    ) -> TopicView:
        """The topic's view. A missing topic is created with the defaults if `create` is true and the broker allows it;
        with that `key_hash`, if one is given.

        Raises NotFoundError, and what create_topic() raises.
        """
        name = TopicName.parse(topic)
        record = await self._find(name)
        if record is None:
            if not (create and await self._auto_creates(name)):
                raise NotFoundError(f"{name} does not exist")
            try:
                return await self.create_topic(name, key_hash=key_hash)
            except AlreadyExistsError:
                record = await self._load(name)
        leader = await self._resources.load_leader(name)
        return TopicView(name, record.layout, self._broker_url if leader is None else leader.url)

    async def _auto_creates(self, topic: TopicName) -> bool:
        said = (await self.get_namespace_policies(f"{topic.tenant}/{topic.namespace}")).auto_create_topics
        return self.config.auto_create_topics if said is None else said

    async def delete_topic(self, topic: str | TopicName) -> None:
        """Delete a topic with its segments and subscriptions, or complete its deletion.

        Raises NotFoundError, NotOwnerError; after another error the topic counts as deleted, and is cleaned up later.
        """
        name = TopicName.parse(topic)
        controller = await self._controllers.lead(name)
        try:
            await controller.delete()
        finally:
            await self._controllers.release(name)

    async def list_topics(self, namespace: str, properties: Mapping[str, str] | None = None) -> list[str]:
        """The names "topic://…" of a "tenant/namespace", sorted; only those that have all these properties."""
        from engine.control.topic.topic_lists import list_topics

        return await list_topics(self._resources, namespace, properties)

    @property
    def controllers(self) -> Controllers:
        """The topic controllers of this broker."""
        return self._controllers

    async def list_namespaces(self) -> list[str]:
        """Every "tenant/namespace" with a topic, or with policies of its own, sorted."""
        return await self._resources.list_namespaces()

    def topic_pages(self) -> AsyncIterator[list[TopicName]]:
        """The topics of all namespaces, in pages."""
        return self._resources.topic_pages()

    async def get_metadata(self, topic: str | TopicName) -> dict[str, Any]:
        """The specification's ScalableTopicMetadata. Raises NotFoundError."""
        return (await self._load(TopicName.parse(topic))).layout.to_metadata()

    async def get_stats(self, topic: str | TopicName) -> dict[str, Any]:
        """Counts, rates, backlogs, consumers (`stats.topic_stats`; by name only on the leader). NotFoundError."""
        from engine.control.topic.stats import groups_of, shown_limits, topic_stats, with_scaling

        name = TopicName.parse(topic)
        layout = (await self._load(name)).layout
        subscriptions = await self._resources.list_subscriptions(name)
        controller = self._controllers.get(name)

        def consumers(subscription: str) -> Mapping[str, tuple[bool, tuple[int, ...]]]:
            return {} if controller is None else controller.consumers(subscription)

        if controller is None:
            groups = groups_of((group, facts) for group, facts, _ in await self._resources.list_consumers(name))
        else:
            groups = controller.groups()
        stats = await topic_stats(name, layout, subscriptions, consumers, groups, self._host)
        stats["limits"] = await shown_limits(self._resources, name, layout.policies)
        return with_scaling(stats, await self.scaling.status(name), self._clock.time_ms())

    async def get_segment_stats(self, name: SegmentName) -> dict[str, Any]:
        """One segment's numbers (`stats.segment_stats`). Raises NotFoundError, and what its owner raises."""
        from engine.control.topic.stats import segment_stats, with_load

        layout = (await self._load(name.topic)).layout
        info = layout.segments.get(name.segment_id)
        if info is None or info.hash_range != name.hash_range:
            raise NotFoundError(f"{name} is not in the layout of epoch {layout.epoch}")
        stats = await segment_stats(segment_spec(name.topic, layout, info), info, self._host)
        return with_load(stats, await self.scaling.status(name.topic), name.segment_id, self._clock.time_ms())

    async def segment_spec(self, topic: str | TopicName, segment_id: int) -> SegmentSpec:
        """The facts that a host needs to open a segment of the present layout. Raises NotFoundError."""
        name = TopicName.parse(topic)
        record = self._watches.cached(name)
        if record is None or segment_id not in record.layout.segments:
            record = await self._load(name)
        return segment_spec(name, record.layout, record.layout.segment(segment_id))

    async def watch_topic(self, topic: str | TopicName, listener: TopicListener, *, create: bool = False) -> TopicWatch:
        """Watch a topic: `view` is the first view, the listener gets newer ones.

        Creates a missing topic as ensure_topic does. Raises NotFoundError.
        """
        name = TopicName.parse(topic)
        try:
            return await self._watches.watch(name, listener)
        except NotFoundError:
            await self.ensure_topic(name, create=create)
        return await self._watches.watch(name, listener)

    # Its shape (PIP-468 "Split Protocol", "Merge Protocol"). All raise NotFoundError (topic), NotOwnerError.

    async def split_segment(self, topic: str | TopicName, segment_id: int) -> TopicView:
        """Split an active segment into two, each with half its range. Raises InvalidArgumentError: nothing was changed.

        After another error the topic is as it was before, or the change is completed as soon as possible; calling again
        is safe in both cases.
        """
        from engine.model.reshape import plan_split

        return await self._reshape(topic, lambda layout: plan_split(layout, segment_id))

    async def merge_segments(self, topic: str | TopicName, first_id: int, second_id: int) -> TopicView:
        """Merge two neighbours into one, which has the subscriptions of both, and the sum of their buckets: at most
        `max_buckets` of the policy, or as many as one of them has. Raises as split_segment() does.
        """
        from engine.model.reshape import plan_merge

        most = (await self.scaling.effective(TopicName.parse(topic))).max_buckets
        return await self._reshape(topic, lambda layout: plan_merge(layout, first_id, second_id, most))

    async def rebucket_segment(self, topic: str | TopicName, segment_id: int, buckets: int) -> TopicView:
        """Replace an active segment by one with other entry buckets. Raises as split_segment() does."""
        from engine.model.reshape import plan_rebucket

        return await self._reshape(topic, lambda layout: plan_rebucket(layout, segment_id, buckets))

    async def _reshape(self, topic: str | TopicName, plan: Plan) -> TopicView:
        name = TopicName.parse(topic)
        if name.classic:
            raise InvalidArgumentError(f"{name} has one segment with one bucket for ever: it cannot be reshaped")
        controller = await self._controllers.lead(name)
        return TopicView(name, await controller.reshape(plan), self._broker_url)

    async def prune_segment(self, topic: str | TopicName, segment_id: int) -> bool:
        """Remove a sealed segment from the layout and delete it; its owner has checked its retention.

        False: not now; it is unknown, has parents left, or a subscription has a backlog in it. Raises
        InvalidArgumentError when it is active.
        """
        return await (await self._controllers.lead(TopicName.parse(topic))).prune(segment_id)

    # Subscriptions.

    async def create_subscription(
        self,
        topic: str | TopicName,
        subscription: str,
        *,
        initial_position: InitialPosition | str = InitialPosition.LATEST,
        kind: SubscriptionKind | str | None = None,
    ) -> SubscriptionMetadata:
        """Create a durable cursor in every active segment. Raises AlreadyExistsError, NotFoundError, NotOwnerError."""
        return await self._create_subscription(topic, subscription, initial_position, kind, exist_ok=False)

    async def ensure_subscription(
        self,
        topic: str | TopicName,
        subscription: str,
        *,
        initial_position: InitialPosition | str = InitialPosition.LATEST,
        kind: SubscriptionKind | str | None = None,
        created_ms: int | None = None,
    ) -> SubscriptionMetadata:
        """The subscription, created if missing; with `created_ms`, only the one created at that time.

        Raises NotFoundError, SubscriptionNotFoundError, NotOwnerError when it must be created and another broker leads.
        """
        from engine.control.subscription.subscriptions import find_subscription

        name = TopicName.parse(topic)
        found = await find_subscription(self._resources, name, check_name(subscription, "subscription"), created_ms)
        if found is None:
            return await self._create_subscription(name, subscription, initial_position, kind, exist_ok=True)
        undecided, position = InitialPosition.UNDECIDED, InitialPosition.parse(initial_position)
        if found.initial_position is undecided and position is not undecided:
            return await (await self._controllers.lead(name)).decide_position(subscription, position)
        return found

    async def _create_subscription(
        self,
        topic: str | TopicName,
        subscription: str,
        initial_position: InitialPosition | str,
        kind: SubscriptionKind | str | None,
        *,
        exist_ok: bool,
    ) -> SubscriptionMetadata:
        check_new_name(subscription, "subscription")
        position = InitialPosition.parse(initial_position)
        reader = None if kind is None else SubscriptionKind.parse(kind)
        if reader is SubscriptionKind.CHECKPOINT:
            raise InvalidArgumentError(
                "kind must be 'stream' or 'queue', got 'checkpoint': checkpoint groups have no subscription"
            )
        controller = await self._controllers.lead(TopicName.parse(topic))
        return await controller.create_subscription(subscription, position, reader, exist_ok=exist_ok)

    async def delete_subscription(self, topic: str | TopicName, subscription: str) -> None:
        """Delete its cursors in every segment; its consumers are told. Raises NotFoundError, NotOwnerError."""
        controller = await self._controllers.lead(TopicName.parse(topic))
        await controller.delete_subscription(check_name(subscription, "subscription"))

    async def list_subscriptions(self, topic: str | TopicName) -> list[SubscriptionMetadata]:
        """The usable subscriptions, by name. Raises NotFoundError (topic)."""
        name = TopicName.parse(topic)
        await self._load(name)
        return [f for f in await self._resources.list_subscriptions(name) if f.state is SubscriptionState.ACTIVE]

    async def seek_subscription(
        self, topic: str | TopicName, subscription: str, when: InitialPosition | str | int
    ) -> None:
        """Move all cursors to "earliest", "latest" or a wall-clock time in ms (semantics 38). Raises NotFoundError."""
        position = when if type(when) is int else InitialPosition.parse(str(when))
        if position is InitialPosition.UNDECIDED:
            raise InvalidArgumentError("when must be earliest, latest or milliseconds, got 'undecided'")
        controller = await self._controllers.lead(TopicName.parse(topic))
        await controller.seek_subscription(check_name(subscription, "subscription"), position)

    async def clear_backlog(self, topic: str | TopicName, subscription: str) -> None:
        """Acknowledge all messages. Raises NotFoundError, NotOwnerError."""
        await self.seek_subscription(topic, subscription, InitialPosition.LATEST)

    async def skip_messages(self, topic: TopicName, subscription: str, segment_id: int, first: int, last: int) -> None:
        """Acknowledge a range of one segment. Raises NotFoundError, InvalidArgumentError."""
        name, controller = check_name(subscription, "subscription"), await self._controllers.lead(topic)
        await controller.skip_messages(name, segment_id, first, last)

    # Consumers: SCALABLE_TOPIC_SUBSCRIBE, SCALABLE_TOPIC_UNSUBSCRIBE, and a lost connection.

    async def register_consumer(
        self,
        topic: str | TopicName,
        subscription: str,
        consumer_name: str,
        *,
        instance: str,
        channel: ConsumerChannel,
        kind: SubscriptionKind | str = SubscriptionKind.STREAM,
        initial_position: InitialPosition | str = InitialPosition.LATEST,
        created_ms: int | None = None,
    ) -> ConsumerAssignment:
        """Register a consumer, or resume its session; its share. The subscription is found as by ensure_subscription().

        The caller answers the client before it yields to the loop, so that no push overtakes the answer.
        Raises NotFoundError (topic), SubscriptionNotFoundError, NotOwnerError, ConsumerBusyError.
        """
        check_new_name(consumer_name, "consumer", pattern=False)
        reader, name = SubscriptionKind.parse(kind), TopicName.parse(topic)
        if reader is SubscriptionKind.QUEUE:
            raise InvalidArgumentError("kind must be 'stream' or 'checkpoint': queue consumers are not registered")

        async def ensure() -> SubscriptionMetadata:
            more: dict[str, Any] = {"kind": reader, "created_ms": created_ms}
            return await self.ensure_subscription(name, subscription, initial_position=initial_position, **more)

        check_name(subscription, "subscription")
        find = ensure if reader is SubscriptionKind.STREAM else None
        controller = await self._controllers.lead(name)
        return await controller.register_consumer(subscription, reader, consumer_name, instance, channel, find)

    async def unregister_consumer(
        self, topic: str | TopicName, subscription: str, consumer_name: str, *, instance: str
    ) -> bool:
        """Leave, durably; False when another instance has the name, or none (semantics 13)."""
        controller = await self._controllers.lead(TopicName.parse(topic))
        return await controller.unregister_consumer(subscription, consumer_name, instance)

    async def assigned_segments(self, topic: TopicName, subscription: str, consumer_name: str) -> frozenset[int]:
        """The segments of a consumer's share as it was last recorded; none for one that is not registered."""
        found = await self._resources.load_consumer(topic, subscription, consumer_name)
        return frozenset(() if found is None else found.segment_ids)

    def disconnect_consumer(
        self, topic: str | TopicName, subscription: str, consumer_name: str, *, channel: ConsumerChannel
    ) -> None:
        """The connection of the consumer registered with `channel` was lost: its grace period begins."""
        controller = self._controllers.get(TopicName.parse(topic))
        if controller is not None:
            controller.disconnect_consumer(subscription, consumer_name, channel)

    # Namespaces.

    async def get_namespace_policies(self, namespace: str) -> NamespacePolicies:
        """The policies of a "tenant/namespace", or the defaults."""
        return await self.find_namespace_policies(namespace) or NamespacePolicies()

    async def find_namespace_policies(self, namespace: str) -> NamespacePolicies | None:
        """The policies set for a "tenant/namespace"; None: the broker's configuration applies."""
        return await self._resources.load_policies(*parse_namespace(namespace))

    async def create_namespace(self, namespace: str) -> None:
        """Raises AlreadyExistsError: it has a topic, policies, or was created; InvalidArgumentError."""
        tenant, name = parse_namespace(namespace)
        check_new_name(tenant, "tenant")
        check_new_name(name, "namespace")
        if namespace in await self.list_namespaces():
            raise AlreadyExistsError(f"the namespace {namespace} exists")
        await self._resources.create_namespace(tenant, name, self._clock.time_ms())

    async def delete_namespace(self, namespace: str) -> None:
        """With its policies. Raises NotFoundError, InvalidArgumentError (it has topics)."""
        tenant, name = parse_namespace(namespace)
        if namespace not in await self.list_namespaces():
            raise NotFoundError(f"the namespace {namespace} does not exist")
        if topics := await self._resources.list_topics(tenant, name):
            raise InvalidArgumentError(f"the namespace must have no topics, got {len(topics)}")
        await self._resources.delete_namespace(tenant, name)

    async def set_namespace_policies(self, namespace: str, policies: NamespacePolicies | None) -> None:
        """Replace the policies; None: the broker's configuration applies."""
        replaced = policies or NamespacePolicies()
        self.config.check_durability(replaced.durability)
        await self._resources.change_policies(*parse_namespace(namespace), lambda _: replaced)

    async def change_namespace_policies(self, namespace: str, values: Mapping[str, Any]) -> None:
        """Change these policies, None to say nothing; others stay. Raises InvalidArgumentError."""
        self.config.check_durability(NamespacePolicies.of(values).durability)
        await self._resources.change_policies(*parse_namespace(namespace), lambda now: now.changed(values))

    async def find_topic_policies(self, topic: str | TopicName) -> TopicPolicies:
        """What the topic says itself. Raises NotFoundError."""
        found = await self._resources.load_topic_policies(TopicName.parse(topic))
        if found is None:
            raise NotFoundError(f"{topic} does not exist")
        return found

    async def policies_above(self, tenant: str) -> TopicPolicies:
        """What the tenant, or else the cluster, says where no policy does."""
        return NOTHING_SAID if (found := await self._resources.limits_of(tenant)) is None else found.of_messages(tenant)

    async def policies_said(self, topic: TopicName) -> dict[str, Any]:
        """What the topic, or else its namespace, says of its messages, field by field."""
        own = await self._resources.load_topic_policies(topic) or NOTHING_SAID
        return resolved(own, await self.get_namespace_policies(f"{topic.tenant}/{topic.namespace}"))

    async def change_topic_policies(self, topic: str | TopicName, values: Mapping[str, Any] | None) -> None:
        """Change these policies, None to say nothing; others stay. `values` None: say nothing at all.

        Raises NotFoundError, NotOwnerError, InvalidArgumentError.
        """
        TopicPolicies.of(values or {})
        controller = await self._controllers.lead(TopicName.parse(topic))
        await controller.rewrite(
            lambda now: replace(now, policies=NOTHING_SAID if values is None else now.policies.changed(values))
        )

    async def set_topic_properties(self, topic: str | TopicName, properties: Mapping[str, str]) -> None:
        """Replace the topic's properties. Raises NotFoundError, NotOwnerError, InvalidArgumentError."""
        check_new_properties(properties)
        check_properties(properties)
        facts = MappingProxyType(dict(properties))
        controller = await self._controllers.lead(TopicName.parse(topic))
        await controller.rewrite(lambda now: replace(now, properties=facts))

    # Helpers.

    async def _find(self, name: TopicName) -> TopicRecord | None:
        """The topic's record; None also while the topic is being deleted."""
        record = await self._resources.load_topic(name)
        return None if record is None or record.layout.deleting else record

    async def _load(self, name: TopicName) -> TopicRecord:
        record = await self._find(name)
        if record is None:
            raise NotFoundError(f"{name} does not exist")
        return record

    def _leader_seen(self, key: str, leader: LeaderRecord | None) -> None:
        self._controllers.leader_seen(key, leader)
        if leader is None:
            self._controllers.resumption.search()
