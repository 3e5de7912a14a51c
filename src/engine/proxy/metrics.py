"""The metrics that a proxy serves at /metrics (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.broker.metrics.attempts import attempt_families
from engine.broker.metrics.exposition import AnyFamily, counter, exposition, gauge
from engine.broker.metrics.pools import topic_list_families
from engine.broker.metrics.process import process_families

if TYPE_CHECKING:
    from engine.proxy.server import Proxy


def proxy_metrics_text(proxy: Proxy) -> str:
    """The text format of Prometheus."""
    return exposition(proxy_families(proxy))


def proxy_families(proxy: Proxy) -> Iterator[AnyFamily]:
    now = proxy.statistics()
    yield gauge("proxy_connections", "Clients connected now", now.sessions)
    yield counter("proxy_connections_accepted_total", "Connections accepted from clients", now.sessions_total)
    yield counter("proxy_connections_refused_total", "Connections refused above connections_max", now.refused_total)
    yield from attempt_families("proxy_", proxy.doors, proxy.audit.denials)
    yield counter("proxy_in_bytes_total", "Bytes forwarded from clients to brokers", now.bytes_in)
    yield counter("proxy_out_bytes_total", "Bytes forwarded from brokers to clients", now.bytes_out)
    yield gauge("proxy_unsent_bytes", "Bytes queued in the proxy for clients", now.unsent_bytes)
    yield from topic_list_families("proxy_topic_list", proxy.limiter, proxy.config.cluster_name)
    yield from process_families()
