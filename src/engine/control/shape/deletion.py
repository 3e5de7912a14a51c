"""Deleting a topic, in phases that are recorded: each is idempotent, and the next leader resumes at the recorded one.

    mark      POINT OF NO RETURN: the record carries the deletion; the topic is not found from here on
    SEGMENTS  the stores and cursors of all segments, also of those that a pending reshape was creating
    RECORDS   subscriptions, consumers, cursors: everything below the topic's record
    TOPIC     the record itself

The topic's record goes last: as long as anything of the topic is left, the record says what to do with it, and no
topic of the same name can be created.
"""

from __future__ import annotations

from engine.control.base.ports import SegmentSpec
from engine.control.shape.changes import ChangePhase, TopicChange, run_phases, together
from engine.control.shape.erasure import erase_children
from engine.model.layout import DELETION, PendingChange
from engine.model.reshape import children_of
from engine.model.segment import bucket_ends

SEGMENTS, RECORDS, TOPIC = "segments", "records", "topic"


class TopicDeletion(TopicChange):
    """One topic's deletion, begun or resumed by its leader. It replaces a pending reshape."""

    async def mark(self) -> None:
        """Record the deletion: the point of no return. Raises ConflictError when the record is old."""
        await self._reached(SEGMENTS)

    async def finish(self) -> None:
        """Run the remaining phases. An error leaves the rest to the next call, or the next leader."""
        phases = [
            ChangePhase(SEGMENTS, self._segments),
            ChangePhase(RECORDS, self._records),
            ChangePhase(TOPIC, self._topic),
        ]
        change = self.record.layout.change
        await run_phases(phases, SEGMENTS if change is None else change.phase, self._reached)

    async def _reached(self, phase: str) -> None:
        change = self.record.layout.change  # the children of a reshape are not in the layout, and must be deleted too
        await self.reached(PendingChange(DELETION, phase, {} if change is None else change.details))

    async def _segments(self) -> None:
        layout = self.record.layout
        born = () if layout.change is None else children_of(layout.change)
        await self.delete_segments([*layout.segments.values(), *born])
        await self._leftovers()

    async def _leftovers(self) -> None:
        """Delete stores of segments that left the layout earlier: a new topic of the name would find them."""
        durability = self.record.layout.durability
        specs = [SegmentSpec(name, durability, bucket_ends(1)) for name in await self.host.stored(self.topic)]
        await together(self.host.delete_segment(spec, term=self.term) for spec in specs)

    async def _records(self) -> None:
        await erase_children(self.resources, self.topic, self.term)

    async def _topic(self) -> None:
        await self.resources.delete_topic(self.topic, self.record.version)
