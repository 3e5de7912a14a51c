"""A topic's layout as a client sees it: its segments, which of them are active, and the addresses of their owners."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.errors import ProtocolError
from engine.model.hashrange import HashRange
from engine.model.names import TopicName
from engine.wire import commands


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of a layout. `bucket_ends` are inclusive, the last is 65535; `url` is the owner's."""

    segment_id: int
    name: str
    hash_range: HashRange
    active: bool
    parents: tuple[int, ...]
    children: tuple[int, ...]
    bucket_ends: tuple[int, ...]
    url: str | None


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """One version of a topic's layout. `active` is ordered by hash range."""

    epoch: int
    key_hash: str
    durability: str
    segments: dict[int, SegmentView]
    active: tuple[SegmentView, ...]
    controller_url: str | None
    created_ms: int | None = None  # of the topic's creation: a later one of its name has another

    @classmethod
    def from_dag(cls, topic: TopicName, dag: commands.Dag) -> TopicLayout:
        """The layout in a SCALABLE_TOPIC_UPDATE. Raises ProtocolError when it is not one."""
        brokers = dag.segmentBrokers or {}
        try:
            views = [_segment_view(topic, s, brokers) for s in dag.segments]
        except ValueError as e:
            raise ProtocolError(f"SCALABLE_TOPIC_UPDATE of {topic}: the layout is malformed: {e!r}") from e
        active = sorted((v for v in views if v.active), key=lambda v: v.hash_range.start)
        return cls(
            epoch=dag.epoch,
            key_hash=dag.keyHash,
            durability=dag.durability,
            segments={v.segment_id: v for v in views},
            active=tuple(active),
            controller_url=dag.controllerBrokerUrl,
            created_ms=dag.createdAtMs or None,
        )

    def url_of(self, segment_id: int) -> str | None:
        """The owner's address, None when it is not known."""
        view = self.segments.get(segment_id)
        return None if view is None else view.url

    def has_lost(self, segment_id: int) -> bool:
        """Whether the topic had such a segment and deleted it: ids only rise, and deleted segments have children."""
        return segment_id not in self.segments and segment_id < max(self.segments)

    def readdressed(self, newer: TopicLayout) -> TopicLayout:
        """This layout with the addresses of a newer view of the same epoch; itself when they are equal."""
        moved = {i: replace(v, url=newer.url_of(i)) for i, v in self.segments.items() if v.url != newer.url_of(i)}
        if not moved and self.controller_url == newer.controller_url:
            return self
        segments = {**self.segments, **moved}
        active = tuple(segments[v.segment_id] for v in self.active)
        return replace(self, segments=segments, active=active, controller_url=newer.controller_url)


def _segment_view(topic: TopicName, segment: commands.Segment, brokers: dict[str, str]) -> SegmentView:
    hash_range = HashRange(segment.hashRange.start, segment.hashRange.end)
    return SegmentView(
        segment_id=segment.segmentId,
        name=str(topic.segment(hash_range, segment.segmentId)),
        hash_range=hash_range,
        active=segment.state.upper() == "ACTIVE",
        parents=tuple(segment.parentIds or ()),
        children=tuple(segment.childIds or ()),
        bucket_ends=tuple(segment.bucketBoundaries),
        url=brokers.get(str(segment.segmentId)),
    )
