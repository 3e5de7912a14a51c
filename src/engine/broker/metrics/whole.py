"""Metrics of the broker as a whole: connections, latencies, load of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from engine.aio.semaphore import PoolStatistics
from engine.broker.metrics.attempts import attempt_families
from engine.broker.metrics.exposition import AnyFamily, Labels, counter, gauge, histogram
from engine.broker.metrics.health import unready

if TYPE_CHECKING:
    from engine.broker.metrics.ports import Observed
    from engine.broker.upkeep.backups import BackupStatistics
    from engine.metadata.etcd.statistics import EtcdStatistics
    from engine.metadata.sqlite import MetadataStatistics
    from engine.storage.objects.ports import ObjectStatistics


def whole_families(broker: Observed) -> Iterator[AnyFamily]:
    """Counted since the broker was started."""
    info = {"broker": broker.service_url, "cluster": broker.config.cluster_name}
    yield gauge("broker_info", "1; labels identify the broker", [(info, 1)])
    yield gauge("broker_ready", "1: /ready answers 200", not unready(broker))
    yield from _connected(broker)
    yield from _times(broker)
    yield from backup_families(broker.parts.backups.statistics())
    yield from metadata_families(broker.metadata_statistics())
    yield from _etcd_families(broker.etcd_statistics())
    yield from _object_families(broker.object_statistics())


def _connected(broker: Observed) -> Iterator[AnyFamily]:
    hosted, metrics = list(broker.segments), broker.metrics
    yield gauge("connections", "Connections open now", len(broker.connections))
    yield counter("connections_accepted_total", "Connections accepted", metrics.accepted)
    yield counter("connections_refused_total", "Connections refused above connections_max", metrics.refused)
    yield from attempt_families("", broker.doors, broker.rights.denials)
    yield gauge("producers", "Producers attached to segments", sum(len(h.producers) for h in hosted))
    yield gauge("consumers", "Consumers attached to segments", sum(1 for h in hosted for _ in h.consumers))
    yield gauge("segments_open", "Segments open now", len(hosted))
    inventory = broker.segments.inventory
    known = len(inventory) + sum(1 for h in hosted if inventory.get(h.name) is None)
    yield gauge("segments", "Segments that this broker answers for, open or not", known)
    text = "Topics that are still to be looked at: until it is 0, closed segments may be missing"
    yield gauge("topics_unmeasured", text, broker.stocktaking.waiting)
    yield gauge("publish_bytes_in_flight", "Received, not durable yet", broker.memory.in_flight)
    yield gauge("publish_bytes_limit", "Above it, reading from publishing connections pauses", broker.memory.limit)


def _times(broker: Observed) -> Iterator[AnyFamily]:
    metrics, stored = broker.metrics, broker.store.statistics()
    lag = broker.loop_lag.histogram.statistics()
    published, delivered = metrics.publish_to_durable_s.statistics(), metrics.durable_to_delivered_s.statistics()
    yield histogram("publish_to_durable_seconds", "From a SEND to the durability of its messages", published)
    yield histogram(
        "durable_to_delivered_seconds",
        "From durability until a block is sent to a consumer",
        delivered,
    )
    yield histogram("storage_sync_seconds", "A write with its sync, including the thread hand-over", stored.sync_s)
    yield histogram("storage_commit_size_bytes", "Bytes of one group commit", stored.commit_bytes)
    yield histogram("storage_commit_appends", "Appends of one group commit", stored.commit_appends)
    yield counter("storage_torn_tails_total", "Torn tails cut off when segments were opened", stored.torn_tails)
    yield counter("storage_torn_bytes_total", "Bytes in them", stored.torn_bytes)
    text = "Segments that cannot be served: their files are damaged or missing"
    yield gauge("storage_damaged_segments", text, len(broker.segments.damaged))
    text = "Times that a log continued above skipped offsets, whose messages may be lost"
    yield counter("storage_gaps_total", text, stored.gaps)
    yield histogram("event_loop_lag_seconds", "How late the event loop calls back", lag)
    text = "Bytes of log files that are counted as in the system's page cache; 0 without log_cache_size"
    yield gauge("storage_log_cache_bytes", text, stored.log_cache_bytes)
    text = "Bytes of log files dropped from the page cache, to keep log_cache_size"
    yield counter("storage_log_cache_dropped_bytes_total", text, stored.log_cache_dropped_bytes)
    yield gauge("storage_open_files", "Log files that are kept open", stored.open_files)


def backup_families(now: BackupStatistics) -> Iterator[AnyFamily]:
    """Of the process that has the backups."""
    yield gauge("backups", "Backups for which files are kept now", now.under_way)
    yield counter("backups_finished_total", "Backups that were completed", now.finished)
    text = "When the last backup since the start was completed, seconds since 1970; no sample before"
    yield gauge("backup_finished_timestamp_seconds", text, [({}, now.last_ms / 1000)] if now.last_ms else [])


def metadata_families(now: MetadataStatistics | None) -> Iterator[AnyFamily]:
    """Of the metadata store of this process; None: there is none."""
    found: list[tuple[Labels, MetadataStatistics]] = [] if now is None else [({}, now)]
    yield histogram("metadata_commit_seconds", "A commit of metadata.db", [(labels, s.commit_s) for labels, s in found])
    yield counter("metadata_commits_total", "Commits", [(labels, s.commits) for labels, s in found])
    yield counter(
        "metadata_writes_total", "Writes, of which a commit has many", [(labels, s.writes) for labels, s in found]
    )
    yield counter(
        "metadata_conflicts_total", "Writes whose condition failed", [(labels, s.conflicts) for labels, s in found]
    )
    yield gauge("metadata_records", "Records in the store", [(labels, s.records) for labels, s in found])


def _etcd_families(now: EtcdStatistics | None) -> Iterator[AnyFamily]:
    """Of the metadata store in etcd; None: there is none, and the families are empty."""
    none: Labels = {}

    def told(of: Callable[[EtcdStatistics], float]) -> list[tuple[Labels, float]]:
        return [] if now is None else [(none, of(now))]

    took = [] if now is None else [(none, now.transaction_s)]
    yield histogram("etcd_transaction_seconds", "A transaction, until it is answered", took)
    yield counter("etcd_transactions_total", "Transactions, each of many writes", told(lambda s: s.transactions))
    yield counter("etcd_writes_total", "Writes", told(lambda s: s.writes))
    yield counter("etcd_conflicts_total", "Writes whose condition failed", told(lambda s: s.conflicts))
    yield counter("etcd_retries_total", "Writes that another client's came before", told(lambda s: s.refused))
    yield counter("etcd_unknown_total", "Transactions whose outcome was not known in time", told(lambda s: s.unknown))
    yield counter("etcd_full_total", "Calls refused for want of space (NOSPACE)", told(lambda s: s.full))
    text = "Times that new certificates for it could not be used"
    yield counter("etcd_certificates_unusable_total", text, told(lambda s: s.unusable))
    yield gauge("etcd_watches", "Watches that are open", told(lambda s: s.watches))
    yield counter("etcd_watch_streams_total", "Streams of watches that were opened", told(lambda s: s.watch_streams))
    yield counter("etcd_watch_restarts_total", "Watches that began anew", told(lambda s: s.watch_restarts))


def _object_families(now: ObjectStatistics | None) -> Iterator[AnyFamily]:
    """Of the object store; None: there is none, and the families are empty."""
    none: Labels = {}
    sent: list[tuple[Labels, float]] = []
    failed: list[tuple[Labels, float]] = []
    if now is not None:
        sent = [({"kind": kind}, count) for kind, count in now.requests.items()]
        failed = [({"kind": kind}, count) for kind, count in now.failures.items()]
    slow: list[tuple[Labels, float]] = [] if now is None else [(none, now.slow_downs)]
    yield counter("object_requests_total", "Requests to the object store", sent)
    yield counter("object_failures_total", "Requests that were answered with an error, or not at all", failed)
    yield counter("object_slow_downs_total", "Answers 429, 503 and SlowDown", slow)


def pools(broker: Observed) -> list[PoolStatistics]:
    stored, connected = broker.store.statistics(), len(broker.connections)
    http = broker.http_connections()
    return [
        *broker.memory.pools(),
        PoolStatistics("read_cache", "bytes", stored.cache_bytes, stored.cache_limit),
        PoolStatistics("connections", "connections", connected, broker.config.connections_max),
        *([] if http is None else [http]),
    ]
