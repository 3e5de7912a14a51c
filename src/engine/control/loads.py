"""What the owners of a topic's segments report of their load, read from the metadata store (PIP-483)."""

from __future__ import annotations

from engine.metadata import keys
from engine.metadata.store import MetadataStore
from engine.model.load import ReportedLoad, SegmentLoadStats
from engine.model.names import TopicName


async def read_loads(metadata: MetadataStore, topic: TopicName) -> dict[int, ReportedLoad]:
    """The last report of each segment that has one, sealed ones too, by id. Raises CorruptionError."""
    prefix = keys.segments(topic)
    found = await metadata.list(prefix, keys.prefix_end(prefix))
    reports = {}
    for record in found:
        segment_id, _, what = record.key[len(prefix) :].partition("/")
        if what == keys.LOAD:
            stats = SegmentLoadStats.from_json(record.value)
            reports[int(segment_id)] = ReportedLoad(stats, record.stat.modified_ms)
    return reports
