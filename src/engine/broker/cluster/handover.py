"""`Handovers`: segments change their owner in order, while clients use them.

    this broker                                     the next owner
    1  asks whether it takes the segment  ------->  yes; from now on the connection between the two is there
    2  refuses appends, and tells consumers; writes out what it has, saves cursors, closes the file; sends
       counts of redeliveries, if there are any, and keeps them, in case the next steps fail
    3  writes the record: no owner, the other is the heir      every broker's watch shows it: layouts name the heir
    4  asks it to open the segment  ------------->  claims it under the next term, opens it

Clients follow the layout, or their refused request; both meet a broker that is opening the segment, or has. Nothing
waits for a lease to lapse. When the next owner dies between 3 and its claim, placement names another one. When step 4
is lost, the first client's request does its work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.aio.histogram import Histogram
from engine.broker.cluster.peers import Peers
from engine.broker.cluster.segment_calls import pack_spec, unpack_spec
from engine.broker.delivery.opened import subscriptions_of
from engine.broker.hosting.inherited import Reign
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.open_subscriptions import OpenSubscriptions
from engine.broker.hosting.ownership import Ownership
from engine.errors import EngineError, InvalidArgumentError, NotOwnerError
from engine.metadata.store import OutcomeUnknownError
from engine.model.names import SegmentName

if TYPE_CHECKING:
    from engine.broker.delivery.redelivery import RedeliveryCounts
    from engine.broker.segment.hosted import HostedSegment

log = logging.getLogger(__name__)

ASK_S_MAX = 3.0
OPEN_S_MAX = 10.0

TARGET = "broker"  # of the calls to the next owner
EXPECT, BEQUEATH, ADOPT = "expect_segment", "bequeath", "adopt_segment"


class Handovers:
    """Of this broker. `given`, `taken`: segments so far; `failed`: attempts that left the segment here; `under_way`:
    segments that are not open here any more, and perhaps not there yet.
    """

    def __init__(
        self, segments: OpenSegments, subscriptions: OpenSubscriptions, ownership: Ownership, peers: Peers
    ) -> None:
        self._segments = segments
        self._subscriptions = subscriptions
        self._ownership = ownership
        self._peers = peers
        self.given = 0
        self.taken = 0
        self.failed = 0
        self.under_way = 0
        self.seconds = Histogram()  # from the first refused append until the next owner has it open

    async def hand_over(self, name: SegmentName, to: str) -> None:
        """Hand an open segment over. Raises NotOwnerError: it is not open here, or the other broker takes none;
        ConnectError, TimeoutError: the other does not answer; what the metadata store raises.
        """
        try:
            await self._hand_over(name, to)
        except (EngineError, OutcomeUnknownError):
            self.failed += 1
            raise

    async def _hand_over(self, name: SegmentName, to: str) -> None:
        hosted = self._segments.get(name)
        if hosted is None or to == self._ownership.brokers.url:
            raise NotOwnerError(f"{name} must be open on this broker, and go to another one; look the topic up again")
        facts = {"spec": pack_spec(replace(hosted.spec, sealed=hosted.segment.sealed))}
        await self._peers.call(to, TARGET, EXPECT, facts, ASK_S_MAX)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        facts = {"spec": pack_spec(replace(hosted.spec, sealed=hosted.segment.sealed))}  # it may be sealed by now
        self.under_way += 1
        try:
            await self._segments.hand_over(hosted, to, lambda: self._bequeath(hosted, to, facts))
            self._subscriptions.inherited.drop(name)
            self.given += 1
            await self._opened(name, to, facts)
        finally:
            self.under_way -= 1
        self.seconds.observe(loop.time() - begun)
        log.info("%s was handed over to %s in %.3f s", name, to, loop.time() - begun)

    async def reopen(self, hosted: HostedSegment) -> None:
        """Close an open segment in order, and let its clients come again. Raises NotOwnerError: it is being sealed."""

        async def keep() -> None:
            self._keep_counts(hosted)

        await self._segments.hand_over(hosted, self._ownership.brokers.url, keep)

    def _keep_counts(self, hosted: HostedSegment) -> tuple[Reign, dict[str, RedeliveryCounts]]:
        """For the next owner, if that is this broker."""
        counts = {name: s.redeliveries for name, s in subscriptions_of(hosted).items() if s.redeliveries}
        reign = Reign.of(hosted)
        if counts:
            self._subscriptions.inherited.keep(hosted.name, reign, counts)
        return reign, counts

    async def _bequeath(self, hosted: HostedSegment, to: str, facts: Mapping[str, Any]) -> None:
        """Give the next owner what only memory has, while no consumer is attached: how often messages were delivered.
        Where that fails, counts begin anew there, as after a restart. When the segment stays, they go on here.
        """
        reign, counts = self._keep_counts(hosted)
        if not counts:
            return
        packed = {name: found.pack() for name, found in counts.items()}
        given = {**facts, "redeliveries": packed, "born": reign.born, "term": reign.term}
        try:
            await self._peers.call(to, TARGET, BEQUEATH, given, ASK_S_MAX)
        except EngineError as e:
            log.info("%s: counts of redeliveries begin anew at %s: %s", hosted.name, to, e)

    def inherit(self, args: Mapping[str, Any]) -> None:
        """See _bequeath(). Raises InvalidArgumentError."""
        from engine.broker.delivery.redelivery import RedeliveryCounts

        try:
            reign, ranges = Reign(int(args["born"]), int(args["term"])), dict(args["redeliveries"])
        except (KeyError, TypeError, ValueError) as e:
            raise InvalidArgumentError(f"counts of redeliveries must name their owner's term, got {e!r}") from None
        counts = {str(name): RedeliveryCounts.unpack(found) for name, found in ranges.items()}
        self._subscriptions.inherited.keep(unpack_spec(args).name, reign, counts)

    async def _opened(self, name: SegmentName, to: str, facts: Mapping[str, Any]) -> None:
        """Have the heir open it. Where that fails, the first client that is sent there does so."""
        try:
            await self._peers.call(to, TARGET, ADOPT, facts, OPEN_S_MAX)
        except EngineError as e:
            log.warning("%s was handed over to %s, which has not opened it yet: %s", name, to, e)

    def expect(self, args: Mapping[str, Any]) -> None:
        """Another broker is about to hand over a segment. Raises NotOwnerError when this one takes none."""
        spec = unpack_spec(args)
        if self._ownership.brokers.url not in self._ownership.brokers.takers:
            raise NotOwnerError(f"this broker takes no segments, as it drains: {spec.name}")

    async def adopt(self, args: Mapping[str, Any]) -> None:
        """Open a segment that was left to this broker. Raises what opening it raises."""
        spec = unpack_spec(args)
        await self._segments.open(spec, create=False)
        self.taken += 1
