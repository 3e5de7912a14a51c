"""`InheritedCounts`: how often messages were delivered by a segment's last owner, kept until the next one opens it.

A handover may fail behind the moment at which both brokers have the counts, and its outcome may be unknown to both. So
counts name the owner whose they were, and are for the owner that follows it directly, whichever broker that is. Between
the two no message was delivered. Any later owner follows one that has delivered messages itself: what is kept is out of
date then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.model.names import SegmentName

if TYPE_CHECKING:
    from engine.broker.delivery.redelivery import RedeliveryCounts
    from engine.broker.segment.hosted import HostedSegment

_SEGMENTS_MAX = 1_000


@dataclass(frozen=True, slots=True, order=True)
class Reign:
    """One owner of a segment. `born`: tells the segment from earlier ones of its name; `term` counts its owners."""

    born: int
    term: int

    @classmethod
    def of(cls, hosted: HostedSegment) -> Reign:
        lease = hosted.segment.lease
        return cls(0 if lease is None else lease.born, hosted.term)

    @property
    def next(self) -> Reign:
        return Reign(self.born, self.term + 1)


class InheritedCounts:
    """Of segments that were not opened here since."""

    def __init__(self) -> None:
        self._kept: dict[SegmentName, tuple[Reign, dict[str, RedeliveryCounts]]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, segment: SegmentName, last: Reign, counts: Mapping[str, RedeliveryCounts]) -> None:
        """The counts of the owner that closes the segment now, by subscription."""
        self._kept.pop(segment, None)
        self._kept[segment] = last.next, dict(counts)
        while len(self._kept) > _SEGMENTS_MAX:  # it was never opened here
            del self._kept[next(iter(self._kept))]

    def drop(self, segment: SegmentName, subscription: str | None = None) -> None:
        """Another broker has the segment; or the subscription was deleted."""
        if subscription is None:
            self._kept.pop(segment, None)
        elif segment in self._kept:
            self._kept[segment][1].pop(subscription, None)

    def take(self, hosted: HostedSegment, subscription: str) -> RedeliveryCounts | None:
        """The counts for a subscription that is being opened; None: there are none, or not for this owner."""
        heir, counts = self._kept.get(hosted.name, (None, {}))
        if heir is None:
            return None
        reign = Reign.of(hosted)
        if reign > heir:
            del self._kept[hosted.name]
        return counts.pop(subscription, None) if reign == heir else None
