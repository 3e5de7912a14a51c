"""How a broker is assembled: bottom-up, each part with its dependencies; nothing starts here."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.broker.addresses import Addresses
from engine.broker.admin.administration import Administration
from engine.broker.admin.cluster_admin import ClusterAdmin
from engine.broker.admin.dynamic import DynamicConfig, FollowedLimits
from engine.broker.cluster.broker_calls import BrokerCalls
from engine.broker.cluster.handover import Handovers
from engine.broker.cluster.membership import Membership
from engine.broker.cluster.participants import Participants
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.open_subscriptions import OpenSubscriptions
from engine.broker.hosting.segment_host import SegmentHosting
from engine.broker.pools.pools import BrokerMemory
from engine.broker.segment.environment import Environment
from engine.broker.settings.config import BrokerConfig
from engine.broker.settings.current import CurrentConfig
from engine.broker.upkeep.backups import Backups
from engine.broker.upkeep.balancer import Balancer
from engine.broker.upkeep.cluster_parts import ClusterParts
from engine.broker.upkeep.draining import Draining
from engine.broker.upkeep.load_reporter import LoadReports
from engine.broker.upkeep.retention import RetentionLoop
from engine.broker.upkeep.stocktaking import Stocktaking
from engine.broker.upkeep.transaction_sweep import TransactionSweep
from engine.clock import Clock
from engine.control.base.config import ControlConfig
from engine.control.service import ScalableTopicService
from engine.metadata.store import Historied, MetadataStore
from engine.storage.disk.config import StorageConfig
from engine.storage.store import SegmentStore
from engine.wire.stream import Connector

if TYPE_CHECKING:
    from engine.broker.admin.service import AdminService
    from engine.broker.hosting.object_logs import ObjectLogs
    from engine.broker.metrics.ports import Observed
    from engine.broker.rights.audit import Audit
    from engine.broker.rights.rights import Rights
    from engine.broker.upkeep.objects import ObjectUpkeep
    from engine.control.transactions.coordinator import TransactionCoordinator

Loop = tuple[str, Callable[[], Coroutine[Any, Any, None]]]


@dataclass(frozen=True, slots=True)
class Foundation:
    """Dependencies made, or handed in, before the parts. `shared`: other brokers may use the metadata store."""

    store: SegmentStore
    metadata: MetadataStore
    shared: bool
    current: CurrentConfig
    addresses: Addresses
    memory: BrokerMemory
    clock: Clock
    connector: Connector | None
    environment: Environment
    objects: ObjectLogs | None
    grant_noted: Callable[[str, bytes | None], object]  # a grant was changed here
    rights: Callable[[], Rights]
    limits: FollowedLimits
    audit: Callable[[], Audit | None]  # the audit log, if there is one


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a broker on its foundation. `loops`: background loops by name; each runs until cancelled."""

    members: Membership
    segments: OpenSegments
    subscriptions: OpenSubscriptions
    hosting: SegmentHosting
    service: ScalableTopicService
    calls: BrokerCalls
    transactions: TransactionSweep
    dynamic: DynamicConfig
    admin: Administration
    cluster: ClusterParts
    loads: LoadReports
    retention: RetentionLoop
    stocktaking: Stocktaking
    backups: Backups
    loops: tuple[Loop, ...]


