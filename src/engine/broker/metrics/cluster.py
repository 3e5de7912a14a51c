"""Metrics of a broker among others: handovers of segments, load, balance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.broker.metrics.exposition import AnyFamily, counter, gauge, histogram
from engine.control.policy.balance import imbalance

if TYPE_CHECKING:
    from engine.broker.upkeep.cluster_parts import ClusterParts


def cluster_families(cluster: ClusterParts) -> Iterator[AnyFamily]:
    """Counted since the broker was started."""
    handovers, balancer, brokers = cluster.handovers, cluster.balancer, cluster.members.brokers
    ownership = cluster.members.ownership
    draining = sum(record.draining for record in brokers.live.values())
    states = [({"state": "draining"}, draining), ({"state": "live"}, len(brokers.live) - draining)]
    yield gauge("brokers", "Brokers that share the metadata store, as this one sees them", states)
    yield gauge("broker_load", "1 for each open segment, for 10,000 messages/s, for 1 MiB/s", balancer.load())
    yield gauge("broker_draining", "1: this broker takes no segments", brokers.draining)
    yield gauge("broker_balancer", "1: this broker moves segments between brokers", balancer.leading)
    text = "By how much of the mean load the most loaded broker is above it"
    yield gauge("brokers_imbalance_ratio", text, imbalance(ownership.loads().values()))
    yield counter("segments_handed_over_total", "Segments given to another broker in order", handovers.given)
    yield counter("segments_taken_over_total", "Segments that another broker gave to this one", handovers.taken)
    yield counter("segment_handovers_failed_total", "Handovers that were refused or failed", handovers.failed)
    text = "Segments without an owner that were left to a broker with less load"
    yield counter("segments_passed_on_total", text, ownership.passed_on)
    text = "From the first refused append until the next owner has the segment open"
    yield histogram("segment_handover_seconds", text, handovers.seconds.statistics())
    yield counter("balance_rounds_total", "Rounds of balance that this broker decided on", balancer.rounds)
    yield counter("balance_moves_total", "Segments that it moved", balancer.moves)
