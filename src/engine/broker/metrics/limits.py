"""Metrics of limits: what rates are allowed and used, how long clients waited for credit, and what was refused."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest
from typing import TYPE_CHECKING

from engine.broker.metrics.exposition import AnyFamily, Sample, counter, gauge

if TYPE_CHECKING:
    from engine.broker.limits.bucket import Bucket
    from engine.broker.limits.limits import BrokerLimits

SCOPES_MAX = 500  # with series of their own: those that have held back the longest


def limit_families(limits: BrokerLimits | None) -> Iterator[AnyFamily]:
    """Of this broker; None: there are no limits in the cluster."""
    shown = [] if limits is None else nlargest(SCOPES_MAX, limits.buckets_in_use(), key=lambda one: one[1].held_s)

    def each(value: str) -> list[Sample]:
        return [(_labels(*scope), float(getattr(bucket, value))) for scope, bucket in shown]

    rates = [sample for scope, bucket in shown for sample in _rates(_labels(*scope), bucket)]
    yield gauge("limit_rate", "Messages or bytes per second that a limit allows.", rates)
    yield counter("limit_granted_messages_total", "Messages that clients got credit for.", each("granted_messages"))
    yield counter("limit_granted_bytes_total", "Bytes that clients got credit for.", each("granted_bytes"))
    yield counter("limit_held_back_seconds_total", "Time in which a client waited for credit.", each("held_s"))
    yield gauge("limit_waiting", "Producers and consumers that wait for credit.", each("waiting"))
    refused = {} if limits is None else limits.refused
    samples = [({"limit": name}, float(count)) for name, count in sorted(refused.items())]
    yield counter("limit_refused_total", "Operations that were refused for a limit.", samples)
    full = 0 if limits is None else len(limits.full)
    yield gauge("limit_full_topics", "Topics that take no messages for what is stored or not acknowledged.", full)


def _labels(scope: str, direction: str) -> dict[str, str]:
    return {"scope": scope, "direction": direction}


def _rates(labels: dict[str, str], bucket: Bucket) -> Iterator[Sample]:
    for unit, rate in (("messages", bucket.messages_per_s), ("bytes", bucket.bytes_per_s)):
        if rate is not None:
            yield {**labels, "unit": unit}, float(rate)
