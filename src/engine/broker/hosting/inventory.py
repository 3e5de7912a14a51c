"""`Inventory`: what is known of the segments that this broker answers for, open or not, without opening any.

A record is taken from the files and cursors of a closed segment (upkeep/stocktaking.py), and from memory when an open
one is closed. It stays while the segment is open: subscriptions that were not opened with it have their backlog from
there (`unopened`). Totals and the order by backlog are kept up to date with each change, so that a scrape costs what it
lists, however many records there are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from engine.broker.delivery.opened import subscriptions_of
from engine.model.names import SegmentName, TopicName

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment

Backlogs = tuple[tuple[str, int], ...]  # (subscription, messages not acknowledged)


class StoredSegment(msgspec.Struct, eq=False, gc=False):
    """A segment as it was when it was last closed, or measured. `messages`: stored ones that readers get."""

    name: SegmentName
    size_bytes: int
    files: int
    sealed: bool
    buckets: int
    messages: int
    backlogs: Backlogs
    rank: tuple[int, int, int] = (0, 0, 0)  # the inventory's

    @property
    def backlog(self) -> int:
        """Of all subscriptions together."""
        return sum(count for _, count in self.backlogs)


@dataclass(slots=True)
class Totals:
    """Sums over segments."""

    segments: int = 0
    files: int = 0
    size_bytes: int = 0
    backlog: int = 0

    def add(self, record: StoredSegment, sign: int = 1) -> None:
        self.segments += sign
        self.files += sign * record.files
        self.size_bytes += sign * record.size_bytes
        self.backlog += sign * record.backlog


def namespace_of(topic: TopicName) -> str:
    return f"{topic.tenant}/{topic.namespace}"


class Inventory:
    """Records by name. Loop thread only."""

    def __init__(self) -> None:
        self._topics: dict[TopicName, dict[int, StoredSegment]] = {}
        self._ranked: list[StoredSegment] = []  # by backlog, then size, the largest first
        self._totals: dict[str, Totals] = {}  # by namespace
        self._taken = 0
        self.came: Callable[[str], object] = lambda tenant: None  # the first segment of a namespace has

    def __len__(self) -> int:
        return len(self._ranked)

    def __iter__(self) -> Iterator[StoredSegment]:
        """Those with the largest backlog first, then the largest."""
        return iter(self._ranked)

    @property
    def topics(self) -> Iterable[TopicName]:
        """The topics with a record."""
        return self._topics.keys()

    def get(self, name: SegmentName) -> StoredSegment | None:
        found = self._topics.get(name.topic, {}).get(name.segment_id)
        return found if found is not None and found.name == name else None

    def put(self, record: StoredSegment) -> None:
        """Add a record; it replaces the one of that segment."""
        topic, segment_id = record.name.topic, record.name.segment_id
        of_topic = self._topics.get(topic)
        if of_topic is None:
            of_topic = self._topics[topic] = {}
        elif (before := of_topic.get(segment_id)) is not None:
            self._out(before)
        of_topic[segment_id] = record
        self._taken += 1
        record.rank = (-record.backlog, -record.size_bytes, self._taken)
        insort(self._ranked, record, key=_rank)
        totals = self._totals.get(namespace_of(topic))
        if totals is None:
            totals = self._totals[namespace_of(topic)] = Totals()
            self.came(topic.tenant)
        totals.add(record)

    def drop(self, name: SegmentName) -> None:
        """Remove the record of a segment, if there is one."""
        record = self.get(name)
        if record is not None:
            of_topic = self._topics[name.topic]
            del of_topic[name.segment_id]
            self._out(record)
            if not of_topic:
                del self._topics[name.topic]

    def tenants(self) -> set[str]:
        """Those of the records."""
        return {namespace.partition("/")[0] for namespace in self._totals}

    def of(self, topic: TopicName) -> list[StoredSegment]:
        """The records of a topic."""
        return list(self._topics.get(topic, {}).values())

    def keep(self, topic: TopicName, names: Iterable[SegmentName]) -> None:
        """Remove the records of a topic's other segments."""
        kept = set(names)
        for record in self.of(topic):
            if record.name not in kept:
                self.drop(record.name)

    def forget_subscription(self, name: SegmentName, subscription: str) -> None:
        """It was deleted: it has no backlog any more."""
        before = self.get(name)
        if before is not None and any(known == subscription for known, _ in before.backlogs):
            left = tuple(pair for pair in before.backlogs if pair[0] != subscription)
            self.put(_with_backlogs(before, left))

    def _out(self, record: StoredSegment) -> None:
        del self._ranked[bisect_left(self._ranked, record.rank, key=_rank)]
        namespace = namespace_of(record.name.topic)
        totals = self._totals[namespace]
        totals.add(record, -1)
        if not totals.segments:
            del self._totals[namespace]

    def rest(self, listed: Iterable[StoredSegment]) -> dict[str, Totals]:
        """The totals of each namespace without the listed records; only namespaces with others."""
        rest = {name: Totals(t.segments, t.files, t.size_bytes, t.backlog) for name, t in self._totals.items()}
        for record in listed:
            rest[namespace_of(record.name.topic)].add(record, -1)
        return {name: totals for name, totals in rest.items() if totals.segments}

    def unopened(self, hosted: HostedSegment) -> Backlogs:
        """The backlogs in an open segment of the subscriptions that are not open in it.

        Their cursors stand still: what was appended since the record was taken is added.
        """
        record = self.get(hosted.name)
        if record is None or not record.backlogs:
            return ()
        opened = subscriptions_of(hosted)
        left = [(name, count) for name, count in record.backlogs if name not in opened]
        if not left:
            return ()
        grown = hosted.messages - record.messages
        return tuple((name, max(0, count + grown)) for name, count in left)

    def close(self, hosted: HostedSegment) -> None:
        """Take the record of a segment that is being closed, with all that it holds in memory."""
        here = tuple((name, s.backlog) for name, s in subscriptions_of(hosted).items())
        self.put(stored_of(hosted, here + self.unopened(hosted)))


def stored_of(hosted: HostedSegment, backlogs: Backlogs) -> StoredSegment:
    """The record of an open segment."""
    segment = hosted.segment
    buckets = len(hosted.spec.bucket_ends)
    files = segment.statistics().files
    return StoredSegment(hosted.name, segment.size_bytes, files, segment.sealed, buckets, hosted.messages, backlogs)


def _rank(record: StoredSegment) -> tuple[int, int, int]:
    return record.rank


def _with_backlogs(record: StoredSegment, backlogs: Backlogs) -> StoredSegment:
    return StoredSegment(
        record.name, record.size_bytes, record.files, record.sealed, record.buckets, record.messages, backlogs
    )
