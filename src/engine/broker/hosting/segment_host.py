"""`SegmentHosting`: the control plane's port to the segments of this broker, its SegmentHost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.aio.tasks import Supervisor
from engine.broker.hosting.leader_terms import LeaderTerms
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.open_subscriptions import OpenSubscriptions
from engine.control.base.ports import HostedSegmentStatistics, SegmentEnd, SegmentSpec
from engine.errors import (
    EngineError,
    NotFoundError,
    StorageError,
)
from engine.model.names import SegmentName, TopicName
from engine.model.subscriptions import InitialPosition

if TYPE_CHECKING:
    from engine.metadata.store import MetadataStore
    from engine.storage.store import SegmentStore

log = logging.getLogger(__name__)

_WATCH_AGAIN_S = 1.0  # until a backlog that could not be read is read again


class SegmentHosting:
    """Implements control.base.ports.SegmentHost over this broker's open segments."""

    def __init__(
        self, segments: OpenSegments, subscriptions: OpenSubscriptions, store: SegmentStore, metadata: MetadataStore
    ) -> None:
        self._segments = segments
        self._subscriptions = subscriptions
        self._cursors = store.cursors
        self._leaders = LeaderTerms(metadata)
        self._tasks = Supervisor("segments")
        self._closed = False

    async def close(self) -> None:
        """Detach all clients, close all segments, durably."""
        self._closed = True
        await self._tasks.close()
        await self._segments.close()

    def is_open(self, name: SegmentName) -> bool:
        """Whether the segment is open on this broker, which owns it."""
        return self._segments.get(name) is not None

    # -- the life of a segment -------------------------------------------------------------------------------------

    async def create_segment(self, spec: SegmentSpec, subscriptions: Sequence[str], *, term: int) -> None:
        """See the port. Raises StorageError when it must be new and its store is not empty."""
        await self._leaders.confirm(spec.name.topic, term)
        hosted = await self._segments.open(spec, create=True)
        self._leaders.check(spec.name.topic, term)
        hosted.incoming.heir = True  # only a reshape announces segments
        used = hosted.segment.sealed or hosted.segment.next_offset
        if used and not await self._segments.is_in_layout(spec.name):
            raise StorageError(
                f"{spec.name} must be empty, got messages of an earlier topic of that name; delete it first"
            )
        for name in subscriptions:
            await self._cursors.create(hosted.name, name, 0)

    async def terminate_segment(self, spec: SegmentSpec, *, term: int) -> SegmentEnd:
        """See the port. Every append is either durable and answered before its producer learns of the seal, or refused.

        Consumers that have received everything get REACHED_END without another message.
        """
        await self._leaders.confirm(spec.name.topic, term)
        hosted = await self._segments.open(spec, create=not spec.sealed)
        self._leaders.check(spec.name.topic, term)
        end = await hosted.seal()
        from engine.storage.dedup.dedup import pack_held

        return SegmentEnd(end, hosted.segment.dedup_snapshot() + pack_held(hosted.held))

    async def inherit(self, spec: SegmentSpec, producers: Sequence[bytes], *, term: int) -> None:
        await self._leaders.confirm(spec.name.topic, term)
        hosted = await self._segments.open(spec, create=True)
        self._leaders.check(spec.name.topic, term)
        await hosted.segment.inherit(producers)
        from engine.storage.dedup.dedup import held_in

        hosted.access.reserve(held for bequest in producers for held in held_in(bequest))

    async def delete_segment(self, spec: SegmentSpec, *, term: int) -> None:
        await self._leaders.confirm(spec.name.topic, term)
        await self._segments.delete(spec.name, lambda: self._leaders.confirm(spec.name.topic, term))

    # -- subscriptions ---------------------------------------------------------------------------------------------

    async def stored(self, topic: TopicName) -> list[SegmentName]:
        return await self._segments.stored(topic)

    async def subscriptions(self, spec: SegmentSpec) -> list[str]:
        if await self._segments.may_own(spec.name):
            # A change finds here what could not be sealed, while it can still be undone.
            await self._segments.open_existing(spec)
        return [name for name, _ in await self._cursors.list(spec.name)]

    async def create_subscription(
        self, spec: SegmentSpec, subscription: str, position: InitialPosition, *, term: int
    ) -> None:
        await self._leaders.confirm(spec.name.topic, term)
        offset = 0
        if position is InitialPosition.LATEST:
            hosted = await self._segments.open_existing(spec)
            offset = 0 if hosted is None else hosted.readable
            self._leaders.check(spec.name.topic, term)
        await self._cursors.create(spec.name, subscription, offset)
        self._segments.stirred(spec.name, True)

    async def delete_subscription(self, spec: SegmentSpec, subscription: str, *, term: int) -> None:
        await self._leaders.confirm(spec.name.topic, term)
        await self._subscriptions.delete(spec.name, subscription)

    async def seek_subscription(self, spec: SegmentSpec, subscription: str, offset: int | InitialPosition) -> None:
        hosted = await self._segments.open_existing(spec)
        if hosted is not None:
            await self._subscriptions.seek(hosted, subscription, offset)

    async def skip_messages(self, spec: SegmentSpec, subscription: str, first: int, last: int) -> None:
        hosted = await self._segments.open_existing(spec)
        if hosted is None:
            raise NotFoundError(f"{spec.name} has no store")
        await self._subscriptions.skip(hosted, subscription, first, last)

    async def settle_transactions(self, spec: SegmentSpec, subscription: str | None) -> None:
        hosted = await self._segments.open_existing(spec)
        if hosted is None:
            await self._segments.check_gone(spec)
            raise NotFoundError(f"{spec.name} has no store")
        if subscription is None:
            if hosted.transactions is None:
                raise NotFoundError(f"{spec.name} has no transactions; an earlier segment of its name had")
            await hosted.transactions.settle()
            return
        found = await self._subscriptions.find(hosted, subscription)
        if found is None:
            raise NotFoundError(f"subscription {subscription!r} has no cursor in {spec.name}")
        await found.pending.settle()

    # -- what there is ---------------------------------------------------------------------------------------------

    async def offset_at(self, spec: SegmentSpec, time_ms: int) -> int:
        hosted = await self._segments.open_existing(spec)
        return 0 if hosted is None else min(await hosted.segment.offset_at(time_ms), hosted.readable)

    async def backlog(self, spec: SegmentSpec, subscription: str) -> int:
        hosted = await self._segments.open_existing(spec)
        if hosted is None:
            await self._segments.check_gone(spec)
            return 0
        found = await self._subscriptions.find(hosted, subscription)
        if found is None:
            return 0 if hosted.segment.sealed else hosted.messages
        if not found.backlog:
            await found.cursor.settled()  # durable first: after a zero the segment may be deleted
        return found.backlog

    async def statistics(self, spec: SegmentSpec) -> HostedSegmentStatistics:
        hosted = await self._segments.open_existing(spec)
        if hosted is None:
            return HostedSegmentStatistics(sealed=spec.sealed)
        for name, _ in await self._cursors.list(spec.name):
            await self._subscriptions.find(hosted, name)
        from engine.broker.hosting.statistics import segment_statistics

        return segment_statistics(hosted)

    async def segment_urls(self, names: Sequence[SegmentName]) -> list[str]:
        return await self._segments.urls(names)

    def watch_drained(self, spec: SegmentSpec, subscription: str, drained: Callable[[], None]) -> Callable[[], None]:
        watch = _DrainWatch(drained)
        self._tasks.spawn(self._watch_drained(spec, subscription, watch), f"drain of {spec.name}")
        return watch.cancel

    async def _watch_drained(self, spec: SegmentSpec, subscription: str, watch: _DrainWatch) -> None:
        """Poll until drained; consumers of the children wait for it, so transient errors are retried."""
        while not watch.cancelled:
            try:
                await self._begin_watch(spec, subscription, watch)
                return
            except EngineError as e:
                if self._closed:
                    return
                log.warning("the backlog of %s for %r cannot be read, retrying: %s", spec.name, subscription, e)
            await asyncio.sleep(_WATCH_AGAIN_S)

    async def _begin_watch(self, spec: SegmentSpec, subscription: str, watch: _DrainWatch) -> None:
        hosted = await self._segments.open_existing(spec)
        if hosted is None:
            await self._segments.check_gone(spec)
        found = None if hosted is None else await self._subscriptions.find(hosted, subscription)
        if hosted is None or found is None:
            watch.fire()  # expired by retention, or the subscription was created after the seal
            return
        hosted.check_open()
        if not watch.cancelled:
            watch.undo = found.when_drained(watch.fire)


class _DrainWatch:
    """One watch_drained(): fires at most once, and not after cancel()."""

    __slots__ = ("_callback", "cancelled", "undo")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.cancelled = False
        self.undo: Callable[[], None] | None = None

    def fire(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            self._callback()

    def cancel(self) -> None:
        self.cancelled = True
        if self.undo is not None:
            self.undo()
