"""`OwnLoad`: says in this broker's record how many segments it has open, and their rates, for placement and balance."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from engine.control.base.brokers import Brokers
from engine.errors import EngineError
from engine.metadata.store import OutcomeUnknownError
from engine.model.load import SegmentLoadStats

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment

log = logging.getLogger(__name__)

_CHANGE = 0.1  # of a rate, that is worth a write
_LOOK_S = 1.0  # between two looks at how many segments are open
_GROWTH = 0.05  # of their number, that is not left to the next interval: other brokers place segments by it


class Segments(Protocol):
    """The open segments."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[HostedSegment]: ...


class OwnLoad:
    """Written when it has changed: once for a steady load, and never where no other broker is there to read it."""

    def __init__(
        self,
        brokers: Brokers,
        segments: Segments,
        stats: Callable[[HostedSegment], SegmentLoadStats],
        interval: float,
    ) -> None:
        """`stats`: the rates of an open segment. `interval`: seconds between two looks."""
        self._brokers = brokers
        self._segments = segments
        self._stats = stats
        self._interval = interval
        self._said: tuple[int, SegmentLoadStats] | None = None

    async def run(self) -> None:
        """Until cancelled. A failed write is logged, and the next look tries again."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._interval
        while True:
            await asyncio.sleep(min(_LOOK_S, self._interval))
            if self._brokers.alone or (loop.time() < due and not self._grown()):
                continue
            due = loop.time() + self._interval
            try:
                await self.report()
            except (EngineError, OutcomeUnknownError) as e:
                log.info("the load of %s was not written: %s", self._brokers.url, e)

    def _grown(self) -> bool:
        said = 0 if self._said is None else self._said[0]
        return abs(len(self._segments) - said) > _GROWTH * said

    async def report(self) -> None:
        """Write it, if it has changed. Raises NotOwnerError: there is no session; what the metadata store raises."""
        count, load = self.now()
        if self._said is None or self._said[0] != count or load.differs(self._said[1], _CHANGE):
            await self._brokers.publish(segments=count, load=load)
            self._said = count, load

    def now(self) -> tuple[int, SegmentLoadStats]:
        """(open segments, their rates together)."""
        found = [self._stats(hosted) for hosted in self._segments]
        return len(found), SegmentLoadStats(*(sum(one.rate(f.name) for one in found) for f in fields(SegmentLoadStats)))
