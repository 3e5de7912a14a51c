"""Bounded resources: how much is in use, how many requests wait, and how many were refused (PIP-442)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.aio.memory_limiter import AsyncDualMemoryLimiter
from engine.aio.semaphore import PoolStatistics
from engine.broker.metrics.exposition import AnyFamily, counter, gauge, histogram

BYTES = "bytes"


def pool_families(pools: Sequence[PoolStatistics]) -> Iterator[AnyFamily]:
    """All pools of a process, each under its own name."""
    memory = [({"pool": pool.name}, pool) for pool in pools if pool.unit == BYTES]
    counted = [({"pool": pool.name}, pool) for pool in pools if pool.unit != BYTES]
    queued = [({"pool": pool.name}, pool) for pool in pools if pool.queue_max]
    yield gauge("memory_pool_used_bytes", "In use", [(labels, pool.used) for labels, pool in memory])
    yield gauge("memory_pool_limit_bytes", "Maximum; 0: no limit", [(labels, pool.limit) for labels, pool in memory])
    yield gauge("pool_used", "In use, of pools counted in pieces", [(labels, pool.used) for labels, pool in counted])
    yield gauge("pool_limit", "Maximum; 0: no limit", [(labels, pool.limit) for labels, pool in counted])
    every = [({"pool": pool.name}, pool) for pool in pools]
    yield gauge("pool_queue_size", "Waiting requests", [(labels, pool.queue) for labels, pool in every])
    yield gauge(
        "pool_queue_max_size", "Most requests that may wait", [(labels, pool.queue_max) for labels, pool in queued]
    )
    waits = [(labels, pool.waits) for labels, pool in queued]
    yield histogram("pool_wait_time_ms", "How long granted requests waited", waits)
    timeouts = [(labels, pool.timeouts) for labels, pool in queued]
    yield counter("pool_timeout_total", "Requests that timed out waiting", timeouts)
    refusals = [(labels, pool.refusals) for labels, pool in every]
    yield counter("pool_refused_total", "Requests refused at once: the queue was full", refusals)


def topic_list_families(prefix: str, limiter: AsyncDualMemoryLimiter, cluster: str) -> Iterator[AnyFamily]:
    """The specification's twelve families. `prefix`: broker_topic_list or proxy_topic_list."""
    labels = {"cluster": cluster}
    for kind, pool in ((kind.value, pool) for kind, pool in limiter.statistics().items()):
        name = f"{prefix}_{kind}"
        yield gauge(f"{name}_memory_used_bytes", f"Topic lists, {kind} memory: in use", [(labels, pool.used)])
        yield gauge(f"{name}_memory_limit_bytes", f"Topic lists, {kind} memory: maximum", [(labels, pool.limit)])
        yield gauge(f"{name}_queue_size", f"Topic lists that wait for {kind} memory", [(labels, pool.queue)])
        yield gauge(f"{name}_queue_max_size", "Maximum of topic lists that wait", [(labels, pool.queue_max)])
        waits = [(labels, pool.waits)]
        yield histogram(f"{name}_wait_time_ms", f"How long topic lists waited for {kind} memory", waits)
        yield counter(
            f"{name}_timeout_total", f"Topic lists that waited too long for {kind}", [(labels, pool.timeouts)]
        )
