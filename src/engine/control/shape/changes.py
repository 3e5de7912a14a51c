"""Long changes as lists of phases: each idempotent, each recorded when reached, resumed by whoever leads next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.control.base.ports import SegmentHost, SegmentSpec, segment_spec
from engine.control.base.topic_records import ScalableTopicResources, TopicRecord
from engine.errors import UnsupportedError
from engine.model.layout import PendingChange, SegmentLayout
from engine.model.names import TopicName
from engine.model.segment import SegmentInfo


@dataclass(frozen=True, slots=True)
class Phase:
    """One step. `act` may run again after a crash, any number of times."""

    name: str
    act: Callable[[], Awaitable[None]]


async def run_phases(phases: Sequence[Phase], start: str, reached: Callable[[str], Awaitable[None]]) -> None:
    """Run the phases from the one called `start`; `reached` makes durable which comes next, before it begins.

    What a phase raises ends the run; the change is resumed later at that phase. UnsupportedError when the list has
    no phase called `start`: a newer version began the change.
    """
    names = [phase.name for phase in phases]
    if start not in names:
        raise UnsupportedError(f"a change stands at the unknown phase {start!r}; known are {', '.join(names)}")
    for position in range(names.index(start), len(phases)):
        if names[position] != start:
            await reached(names[position])
        await phases[position].act()


async def together(acts: Iterable[Awaitable[Any]]) -> list[Any]:
    """Their results. All have ended when the first error is raised: what follows does not overtake any of them."""
    results = await asyncio.gather(*acts, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class TopicChange:
    """One topic's long change, in the hands of its leader. `record` is the topic's newest one.

    Every write of the record is a compare-and-set on its version, so that of two leaders that believe to lead only one
    goes on; what the other asks of a segment's host is refused by its term.
    """

    def __init__(
        self, topic: TopicName, record: TopicRecord, term: int, resources: ScalableTopicResources, host: SegmentHost
    ) -> None:
        self.topic = topic
        self.record = record
        self.term = term
        self.resources = resources
        self.host = host

    async def save(self, layout: SegmentLayout) -> None:
        """Replace the topic's record. Raises ConflictError when it is not the one known here, UnknownOutcomeError."""
        self.record = await self.resources.save_topic(self.topic, layout, self.record.version)

    async def reached(self, change: PendingChange) -> None:
        """Make durable where the change stands."""
        await self.save(replace(self.record.layout, change=change))

    def spec(self, segment: SegmentInfo) -> SegmentSpec:
        """What a host must know of a segment, which may be one that is not in the layout yet."""
        return segment_spec(self.topic, self.record.layout, segment)

    async def delete_segments(self, segments: Iterable[SegmentInfo]) -> None:
        """Their stores and cursors are gone."""
        await together(self.host.delete_segment(self.spec(s), term=self.term) for s in segments)
