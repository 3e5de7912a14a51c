"""`Draining`: hands over all that this broker has, segments and leaderships, and keeps it from taking more.

A broker that drains says so in its record. Placement passes it over from then on, and no broker hands it a segment.
What it got before the others heard of it goes in the next round. It serves clients as before, until it is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from engine.aio.tasks import Supervisor
from engine.broker.cluster.handover import ASK_S_MAX, TARGET, Handovers
from engine.broker.cluster.membership import Membership
from engine.control.policy.placement import OPEN, place, spread, traffic
from engine.control.service import ScalableTopicService
from engine.errors import ConnectError, EngineError, InvalidArgumentError
from engine.metadata.store import OutcomeUnknownError
from engine.model.load import SegmentLoadStats
from engine.model.names import SegmentName, TopicName

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment

log = logging.getLogger(__name__)

LEAD = "lead_topic"

_ROUND_S = 1.0  # between two rounds, while it drains
_AT_ONCE = 8


class Draining:
    """Loop thread only."""

    def __init__(
        self,
        members: Membership,
        handovers: Handovers,
        service: ScalableTopicService,
        stats: Callable[[HostedSegment], SegmentLoadStats],
    ) -> None:
        """`stats`: the rates of an open segment."""
        self._members = members
        self._brokers = members.brokers
        self._handovers = handovers
        self._service = service
        self._stats = stats
        self._tasks = Supervisor("draining")
        self._rounds: asyncio.Task[None] | None = None
        self._silent: set[str] = set()  # brokers that did not answer in the round before
        self._limit: asyncio.Timeout | None = None  # of finish(), while it runs
        self._skipped = False

    async def close(self) -> None:
        await self._tasks.close()

    @property
    def left(self) -> int:
        """The segments and leaderships that this broker still has, or is handing over."""
        return self.segments + len(self._service.led())

    @property
    def segments(self) -> int:
        """The segments that this broker has open, or is handing over."""
        return len(self._members.segments) + self._handovers.under_way

    def others(self) -> list[str]:
        """The other brokers that take segments."""
        if self._brokers.alone:
            return []
        live = self._brokers.live
        return [url for url in self._brokers.takers if url != self._brokers.url and not live[url].draining]

    async def begin(self) -> None:
        """Drain, in the background, until end(). Idempotent. Raises InvalidArgumentError: no other broker takes its
        segments; what the metadata store raises.
        """
        if not self.others():
            raise InvalidArgumentError(
                f"a broker that drains must have others that take its segments, got {self._brokers.url} alone"
            )
        if not self._brokers.draining:
            await self._brokers.publish(draining=True)
            log.info("%s drains", self._brokers.url)
        if self._rounds is None or self._rounds.done():
            self._rounds = self._tasks.spawn(self._run(), "drain")

    async def end(self) -> None:
        """Take segments again, after the round under way. Idempotent. Raises what the metadata store raises."""
        if self._brokers.draining:
            await self._brokers.publish(draining=False)
            log.info("%s takes segments again", self._brokers.url)

    def skip(self) -> None:
        """Have finish() hand over no more: the brokers that would get the segments are closing, too."""
        self._skipped = True
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def finish(self, timeout: float) -> None:
        """Before this broker closes: hand over what can be within `timeout` seconds. Does not raise."""
        if self._skipped or not self.others():
            return
        try:
            async with asyncio.timeout(timeout) as self._limit:
                await self._brokers.publish(draining=True)
                while self.left and self.others():
                    await self.round()
                    if self.left:
                        await asyncio.sleep(_ROUND_S)
        except (TimeoutError, EngineError) as e:
            if self._skipped:
                return
            log.warning(
                "%s closes with %d segments and leaderships not handed over: %r", self._brokers.url, self.left, e
            )
        finally:
            self._limit = None

    async def _run(self) -> None:
        while self._brokers.draining:
            try:
                await self.round()
            except EngineError as e:
                log.warning("%s drains, and tries again: %s", self._brokers.url, e)
            await asyncio.sleep(_ROUND_S)

    async def round(self) -> None:
        """Hand over what this broker has now. What fails is left to the next round."""
        names = self.targets([hosted for hosted in self._members.segments if not hosted.closed])
        self._silent.clear()
        permits = asyncio.Semaphore(_AT_ONCE)

        async def one(name: SegmentName, to: str) -> None:
            async with permits:
                try:
                    await self._handovers.hand_over(name, to)
                except (EngineError, OutcomeUnknownError) as e:
                    log.info("%s stays for now: %s", name, e)
                    if isinstance(e, ConnectError | TimeoutError):
                        self._silent.add(to)

        await asyncio.gather(*(one(name, to) for name, to in names.items()))
        for topic in self._service.led():
            await self._resign(topic)

    def targets(self, segments: Iterable[HostedSegment]) -> dict[SegmentName, str]:
        """Where to hand these segments over to, by their load and that of the other brokers; {}: there are none."""
        loads, known = self._members.ownership.loads(), self.others()
        others = [url for url in known if url not in self._silent] or known
        weights = {hosted.name: self.weight_of(hosted) for hosted in segments}
        ordered = sorted(weights, key=lambda name: (-weights[name], str(name)))
        placed = spread({str(name): weights[name] for name in ordered}, {url: loads[url] for url in others})
        return {name: placed[str(name)] for name in ordered if str(name) in placed}

    def weight_of(self, hosted: HostedSegment) -> float:
        """The load of an open segment, in units (policy.placement)."""
        return OPEN + traffic(self._stats(hosted))

    async def _resign(self, topic: TopicName) -> None:
        """Resign, and have another broker lead at once: until one does, consumers wait for their assignments."""
        to = place(str(topic), self.others())
        if to is None:
            return
        try:
            await self._service.resign(topic)
            await self._members.peers.call(to, TARGET, LEAD, {"topic": str(topic)}, ASK_S_MAX)
        except EngineError as e:
            log.info("%s has no new leader yet: %s", topic, e)
