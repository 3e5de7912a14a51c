"""`Stocktaking`: measures the closed segments that this broker answers for, in the background, and opens none.

    every topic, page by page,                         closed segments of the topic that are this broker's
    ───────────────────────────────────────────  ───►  ────────────────────────────────────────────────────
    at the start and when brokers come or go;           layout, cursors, transactions: the metadata
    then those that are created here, and whose         offsets and size: file headers (storage/file/extent.py),
    segments are opened, closed, lost or deleted        or the objects that the segment's record names
                                                                      │
                                                                      ▼ Inventory

A segment belongs to the broker that owns it or was left it, and else to the one that placement names: of all brokers,
exactly one answers for it, and what changes a segment is done by that one. So nothing is watched. Topics are looked at
one by one, paced, so that clients are served in between; where there are other brokers all of them now and then, since
a broker may fail between two steps.
"""

from __future__ import annotations

import asyncio
import logging

from engine.aio.pace import Pace
from engine.broker.hosting.inventory import stored_of
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.ownership import Ownership
from engine.broker.hosting.topic_records import TopicRecords, read_topic
from engine.control.base.ports import SegmentSpec, segment_spec
from engine.control.base.topic_records import ScalableTopicResources, topic_of_key
from engine.errors import AlreadyClosedError, CorruptionError, EngineError, UnsupportedError
from engine.metadata import keys
from engine.metadata.store import MetadataStore, OutcomeUnknownError
from engine.model.layout import SegmentLayout
from engine.model.names import SegmentName, TopicName
from engine.storage.disk.config import OBJECT
from engine.storage.file.continuation import Gaps
from engine.storage.file.extent import NO_FILES, Extent
from engine.storage.store import SegmentStore

log = logging.getLogger(__name__)

AGAIN_S = 10.0  # until a topic whose records or files could not be read is looked at again
ALL_S = 600.0  # until all topics are looked at again, where there are other brokers


