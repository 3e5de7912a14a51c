"""The segments this broker owns: opened when first needed, and changed as the control plane asks (its SegmentHost)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from engine.aio.tasks import Supervisor
from engine.broker.redelivery import RedeliveryCounts
from engine.broker.topics import HostedSegment, HostedSubscription
from engine.control.ports import SegmentEnd, SegmentSpec, SegmentStatistics, SubscriptionStatistics
from engine.errors import (
    AlreadyClosedError,
    FencedError,
    NotFoundError,
    NotOwnerError,
    SegmentSealedError,
    StorageError,
)
from engine.metadata import keys, unsure
from engine.metadata.store import ABSENT, ConflictError, MetadataStore, OutcomeUnknownError
from engine.model.names import SegmentName, TopicName
from engine.model.subscriptions import InitialPosition

if TYPE_CHECKING:
    from engine.storage.store import SegmentStore

log = logging.getLogger(__name__)

_CLAIMS_MAX = 16


class SegmentHosting:
    """Implements control.ports.SegmentHost over the local storage. Loop thread only.

    Opening a segment takes its ownership: a term, larger than any before, written to the metadata store by
    compare-and-set and stamped into everything appended under it (L1).
    """

    def __init__(self, store: SegmentStore, metadata: MetadataStore, url: str) -> None:
        self._store = store
        self._cursors = store.cursors
        self._metadata = metadata
        self._url = url
        self._tasks = Supervisor("segments")
        self._hosted: dict[SegmentName, HostedSegment] = {}
        self._opening: dict[SegmentName, asyncio.Task[HostedSegment]] = {}
        self._leaving: dict[SegmentName, asyncio.Task[None]] = {}  # being unloaded
        self._leader_terms: dict[TopicName, int] = {}
        self._closed = False

    def __iter__(self) -> Iterator[HostedSegment]:
        return iter(list(self._hosted.values()))

    def __len__(self) -> int:
        return len(self._hosted)

    # -- opening ---------------------------------------------------------------------------------------------------

    def get(self, name: SegmentName) -> HostedSegment | None:
        """The segment, if it is open."""
        hosted = self._hosted.get(name)
        if hosted is not None:
            hosted.idle_since = None
        return hosted

    async def open(self, spec: SegmentSpec, *, create: bool) -> HostedSegment:
        """The open segment. `create` makes a missing store: right for active segments alone (SEMANTICS 28).

        Raises NotFoundError, CorruptionError, StorageError, AlreadyClosedError.
        """
        while (hosted := self.get(spec.name)) is None:
            if self._closed:
                raise AlreadyClosedError("the broker is closing")
            task = self._opening.get(spec.name)
            mine = task is None
            if task is None:
                task = self._opening[spec.name] = asyncio.create_task(self._open(spec, create))
                task.add_done_callback(lambda done: self._opened(spec.name, done))
            try:
                return await asyncio.shield(task)
            except NotFoundError:
                if mine or not create:
                    raise  # otherwise: somebody else looked without creating; now it is our turn
        return hosted

    async def _open(self, spec: SegmentSpec, create: bool) -> HostedSegment:
        await self._left(spec.name)
        term = await self._claim(spec.name)
        enter = self._store.create if create else self._store.open
        segment = await enter(spec.name, durability=spec.durability, bucket_ends=spec.bucket_ends, term=term)
        return HostedSegment(spec, segment, term)

    def _opened(self, name: SegmentName, task: asyncio.Task[HostedSegment]) -> None:
        del self._opening[name]
        if not task.cancelled() and task.exception() is None:
            self._hosted[name] = task.result()

    async def _claim(self, name: SegmentName) -> int:
        """Take ownership; the term under which it is held. Raises StorageError when the store stays unsure.

        A claim whose outcome is unknown is given up for the next term: should it have been made, it is ours.
        """
        key = keys.segment(name)
        for _ in range(_CLAIMS_MAX):
            record = await self._metadata.get(key)
            term = 1 if record is None else int(json.loads(record.value)["term"]) + 1
            value = json.dumps({"owner": self._url, "term": term}).encode()
            try:
                await self._metadata.put(key, value, ABSENT if record is None else record.stat.version)
            except (ConflictError, OutcomeUnknownError):
                continue
            return term
        raise StorageError(f"{name}: the metadata store does not say who owns it; try again")

    # -- unloading -------------------------------------------------------------------------------------------------

    async def unload(self, hosted: HostedSegment) -> bool:
        """Close a segment that nobody uses; it is opened again when somebody comes. False: it is in use."""
        if hosted.in_use or self._hosted.get(hosted.name) is not hosted:
            return False
        hosted.closed = True
        del self._hosted[hosted.name]
        task = self._leaving[hosted.name] = asyncio.create_task(self._unload(hosted))
        task.add_done_callback(lambda _: self._leaving.pop(hosted.name, None))
        await asyncio.shield(task)
        return True

    async def _unload(self, hosted: HostedSegment) -> None:
        for subscription in hosted.subscriptions.values():
            await subscription.cursor.close()
        await self._store.release(hosted.name)

    async def _left(self, name: SegmentName) -> None:
        """Wait while it is being unloaded."""
        leaving = self._leaving.get(name)
        if leaving is not None:
            await asyncio.wait([leaving])

    async def rolled(self, topics: Iterable[TopicName]) -> list[SegmentName]:
        """The segments of these topics that are not open and have more than one file, so that some may go."""
        found = await self._store.rolled(topics)
        return [name for name in found if name not in self._hosted]

    async def subscription(self, hosted: HostedSegment, name: str) -> HostedSubscription:
        """A subscription that exists for the topic; where it has no cursor here yet, it starts at the earliest."""
        found = hosted.subscriptions.get(name)
        if found is None:
            cursor = await self._cursors.create(hosted.name, name, 0)
            hosted.check_open()
            found = hosted.subscriptions.setdefault(name, HostedSubscription(hosted, name, cursor))
        return found

    async def acknowledged(self, hosted: HostedSegment, subscriptions: Iterable[str]) -> int:
        """The offset below which all of these need nothing; the durable end when there are none. Makes no cursor."""
        position = hosted.segment.durable_offset
        for name in subscriptions:
            found = hosted.subscriptions.get(name)
            try:
                cursor = found.cursor if found is not None else await self._cursors.open(hosted.name, name)
            except NotFoundError:
                return 0  # nothing was acknowledged here yet, or it is being deleted: the next look knows more
            position = min(position, cursor.position)
        return position

    async def close(self) -> None:
        """Let everybody attached go and write everything out."""
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        await asyncio.gather(*self._opening.values(), *self._leaving.values(), return_exceptions=True)
        await self._tasks.close()
        for hosted in self:
            hosted.close_consumers(NotOwnerError(f"the broker of {hosted.name} is closing"))
            for subscription in hosted.subscriptions.values():
                await subscription.cursor.close()
        await self._store.close()
        self._hosted.clear()

    # -- control.ports.SegmentHost ---------------------------------------------------------------------------------

    async def create_segment(self, spec: SegmentSpec, subscriptions: Sequence[str], *, term: int) -> None:
        """See the port."""
        self._check_leader(spec.name.topic, term)
        hosted = await self.open(spec, create=True)
        for name in subscriptions:
            await self._cursors.create(hosted.name, name, 0)

    async def terminate_segment(self, spec: SegmentSpec, *, term: int) -> SegmentEnd:
        """See the port."""
        self._check_leader(spec.name.topic, term)
        hosted = await self.open(spec, create=True)
        end = await hosted.segment.seal(hosted.term)
        hosted.close_producers(SegmentSealedError(f"{spec.name} is sealed at {end}"))
        for subscription in hosted.subscriptions.values():
            subscription.look()
        return SegmentEnd(end, hosted.segment.dedup_snapshot())

    async def inherit(self, spec: SegmentSpec, producers: Sequence[bytes], *, term: int) -> None:
        """See the port."""
        self._check_leader(spec.name.topic, term)
        hosted = await self.open(spec, create=True)
        await hosted.segment.inherit(producers)

    async def delete_segment(self, spec: SegmentSpec, *, term: int) -> None:
        """See the port."""
        self._check_leader(spec.name.topic, term)
        opening = self._opening.get(spec.name)
        if opening is not None:
            await asyncio.wait([opening])
        await self._left(spec.name)
        hosted = self._hosted.pop(spec.name, None)
        if hosted is not None:
            hosted.close(NotFoundError(f"{spec.name} was deleted"))
        await self._store.delete(spec.name)
        for subscription, _ in await self._cursors.list(spec.name):
            await self._cursors.delete(spec.name, subscription)
        await unsure.delete(self._metadata, keys.segment(spec.name))

    async def subscriptions(self, spec: SegmentSpec) -> list[str]:
        """See the port."""
        return [name for name, _ in await self._cursors.list(spec.name)]

    async def create_subscription(
        self, spec: SegmentSpec, subscription: str, position: InitialPosition, *, term: int
    ) -> None:
        """See the port."""
        self._check_leader(spec.name.topic, term)
        offset = 0
        if position is InitialPosition.LATEST:
            hosted = await self._open_existing(spec)
            offset = 0 if hosted is None else hosted.segment.durable_offset
        await self._cursors.create(spec.name, subscription, offset)

    async def delete_subscription(self, spec: SegmentSpec, subscription: str, *, term: int) -> None:
        """See the port."""
        self._check_leader(spec.name.topic, term)
        hosted = self._hosted.get(spec.name)
        if hosted is not None and (found := hosted.subscriptions.pop(subscription, None)) is not None:
            found.close(NotFoundError(f"the subscription {subscription!r} was deleted"))
            await found.cursor.close()
        await self._cursors.delete(spec.name, subscription)

    async def seek_subscription(self, spec: SegmentSpec, subscription: str, offset: int | InitialPosition) -> None:
        """See the port."""
        hosted = await self._open_existing(spec)
        if hosted is None:
            return
        found = await self.subscription(hosted, subscription)
        segment = hosted.segment
        if isinstance(offset, InitialPosition):
            offset = segment.first_offset if offset is InitialPosition.EARLIEST else segment.durable_offset
        await found.cursor.seek(min(max(offset, segment.first_offset), segment.durable_offset))
        found.close(NotOwnerError(f"{found} was moved to {offset}; attach again"))
        found.redeliveries = RedeliveryCounts()
        found.look()

    async def offset_at(self, spec: SegmentSpec, time_ms: int) -> int:
        """See the port."""
        hosted = await self._open_existing(spec)
        return 0 if hosted is None else await hosted.segment.offset_at(time_ms)

    async def backlog(self, spec: SegmentSpec, subscription: str) -> int:
        """See the port."""
        hosted = await self._open_existing(spec)
        return 0 if hosted is None else (await self.subscription(hosted, subscription)).backlog

    def watch_drained(self, spec: SegmentSpec, subscription: str, drained: Callable[[], None]) -> Callable[[], None]:
        """See the port."""
        watch = _DrainWatch(drained)
        self._tasks.spawn(self._watch_drained(spec, subscription, watch), f"drain of {spec.name}")
        return watch.cancel

    async def _watch_drained(self, spec: SegmentSpec, subscription: str, watch: _DrainWatch) -> None:
        hosted = await self._open_existing(spec)
        if hosted is None:
            watch.fire()  # a sealed segment whose store retention has taken: there is nothing left to acknowledge
            return
        found = await self.subscription(hosted, subscription)
        if not watch.cancelled:
            watch.undo = found.when_drained(watch.fire)

    async def statistics(self, spec: SegmentSpec) -> SegmentStatistics:
        """See the port."""
        hosted = await self._open_existing(spec)
        if hosted is None:
            return SegmentStatistics()
        for name, _ in await self._cursors.list(spec.name):
            await self.subscription(hosted, name)
        hosted.sample()
        segment = hosted.segment
        return SegmentStatistics(
            first_offset=segment.first_offset,
            next_offset=segment.next_offset,
            size_bytes=segment.size_bytes,
            producers=len(hosted.producers),
            msg_rate_in=hosted.incoming.messages_per_s,
            bytes_rate_in=hosted.incoming.bytes_per_s,
            subscriptions={name: _statistics(s) for name, s in hosted.subscriptions.items()},
        )

    def segment_url(self, name: SegmentName) -> str:
        """See the port."""
        return self._url

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _open_existing(self, spec: SegmentSpec) -> HostedSegment | None:
        """The segment, or None when it has no store."""
        try:
            return await self.open(spec, create=False)
        except NotFoundError:
            return None

    def _check_leader(self, topic: TopicName, term: int) -> None:
        if term < self._leader_terms.get(topic, 0):
            raise FencedError(f"a leader of {topic} with the term {term} asks; {self._leader_terms[topic]} was seen")
        self._leader_terms[topic] = term


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


def _statistics(subscription: HostedSubscription) -> SubscriptionStatistics:
    return SubscriptionStatistics(
        backlog=subscription.backlog,
        consumers=len(subscription.consumers),
        msg_rate_out=subscription.out.messages_per_s,
        bytes_rate_out=subscription.out.bytes_per_s,
    )
