"""What a broker's page of metrics says of etcd and of the object store: each counter under its own name."""

from __future__ import annotations

from engine.aio.histogram import HistogramStatistics
from engine.broker.metrics.whole import _etcd_families, _object_families
from engine.metadata.etcd.statistics import EtcdStatistics
from engine.storage.objects.ports import ObjectStatistics


def test_each_counter_of_etcd_has_its_name() -> None:
    took = HistogramStatistics((0.1,), (2,), 3, 0.5)
    now = EtcdStatistics(
        writes=1, transactions=2, refused=3, conflicts=4, unknown=5, full=6, watches=7, watch_streams=8,
        watch_restarts=9, version=10, transaction_s=took, unusable=11,
    )  # fmt: skip
    values = {name: value for family in _etcd_families(now) for name, labels, value in family.rows() if not labels}
    assert values == {
        "engine_etcd_writes_total": 1, "engine_etcd_transactions_total": 2, "engine_etcd_retries_total": 3,
        "engine_etcd_conflicts_total": 4, "engine_etcd_unknown_total": 5, "engine_etcd_full_total": 6,
        "engine_etcd_watches": 7, "engine_etcd_watch_streams_total": 8, "engine_etcd_watch_restarts_total": 9,
        "engine_etcd_transaction_seconds_sum": 0.5, "engine_etcd_transaction_seconds_count": 3,
        "engine_etcd_certificates_unusable_total": 11,
    }  # fmt: skip


def test_requests_to_the_object_store_are_told_by_kind_and_those_that_came_too_often() -> None:
    now = ObjectStatistics(requests={"put": 1, "get": 2}, failures={"put": 3}, slow_downs=4, per_s=5.0, in_flight=6)
    rows = [row for family in _object_families(now) for row in family.rows()]
    assert rows == [
        ("engine_object_requests_total", {"kind": "put"}, 1), ("engine_object_requests_total", {"kind": "get"}, 2),
        ("engine_object_failures_total", {"kind": "put"}, 3), ("engine_object_slow_downs_total", {}, 4),
    ]  # fmt: skip
