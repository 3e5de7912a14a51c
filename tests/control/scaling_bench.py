"""What the tests of auto-scale through the control plane do to a topic, and see of it."""

from __future__ import annotations

from engine.control.service import ScalableTopicService
from engine.metadata import keys
from engine.model.layout import SegmentLayout
from engine.model.load import SegmentLoadStats
from engine.model.names import TopicName
from tests.kit.control_fakes import TOPIC, Brokers

NEVER_S = 50_000.0


async def layout_of(brokers: Brokers, topic: TopicName = TOPIC) -> SegmentLayout:
    """As it stands in the store."""
    record = await brokers.store.get(keys.topic(topic))
    assert record is not None
    return SegmentLayout.from_json(record.value)


async def shape(brokers: Brokers) -> list[int]:
    """The bucket counts of the active segments, by range."""
    return [segment.bucket_count for segment in (await layout_of(brokers)).active]


async def report(brokers: Brokers, *rates: float, topic: TopicName = TOPIC) -> None:
    """Each active segment, by range, reports that it takes so many messages per second."""
    for segment, rate in zip((await layout_of(brokers, topic)).active, rates, strict=True):
        key = keys.load(topic.segment(segment.hash_range, segment.segment_id))
        await brokers.store.put(key, SegmentLoadStats(rate, 100 * rate).to_json())


def counts(service: ScalableTopicService) -> tuple[int, int, int]:
    """Splits, merges, rebuckets."""
    found = service.statistics().scaling[str(TOPIC)].counts
    return (found.splits, found.merges, found.rebuckets)


def calls(brokers: Brokers, method: str) -> int:
    """How often the segments' owners were asked for it."""
    return sum(call[0] == method for call in brokers.host.calls)
