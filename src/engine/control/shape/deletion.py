"""Deleting a topic: mark it (the point of no return), then its segments, its records, and the topic itself."""

from __future__ import annotations

from engine.control.base.ports import SegmentSpec
from engine.control.shape.changes import ChangePhase, TopicChange, run_phases, together
from engine.control.shape.erasure import erase_children
from engine.model.layout import DELETION, PendingChange
from engine.model.reshape import children_of
from engine.model.segment import bucket_ends

SEGMENTS, RECORDS, TOPIC = "segments", "records", "topic"


class TopicDeletion(TopicChange):
    """One topic's deletion, begun or resumed by its leader. It takes the place of a reshape that is pending."""

    async def mark(self) -> None:
        """The point of no return: from here on the topic is not found. Raises ConflictError when the record is old."""
        await self._reached(SEGMENTS)

    async def finish(self) -> None:
        """Run what is left. What it raises leaves the rest to the next leader, or to the next call."""
        phases = [
            ChangePhase(SEGMENTS, self._segments),
            ChangePhase(RECORDS, self._records),
            ChangePhase(TOPIC, self._topic),
        ]
        change = self.record.layout.change
        await run_phases(phases, SEGMENTS if change is None else change.phase, self._reached)

    async def _reached(self, phase: str) -> None:
        change = self.record.layout.change  # a reshape's children are not in the layout, and must go too
        await self.reached(PendingChange(DELETION, phase, {} if change is None else change.details))

    async def _segments(self) -> None:
        layout = self.record.layout
        born = () if layout.change is None else children_of(layout.change)
        await self.delete_segments([*layout.segments.values(), *born])
        await self._leftovers()

    async def _leftovers(self) -> None:
        """Stores that left the layout before and could not be deleted then: a new topic would take them for its own."""
        durability = self.record.layout.durability
        specs = [SegmentSpec(name, durability, bucket_ends(1)) for name in await self.host.stored(self.topic)]
        await together(self.host.delete_segment(spec, term=self.term) for spec in specs)

    async def _records(self) -> None:
        await erase_children(self.resources, self.topic, self.term)

    async def _topic(self) -> None:
        await self.resources.delete_topic(self.topic, self.record.version)
