"""Transaction metrics of this broker (PIP-473 "Metrics")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.aio.histogram import HistogramStatistics
from engine.broker.delivery.opened import subscriptions_of
from engine.broker.metrics.exposition import AnyFamily, counter, gauge, histogram

if TYPE_CHECKING:
    from engine.broker.metrics.ports import Observed


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """Counts since this broker started; `followed` and `operation_records` are present values."""

    begun: int
    committed: int
    aborted: int
    timed_out: int
    collected: int
    cas_ok: int
    cas_conflict: int
    cas_reject: int
    operation_writes: int
    operation_records: int
    followed: int
    index_query_s: HistogramStatistics


def statistics(broker: Observed) -> TransactionStatistics:
    counted, operations = broker.transactions.coordinator.counters, broker.segments.operations
    return TransactionStatistics(
        begun=counted.begun,
        committed=counted.committed,
        aborted=counted.aborted,
        timed_out=counted.timed_out,
        collected=counted.collected,
        cas_ok=counted.cas_ok,
        cas_conflict=counted.cas_conflict,
        cas_reject=counted.cas_reject,
        operation_writes=operations.written,
        operation_records=_records(broker),
        followed=len(broker.segments.headers),
        index_query_s=operations.queries_s.statistics(),
    )


def _records(broker: Observed) -> int:
    """Operation records of this broker's segments that are not deleted yet."""
    found = 0
    for hosted in broker.segments:
        found += 0 if hosted.transactions is None else hosted.transactions.operation_records
        found += sum(subscription.pending.records for subscription in subscriptions_of(hosted).values())
    return found


def transaction_families(broker: Observed) -> Iterator[AnyFamily]:
    """The specification's names, with the coordinator counts that its earlier version defines."""
    now = statistics(broker)
    cas = {"ok": now.cas_ok, "conflict": now.cas_conflict, "reject": now.cas_reject}
    ended = {"committed": now.committed, "aborted": now.aborted, "timed_out": now.timed_out}
    yield counter(
        "txn_metadata_store_op_writes_total", "Operation records of transactions written.", now.operation_writes
    )
    yield counter(
        "txn_metadata_store_header_cas_total",
        "Decisions of transactions here: ok, conflict (retried), reject (already decided the other way).",
        [({"result": result}, count) for result, count in cas.items()],
    )
    yield histogram(
        "txn_metadata_store_index_query_seconds",
        "Queries for the operations of a segment, or of a subscription in it.",
        now.index_query_s,
    )
    yield gauge(
        "txn_metadata_store_outstanding_op_records",
        "Operation records of this broker's segments that are not applied and deleted yet.",
        now.operation_records,
    )
    yield gauge("txn_followed", "Transactions that take part in segments of this broker.", now.followed)
    yield counter("txn_created_total", "Transactions begun here.", now.begun)
    yield counter(
        "txn_ended_total", "Transactions decided here.", [({"outcome": name}, count) for name, count in ended.items()]
    )
    yield counter("txn_collected_total", "Headers of ended transactions that were deleted here.", now.collected)
