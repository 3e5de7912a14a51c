"""Deleting a topic: mark it (the point of no return), then its segments, its records, and the topic itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from engine.control.changes import Phase, run_phases
from engine.control.ports import SegmentHost, segment_spec
from engine.control.resources import ScalableTopicResources, TopicRecord
from engine.model.layout import PendingChange
from engine.model.names import TopicName

KIND = "delete"
SEGMENTS, RECORDS, TOPIC = "segments", "records", "topic"


class TopicDeletion:
    """One topic's deletion, begun or resumed by its leader. `record` is the topic's newest one."""

    def __init__(
        self, topic: TopicName, record: TopicRecord, term: int, resources: ScalableTopicResources, host: SegmentHost
    ) -> None:
        self.topic = topic
        self.record = record
        self._term = term
        self._resources = resources
        self._host = host

    async def mark(self) -> None:
        """The point of no return: from here on the topic is not found. Raises ConflictError when the record is old."""
        await self._reached(SEGMENTS)

    async def finish(self) -> None:
        """Run what is left. What it raises leaves the rest to the next leader, or to the next call."""
        phases = [Phase(SEGMENTS, self._segments), Phase(RECORDS, self._records), Phase(TOPIC, self._topic)]
        change = self.record.layout.change
        start = SEGMENTS if change is None else change.phase
        await run_phases(phases, start, self._reached)

    async def _reached(self, phase: str) -> None:
        layout = replace(self.record.layout, change=PendingChange(KIND, phase))
        self.record = await self._resources.save_topic(self.topic, layout, self.record.version)

    async def _segments(self) -> None:
        layout = self.record.layout
        specs = [segment_spec(self.topic, layout, segment) for segment in layout.segments.values()]
        await asyncio.gather(*(self._host.delete_segment(spec, term=self._term) for spec in specs))

    async def _records(self) -> None:
        await self._resources.delete_children(self.topic)

    async def _topic(self) -> None:
        await self._resources.delete_topic(self.topic, self.record.version)