class Stocktaking:
    """Keeps `segments.inventory` current. Loop thread only."""

    def __init__(
        self, segments: OpenSegments, ownership: Ownership, store: SegmentStore, metadata: MetadataStore, pace: Pace
    ) -> None:
        """`pace`: of looking at one topic after the other."""
        self._segments = segments
        self._inventory = segments.inventory
        self._ownership = ownership
        self._store = store
        self._metadata = metadata
        self._resources = ScalableTopicResources(metadata)
        self._pace = pace
        self._due: dict[str, None] = {}  # keys of topics to be looked at, in order
        self._stale: set[SegmentName] = set()  # whose records are to be taken again
        self._moved: set[SegmentName] = set()  # opened, closed or deleted while a topic is being looked at
        self._again = 0  # of them failed, and wait for another attempt
        self._looking = False
        self._list = True  # all topics are to be looked at
        self._listing = False
        self._wake = asyncio.Event()
        segments.stirred = self._stirred
        ownership.brokers.changed.append(self._brokers_changed)

    @property
    def waiting(self) -> int:
        """The topics that are to be looked at. While there are any, the inventory may lack segments."""
        return len(self._due) + self._again + self._looking + self._list + self._listing

    # -- what happens ------------------------------------------------------------------------------------------------

    def _stirred(self, name: SegmentName, stale: bool) -> None:
        """The segment was opened, closed or deleted; `stale`: its record has to be taken anew."""
        self._moved.add(name)
        if stale:
            self._stale.add(name)
            self._look_at(keys.topic(name.topic))

    def topic_created(self, topic: TopicName) -> None:
        """By this broker; others look at its segments when they open them, or at all topics."""
        self._look_at(keys.topic(topic))

    def _brokers_changed(self) -> None:
        """A broker came or left: placement names others for segments without an owner."""
        self._list = True
        self._wake.set()

    def _look_at(self, key: str) -> None:
        self._due[key] = None
        self._wake.set()

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._wake.clear()
            if self._list:
                self._list, self._listing = False, True
                await self._look_at_all()
                self._listing = False
            while self._due:
                await self._look_at_next()
            try:
                async with asyncio.timeout(None if self._ownership.alone else ALL_S):
                    await self._wake.wait()
            except TimeoutError:
                self._list = True

    async def _look_at_all(self) -> None:
        """Page by page, so that what waits is bounded."""
        try:
            async for topics in self._resources.topic_pages():
                self._due |= dict.fromkeys(map(keys.topic, topics))
                while self._due:
                    await self._look_at_next()
        except AlreadyClosedError:
            return
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the topics to be measured could not be listed: %s", e)
            asyncio.get_running_loop().call_later(AGAIN_S, self._brokers_changed)

    async def _look_at_next(self) -> None:
        key = next(iter(self._due))
        await self._pace.turn()
        del self._due[key]
        self._looking = True
        await self._look_safely(key)
        self._looking = False

    async def _look_safely(self, key: str) -> None:
        try:
            await self._look(topic_of_key(key))
        except AlreadyClosedError:
            return
        except (EngineError, OutcomeUnknownError) as e:
            log.warning("the segments of %s could not be measured: %s", topic_of_key(key), e)
            self._again += 1
            asyncio.get_running_loop().call_later(AGAIN_S, self._look_again, key)

    def _look_again(self, key: str) -> None:
        self._again -= 1
        self._look_at(key)

    # -- one topic ---------------------------------------------------------------------------------------------------

    async def _look(self, topic: TopicName) -> None:
        self._moved.clear()
        record = await self._metadata.mirror.get(keys.topic(topic))
        layout = None if record is None else SegmentLayout.from_json(record.value)
        if layout is None or layout.deleting:
            self._inventory.keep(topic, ())
            return
        specs = [segment_spec(topic, layout, info) for info in layout.segments.values()]
        urls = await self._ownership.urls([spec.name for spec in specs])
        mine = [spec for spec, url in zip(specs, urls, strict=True) if self._answers_for(spec.name, url)]
        self._inventory.keep(topic, [spec.name for spec in mine])
        wanted = [s for s in mine if s.name in self._stale or self._inventory.get(s.name) is None]
        if wanted:
            records = await read_topic(self._metadata, topic)
            for spec in wanted:
                self._stale.discard(spec.name)
                await self._measure(spec, records)

    def _answers_for(self, name: SegmentName, url: str) -> bool:
        """`url`: of the broker that answers for it, by a read; this one may have claimed or closed it meanwhile."""
        return url == self._ownership.brokers.url or self._ownership.owns(name) or name in self._moved

    def _in_objects(self, name: SegmentName, records: TopicRecords) -> Extent:
        """What its ownership record names. Files of this disk may be those of a former owner.

        What is in logs alone is not in it; so a record that was taken when it was closed here knows more.
        """
        owner = records.owners.get(name.segment_id)
        objects = None if owner is None else owner.objects
        if objects is None:
            return NO_FILES
        size, end, known = objects.file_bytes, objects.named_end, self._inventory.get(name)
        if known is not None:
            size, end = max(size, known.size_bytes), max(end, objects.first + known.messages)
        return Extent(objects.first, end, Gaps(), size, objects.file_count, sealed=False)

    async def _measure(self, spec: SegmentSpec, records: TopicRecords) -> None:
        """Take the record of one segment, unless it was opened or closed meanwhile: then there is a newer one."""
        name = spec.name
        try:
            extent = NO_FILES
            if self._segments.peek(name) is None and spec.durability == OBJECT:
                extent = self._in_objects(name, records)
            elif self._segments.peek(name) is None:
                extent = await self._store.extent(name, spec.bucket_ends, records.born(name.segment_id))
                if extent is NO_FILES:
                    await self._segments.check_there(name)
            hosted = self._segments.peek(name)
            if hosted is not None:
                self._inventory.put(stored_of(hosted, records.backlogs_in_open(hosted)))
            elif name in self._moved:
                self._look_at(keys.topic(name.topic))
            else:
                self._inventory.put(records.closed(spec, extent))
        except (CorruptionError, UnsupportedError) as e:
            self._segments.found_damaged(name, e)
