"""Long changes as lists of phases: each idempotent, each recorded when reached, resumed by the next leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from engine.control.base.ports import SegmentHost, SegmentSpec, segment_spec
from engine.control.base.topic_records import ScalableTopicResources, TopicRecord
from engine.errors import UnsupportedError
from engine.model.layout import PendingChange, SegmentLayout
from engine.model.names import TopicName
from engine.model.segment import SegmentInfo

P = TypeVar("P", bound=str)


@dataclass(frozen=True, slots=True)
class ChangePhase(Generic[P]):
    """One step. `act` may run again after a crash, any number of times."""

    name: P
    act: Callable[[], Awaitable[None]]


async def run_phases(phases: Sequence[ChangePhase[P]], start: P, reached: Callable[[P], Awaitable[None]]) -> None:
    """Run the phases from the one called `start`; `reached` makes durable which comes next, before it begins.

    An error that a phase raises ends the run; the change is resumed later at that phase. Raises UnsupportedError when
    the list has no phase called `start`: a newer version began the change.
    """
    names = [phase.name for phase in phases]
    if start not in names:
        raise UnsupportedError(
            f"the phase of a pending change must be one of {', '.join(names)}, got {start!r}: unknown"
        )
    for position in range(names.index(start), len(phases)):
        if names[position] != start:
            await reached(names[position])
        await phases[position].act()


async def together(acts: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await all and return their results. An error is raised after all have ended, so no later step overtakes one."""
    results = await asyncio.gather(*acts, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


class TopicChange:
    """One topic's long change, run by its leader. `record` is the topic's newest one.

    Every write of the record is a compare-and-set on its version. So of two brokers that both believe to lead only one
    goes on; the calls of the other to a segment's host are refused by their term.
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
        """Replace the topic's record. Raises ConflictError when `record` is not the newest, UnknownOutcomeError."""
        self.record = await self.resources.save_topic(self.topic, layout, self.record.version)

    async def reached(self, change: PendingChange) -> None:
        """Record the phase that the change has reached."""
        await self.save(replace(self.record.layout, change=change))

    def spec(self, segment: SegmentInfo) -> SegmentSpec:
        """The spec of a segment, which may not be in the layout yet."""
        return segment_spec(self.topic, self.record.layout, segment)

    async def delete_segments(self, segments: Iterable[SegmentInfo]) -> None:
        """Delete the stores and cursors of these segments."""
        await together(self.host.delete_segment(self.spec(s), term=self.term) for s in segments)
