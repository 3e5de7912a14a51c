"""`Orphans`: deletes the stores that a crash in the middle of a change has left behind (semantics 42)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from engine.broker.hosting.open_segments import OpenSegments
from engine.control.service import ScalableTopicService
from engine.errors import EngineError, NotFoundError
from engine.model.hashrange import HashRange
from engine.model.names import SegmentName, TopicName

log = logging.getLogger(__name__)

_SWEPT_AT_ONCE = 256  # topics


class Orphans:
    """A store is an orphan when no layout names it and no change is pending on its topic.

    Directories are listed before layouts are read, and ids are never reused: a segment that is in the older list and
    not in the newer layout cannot enter a layout later. A suspected orphan is checked again by its deletion, during
    which it cannot be opened.
    """

    def __init__(self, service: ScalableTopicService, segments: OpenSegments) -> None:
        self._service = service
        self._segments = segments

    async def sweep(self, stores: Mapping[TopicName, Sequence[SegmentName]]) -> int:
        """Delete the orphans among these; returns how many. Raises what the metadata store raises."""
        unknown = set(stores)
        async for topics in self._service.topic_pages():
            unknown.difference_update(topics)
        deleted = 0
        for i, (topic, names) in enumerate(stores.items()):
            if i % _SWEPT_AT_ONCE == 0:
                await asyncio.sleep(0)  # others are served
            if topic in unknown or not is_untouched(names):
                deleted += await self._sweep_topic(topic, names)
        return deleted

    async def _sweep_topic(self, topic: TopicName, names: Sequence[SegmentName]) -> int:
        try:
            return sum([await self.remove(name) for name in await self._suspects(topic, names)])
        except EngineError as e:
            log.warning("the layout of %s cannot be read, its stores are kept: %s", topic, e)
            return 0

    async def _suspects(self, topic: TopicName, names: Sequence[SegmentName]) -> list[SegmentName]:
        try:
            layout = (await self._service.ensure_topic(topic, create=False)).layout
        except NotFoundError:
            return list(names)
        ranges = {i: s.hash_range for i, s in layout.segments.items()}
        return [] if layout.change else [name for name in names if ranges.get(name.segment_id) != name.hash_range]

    async def remove(self, name: SegmentName) -> bool:
        """Delete the store if it is an orphan; returns whether it was. Errors that may pass are logged."""
        try:
            removed = await self._segments.remove_orphan(name)
        except EngineError as e:
            log.warning("the orphan %s could not be deleted: %s", name, e)
            return False
        if removed:
            log.info("the orphan %s was deleted", name)
        return removed


def is_untouched(names: Sequence[SegmentName]) -> bool:
    """Whether the topic has just its initial segment, as most topics: its layout need not be read."""
    return len(names) == 1 and names[0].segment_id == 0 and names[0].hash_range == HashRange.whole()