def build(base: Foundation, observed: Observed) -> Parts:
    """All parts. `observed`: read by the metrics page on request."""
    config = base.current.value
    members = _membership(base, config)
    segments, subscriptions = members.segments, members.subscriptions
    service = ScalableTopicService(
        base.metadata,
        members.host,
        clock=base.clock,
        broker_url=base.addresses.identity,
        config=control_config(config),
        brokers=members.brokers,
        list_pace=base.memory.list_pace,
        list_memory=base.memory.topic_lists,
        shared=base.shared,
    )
    loads = _load_reports(base, segments, service)
    cluster = _cluster(base, members, service, loads)
    operations = ClusterAdmin(cluster)
    dynamic = DynamicConfig(base.current, base.metadata)
    backups = Backups(base.store, base.metadata, base.clock, shared=base.shared)
    admin = Administration(
        lambda: _admin(base, observed, service, calls, dynamic, transactions, segments, operations, backups),
        base.audit,
    )
    calls = BrokerCalls(members, service, admin.leading, operations, base.metadata)
    coordinator = partial(_coordinator, base, config, Participants(service, members.transactions))
    transactions = TransactionSweep(coordinator, members.brokers, config.transaction_sweep_interval)
    retention = RetentionLoop(
        service, segments, subscriptions, config, base.clock, admin.prune_segment, admin.delete_topic
    )
    stocktaking = Stocktaking(segments, members.ownership, base.store, base.metadata, base.memory.list_pace)
    service.topic_created = stocktaking.topic_created
    segments.admit, segments.inventory.came = base.limits.ready, base.limits.follow
    service.go_by(base.limits.ready)
    loops: list[Loop] = [
        ("transactions", transactions.run),
        ("retention", retention.run),
        ("load reports", loads.run),
        ("stocktaking", stocktaking.run),
        ("backups", backups.run),
    ]
    if config.segment_idle_time is not None:
        from engine.broker.upkeep.idle import IdleLoop

        loops.append(("idle segments", IdleLoop(segments, config.segment_idle_time).run))
    return Parts(
        members=members,
        segments=segments,
        subscriptions=subscriptions,
        hosting=members.hosting,
        service=service,
        calls=calls,
        transactions=transactions,
        dynamic=dynamic,
        admin=admin,
        cluster=cluster,
        loads=loads,
        retention=retention,
        stocktaking=stocktaking,
        backups=backups,
        loops=(*loops, *_cluster_loops(base, cluster, loads)),
    )


def _admin(
    base: Foundation,
    observed: Observed,
    service: ScalableTopicService,
    calls: BrokerCalls,
    dynamic: DynamicConfig,
    transactions: TransactionSweep,
    segments: OpenSegments,
    cluster: ClusterAdmin,
    backups: Backups,
) -> AdminService:
    from engine.broker.admin.service import AdminService
    from engine.broker.admin.transaction_admin import TransactionAdmin
    from engine.broker.limits.records import LimitRecords
    from engine.broker.rights.records import RightsRecords

    return AdminService(
        service,
        base.current.value,
        calls.forward if base.shared else None,
        dynamic=dynamic,
        transactions=TransactionAdmin(transactions.coordinator, segments.operations),
        cluster=cluster,
        metrics=partial(_metrics_page, observed),
        rights=RightsRecords(base.metadata, service.list_namespaces, base.grant_noted, base.rights),
        limits=LimitRecords(base.metadata, base.limits.note),
        backups=backups,
    )


def _coordinator(base: Foundation, config: BrokerConfig, participants: Participants) -> TransactionCoordinator:
    from engine.control.transactions.coordinator import TransactionCoordinator  # with the first transaction, or sweep

    return TransactionCoordinator(
        base.metadata,
        base.clock,
        base.store.rng,  # ids that cannot be guessed
        participants.settle,
        retention_s=config.transaction_retention_time,
        named_retention_s=config.transaction_named_retention_time,
    )


def _load_reports(base: Foundation, segments: OpenSegments, service: ScalableTopicService) -> LoadReports:
    config = base.current.value
    return LoadReports(
        segments,
        base.metadata,
        interval=config.scalable_topic_load_report_interval,
        threshold=config.scalable_topic_load_report_rate_change_threshold,
        loaded=service.scaling.loaded,
        policy=service.scaling.effective,
    )


