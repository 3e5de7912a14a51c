"""The load reports of a topic's segments, read from the metadata store (PIP-483)."""

from __future__ import annotations

import logging

from engine.errors import CorruptionError
from engine.metadata import keys
from engine.metadata.store import MetadataStore
from engine.model.load import ReportedLoad, SegmentLoadStats
from engine.model.names import TopicName

log = logging.getLogger(__name__)


async def read_loads(metadata: MetadataStore, topic: TopicName) -> dict[int, ReportedLoad]:
    """{segment id: its last report}, sealed segments included. An unreadable report counts as none."""
    prefix = keys.segments(topic)
    found = await metadata.mirror.list(prefix, keys.prefix_end(prefix))
    reports = {}
    for record in found:
        segment_id, _, what = record.key[len(prefix) :].partition("/")
        if what != keys.LOAD:
            continue
        try:
            stats = SegmentLoadStats.from_json(record.value)
        except CorruptionError as e:
            log.warning("%s, segment %s: its load is unknown until the next report: %s", topic, segment_id, e)
        else:
            reports[int(segment_id)] = ReportedLoad(stats, record.stat.modified_ms)
    return reports
