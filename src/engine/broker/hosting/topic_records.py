"""`TopicRecords`: what the metadata store says of one topic's subscriptions and segments, read at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from engine._native.format.offsets import range_set
from engine.broker.delivery.opened import subscriptions_of
from engine.broker.hosting.inventory import Backlogs, StoredSegment
from engine.broker.hosting.ownership import Owner
from engine.control.base.ports import SegmentSpec
from engine.metadata import keys
from engine.metadata.store import MetadataStore, Record
from engine.model.names import TopicName
from engine.model.subscriptions import SubscriptionMetadata, SubscriptionState
from engine.storage.cursor.cursor import stored_cursor
from engine.storage.cursor.pieces import whole
from engine.storage.cursor.visibility import unpack as unpack_visibility
from engine.storage.file.extent import Extent

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment

_RECORDS_AT_ONCE = 1_000

Hidden = Callable[[int, int], BitMap64 | None]


@dataclass(slots=True)
class TopicRecords:
    """The usable subscriptions, and by segment id: cursors by subscription, owner, ranges of aborted transactions."""

    metadata: MetadataStore
    subscriptions: list[str] = field(default_factory=list)
    cursors: dict[int, dict[str, Record]] = field(default_factory=dict)
    owners: dict[int, Owner] = field(default_factory=dict)
    visibility: dict[int, Record] = field(default_factory=dict)

    def born(self, segment_id: int) -> int:
        """The term of the segment's first owner (storage.file.owners.Lease); 0: unknown."""
        owner = self.owners.get(segment_id)
        return 0 if owner is None else owner.born or 0

    def closed(self, spec: SegmentSpec, extent: Extent) -> StoredSegment:
        """The record of a closed segment. Raises CorruptionError, UnsupportedError."""
        first, end = extent.first_offset, extent.end_offset
        hidden = self._hidden(spec.name.segment_id, extent)
        without = hidden(first, end)
        messages = end - first - (0 if without is None else len(without))
        sealed = spec.sealed or extent.sealed
        backlogs = self._backlogs(spec.name.segment_id, first, end, hidden, 0 if sealed else messages)
        buckets = len(spec.bucket_ends)
        return StoredSegment(spec.name, extent.size_bytes, extent.files, sealed, buckets, messages, backlogs)

    def backlogs_in_open(self, hosted: HostedSegment) -> Backlogs:
        """Of the subscriptions that are not open in an open segment."""
        segment, opened = hosted.segment, subscriptions_of(hosted)
        first, end = segment.first_offset, segment.durable_offset
        without_cursor = 0 if segment.sealed else hosted.messages
        found = self._backlogs(hosted.name.segment_id, first, end, hosted.hidden, without_cursor)
        return tuple((name, count) for name, count in found if name not in opened)

    def _backlogs(self, segment_id: int, first: int, end: int, hidden: Hidden, without_cursor: int) -> Backlogs:
        cursors = self.cursors.get(segment_id, {})
        return tuple(
            (
                name,
                without_cursor if record is None else stored_cursor(self.metadata, record).waiting(first, end, hidden),
            )
            for name, record in ((name, cursors.get(name)) for name in self.subscriptions)
        )

    def _hidden(self, segment_id: int, extent: Extent) -> Hidden:
        """The offsets without a message, as HostedSegment.hidden() tells them of an open segment."""
        record, gaps = self.visibility.get(segment_id), extent.gaps
        aborted = None if record is None else unpack_visibility(record.value, record.key)[1]

        def hidden(start: int, stop: int) -> BitMap64 | None:
            found = gaps.within(start, stop)
            if not aborted or start >= stop:
                return found
            inside = aborted & range_set(start, stop - 1)
            return inside if found is None else found | inside

        return hidden


async def read_topic(metadata: MetadataStore, topic: TopicName) -> TopicRecords:
    """The records of a topic's subscriptions and segments. Raises CorruptionError, and what the store raises."""
    found = TopicRecords(metadata)
    subscriptions, segments = keys.subscriptions(topic), keys.segments(topic)
    async for record in _below(metadata, subscriptions):
        name, *rest = record.key[len(subscriptions) :].split("/")
        if not rest:
            facts = SubscriptionMetadata.from_json(record.value)
            if facts.state is not SubscriptionState.DELETING:
                found.subscriptions.append(facts.name)
        elif len(rest) == 2 and rest[0] == "cursors" and (cursor := await whole(metadata, record)) is not None:
            found.cursors.setdefault(int(rest[1]), {})[keys.decode(name)] = cursor
    async for record in _below(metadata, segments):
        segment_id, *rest = record.key[len(segments) :].split("/")
        if not rest:
            found.owners[int(segment_id)] = Owner.of(record)
        elif rest == ["visibility"] and (visibility := await whole(metadata, record)) is not None:
            found.visibility[int(segment_id)] = visibility
    return found


async def _below(metadata: MetadataStore, prefix: str) -> AsyncIterator[Record]:
    start, end = prefix, keys.prefix_end(prefix)
    while found := await metadata.mirror.list(start, end, _RECORDS_AT_ONCE):
        for record in found:
            yield record
        if len(found) < _RECORDS_AT_ONCE:
            return
        start = f"{found[-1].key}\0"
        await asyncio.sleep(0)  # let the loop serve other work
