"""Everything that a broker serves at /metrics, read from plain counters on request (docs/metrics.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from engine.broker.metrics.cluster import cluster_families
from engine.broker.metrics.exposition import (
    NO_LABELS,
    AnyFamily,
    FlatFamily,
    Labels,
    PageWriter,
    Row,
    exposition,
    joined,
)
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

_ROWS_AT_ONCE = 200


def metrics_text(broker: Observed) -> str:
    """The text format of Prometheus. A broker that has not started serves its process's metrics only."""
    return exposition(_families(broker), _common(broker))


async def own_families(broker: Observed) -> list[FlatFamily]:
    """What this process serves, some rows per turn of the loop: those of thousands of segments take long."""
    found: list[FlatFamily] = []
    for family in _families(broker):
        rows, lines = family.rows(_common(broker)), list[Row]()
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            lines += some
            await asyncio.sleep(0)
        found.append(FlatFamily(family.name, family.kind, family.text, lines))
    return found


async def metrics_page(broker: Observed, accept: str = "") -> tuple[str, str]:
    """The metrics of the server, with those of its other processes, and their content type.

    `accept`: the header of that name. Written some rows per turn of the loop.
    """
    families = await own_families(broker)
    if broker.families_elsewhere is not None:
        families = joined([families, *await broker.families_elsewhere()])
    writer, parts = PageWriter(accept), list[bytes]()
    for family in families:
        for part in writer.parts(family, _ROWS_AT_ONCE):
            parts.append(part)
            await asyncio.sleep(0)
    return b"".join([*parts, writer.end]).decode(), writer.content_type


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
