"""Everything that a broker serves at /metrics, read from plain counters on request (docs/metrics.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from engine.broker.metrics.cluster import cluster_families
from engine.broker.metrics.exposition import NO_LABELS, AnyFamily, JoinedPages, Labels, exposition
from engine.broker.metrics.limits import limit_families
from engine.broker.metrics.pools import pool_families, topic_list_families
from engine.broker.metrics.process import process_families
from engine.broker.metrics.segments import segment_families, subscription_families
from engine.broker.metrics.shapes import shape_families
from engine.broker.metrics.stored import Stored
from engine.broker.metrics.transactions import transaction_families
from engine.broker.metrics.whole import pools, whole_families

if TYPE_CHECKING:
    from engine.broker.metrics.ports import Observed

_LINES_AT_ONCE = 500


def metrics_text(broker: Observed) -> str:
    """The text format of Prometheus. A broker that has not started serves its process's metrics only."""
    return exposition(_families(broker), _common(broker))


async def own_page(broker: Observed) -> str:
    """metrics_text(), some lines per turn of the loop: the text of thousands of segments takes long to write."""
    parts: list[str] = []
    for family in _families(broker):
        lines = iter(family.lines(_common(broker)))
        while some := list(islice(lines, _LINES_AT_ONCE)):
            parts.append("\n".join(some))
            await asyncio.sleep(0)
    return "\n".join(parts) + "\n"


async def metrics_page(broker: Observed) -> str:
    """The metrics of the server: own_page(), and where it has several processes, those of the others."""
    own = await own_page(broker)
    if broker.pages_elsewhere is None:
        return own
    joined = JoinedPages()
    for page in (own, *await broker.pages_elsewhere()):
        for number, line in enumerate(page.splitlines()):
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
            joined.add(line)
    return joined.text()


def _common(broker: Observed) -> Labels:
    return NO_LABELS if broker.processes is None else {"process": str(broker.processes.index)}


def _families(broker: Observed) -> Iterator[AnyFamily]:
    return families(broker) if broker.started else process_families()


def families(broker: Observed) -> Iterator[AnyFamily]:
    """All families, each with its present samples."""
    hosted = list(broker.segments)  # at one time with `stored`, so that each segment is in one of the two
    stored = Stored(broker.segments, broker.config.metrics_segments_max, broker.service_url)
    yield from whole_families(broker)
    yield from pool_families(pools(broker))
    yield from topic_list_families("broker_topic_list", broker.memory.topic_lists, broker.config.cluster_name)
    yield from segment_families(hosted, stored)
    yield from subscription_families(hosted, stored)
    yield from cluster_families(broker.cluster)
    yield from shape_families(broker.service.statistics())
    yield from transaction_families(broker)
    yield from limit_families(broker.memory.limits)
    yield from process_families()
