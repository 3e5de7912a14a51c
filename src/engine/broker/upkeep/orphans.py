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

_LOOKED_AT_ONCE = 256  # topics


class Orphans:
    """A store is an orphan when no layout names it and no change is pending on its topic. Loop thread only.

    The directories are listed before the layouts are read, and ids are never used again: what an older list has and a
    newer layout does not have will not come into being any more. What is suspected here is looked at once more by
    whoever deletes it, while nobody can open it.
    """

    def __init__(self, service: ScalableTopicService, segments: OpenSegments) -> None:
        self._service = service
        self._segments = segments

    async def look(self, stores: Mapping[TopicName, Sequence[SegmentName]]) -> int:
        """Delete the orphans among these; how many there were. Raises what the metadata store raises."""
        unknown = set(stores)
        async for topics in self._service.topic_pages():
            unknown.difference_update(topics)
        deleted = 0
        for i, (topic, names) in enumerate(stores.items()):
            if i % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)  # others are served
            if topic in unknown or not is_untouched(names):
                deleted += await self._look_at(topic, names)
        return deleted

    async def _look_at(self, topic: TopicName, names: Sequence[SegmentName]) -> int:
        try:
            return sum([await self.remove(name) for name in await self._suspects(topic, names)])
        except EngineError as e:
            log.warning("which stores of %s are in use is not known: %s", topic, e)
            return 0

    async def _suspects(self, topic: TopicName, names: Sequence[SegmentName]) -> list[SegmentName]:
        try:
            layout = (await self._service.ensure_topic(topic, create=False)).layout
        except NotFoundError:
            return list(names)
        ranges = {i: s.hash_range for i, s in layout.segments.items()}
        return [] if layout.change else [name for name in names if ranges.get(name.segment_id) != name.hash_range]

    async def remove(self, name: SegmentName) -> bool:
        """Delete one if it is an orphan; whether it was. Raises nothing that a later look could mend."""
        try:
            removed = await self._segments.remove_orphan(name)
        except EngineError as e:
            log.warning("%s is no topic's and could not be deleted: %s", name, e)
            return False
        if removed:
            log.info("%s was no topic's: deleted", name)
        return removed


def is_untouched(names: Sequence[SegmentName]) -> bool:
    """Whether this is what most topics have: the one segment that they began with. Their layouts need no look."""
    return len(names) == 1 and names[0].segment_id == 0 and names[0].hash_range == HashRange.whole()