def _cluster(base: Foundation, members: Membership, service: ScalableTopicService, loads: LoadReports) -> ClusterParts:
    handovers = Handovers(members.segments, members.subscriptions, members.ownership, members.peers)
    draining = Draining(members, handovers, service, loads.stats)
    balancer = Balancer(members, handovers, base.metadata, lambda: base.current.value, draining.weight_of)
    return ClusterParts(
        members=members,
        service=service,
        metadata=base.metadata,
        handovers=handovers,
        draining=draining,
        balancer=balancer,
        objects=None if base.objects is None else _object_upkeep(base, base.objects, members, service, balancer),
    )


def _object_upkeep(
    base: Foundation, logs: ObjectLogs, members: Membership, service: ScalableTopicService, balancer: Balancer
) -> ObjectUpkeep:
    from engine.broker.upkeep.left_logs import LeftLogs
    from engine.broker.upkeep.objects import ObjectUpkeep

    brokers, age, spec = members.brokers, base.current.value.object_file_age, service.segment_spec
    return ObjectUpkeep(
        logs, members.segments, base.metadata, brokers, lambda: brokers.alone or balancer.leading, base.clock, age,
        spec, LeftLogs(brokers, spec, members.host.statistics),
    )  # fmt: skip


def _cluster_loops(base: Foundation, cluster: ClusterParts, loads: LoadReports) -> list[Loop]:
    """Only where other brokers may be."""
    if not base.shared:
        return []
    from engine.broker.upkeep.own_load import OwnLoad

    members, interval = cluster.members, base.current.value.scalable_topic_load_report_interval
    own = OwnLoad(members.brokers, members.segments, loads.stats, interval)
    loops: list[Loop] = [("own load", own.run), ("balance", cluster.balancer.run)]
    balancer, brokers = cluster.balancer, members.brokers

    def leads() -> bool:
        """Whether this broker does what one of the cluster does for all."""
        return brokers.alone or balancer.leading

    if cluster.objects is not None:
        loops.append(("objects", cluster.objects.run))
    if isinstance(base.metadata, Historied):
        from engine.broker.upkeep.history import HistoryLoop

        history = HistoryLoop(base.metadata, leads, base.clock)
        loops.append(("metadata history", history.run))
    if members.levels is not None:
        loops.append(("levels", partial(members.levels.run, leads)))
    return loops


def _membership(base: Foundation, config: BrokerConfig) -> Membership:
    return Membership(
        base.store,
        base.metadata,
        clock=base.clock,
        url=base.addresses.identity,
        admin_url=base.addresses.admin_url,
        session_timeout=config.session_timeout,
        token=config.token_to_brokers,
        connector=base.connector,
        shared=base.shared,
        loads=base.memory.topic_loads,
        environment=base.environment,
        objects=base.objects,
    )


def storage_config(config: BrokerConfig, *, shared: bool = False) -> StorageConfig:
    """Storage's part of the configuration. `shared`: the metadata store is not this process's own."""
    return StorageConfig(
        file_size_max=config.log_file_size,
        interval_ms=config.sync_interval_ms,
        cursor_save_ms=config.cursor_save_interval_ms if shared else 0,
        cache_bytes=config.read_cache_max,
        log_cache_bytes=config.log_cache_size,
        retention_ms=None if config.retention_time is None else int(config.retention_time * 1000),
        retention_bytes=config.retention_size,
    )


def control_config(config: BrokerConfig) -> ControlConfig:
    """Control's part of the configuration."""
    return ControlConfig(
        new_topics=config.scalable_topic_enabled,
        auto_create_topics=config.auto_create_topics,
        segments=config.segments,
        entry_buckets=config.entry_buckets,
        durability=config.durability,
        durabilities=("object",) if config.objects is not None else ("fsync", "interval", "os"),
        key_hash=config.key_hash,
        share_sealed=config.scalable_topic_sealed_segment_drain_enabled,
        grace_period=config.consumer_grace_period,
        auto_scale=config.auto_scale_policy(),
        auto_scale_interval=config.scalable_topic_auto_scale_interval,
    )


async def _metrics_page(observed: Observed) -> str:
    from engine.broker.metrics.catalogue import metrics_page  # loaded when it is first asked for

    return (await metrics_page(observed))[0]
