"""What the control plane asks of the segments of this broker: its SegmentHost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from engine._native.format.offsets import range_set
from engine.aio.semaphore import AsyncSemaphore
from engine.aio.tasks import Supervisor
from engine.broker.delivery.redelivery import RedeliveryCounts
from engine.broker.delivery.subscription import HostedSubscription
from engine.broker.hosting.leader_terms import LeaderTerms
from engine.broker.hosting.open_segments import OpenSegments
from engine.broker.hosting.ownership import Ownership
from engine.broker.hosting.statistics import segment_statistics
from engine.broker.pools.file_reads import FileReads
from engine.broker.segment.hosted import HostedSegment
from engine.control.base.ports import SegmentEnd, SegmentSpec, SegmentStatistics
from engine.control.subscription.subscriptions import deleted_subscription
from engine.errors import (
    EngineError,
    InvalidArgumentError,
    NotFoundError,
    NotOwnerError,
    StorageError,
    TransactionConflictError,
)
from engine.metadata import keys
from engine.model.names import SegmentName, TopicName
from engine.model.subscriptions import InitialPosition, SubscriptionMetadata, SubscriptionState
from engine.storage.dedup.dedup import held_in, pack_held

if TYPE_CHECKING:
    from engine.metadata.store import MetadataStore
    from engine.storage.cursor.cursor import Cursor
    from engine.storage.store import SegmentStore

log = logging.getLogger(__name__)

_WATCH_AGAIN_S = 1.0  # a segment whose backlog could not be looked at is looked at again after this time


class SegmentHosting(OpenSegments):
    """Implements control.ports.SegmentHost over the local storage. Loop thread only."""

    def __init__(
        self,
        store: SegmentStore,
        metadata: MetadataStore,
        ownership: Ownership,
        *,
        loads: AsyncSemaphore | None = None,
        reads: FileReads | None = None,
    ) -> None:
        super().__init__(store, metadata, ownership, loads=loads, reads=reads)
        self._leaders = LeaderTerms(metadata)
        self._tasks = Supervisor("segments")
        # Of a subscription in a segment: held while it is opened or deleted. As long as a task holds or awaits it.
        self._turns: WeakValueDictionary[tuple[SegmentName, str], asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """Let everybody attached go and write everything out."""
        self._closed = True
        await self._tasks.close()
        await super().close()

    # -- the life of a segment -------------------------------------------------------------------------------------

    async def create_segment(self, spec: SegmentSpec, subscriptions: Sequence[str], *, term: int) -> None:
        """See the port. Raises StorageError when it is to be a new one and there is something in it."""
        await self._leaders.confirm(spec.name.topic, term)
        hosted = await self.open(spec, create=True)
        self._leaders.check(spec.name.topic, term)
        hosted.incoming.heir = True  # only a change of a topic's shape announces segments
        used = hosted.segment.sealed or hosted.segment.next_offset
        if used and not await self.is_in_layout(spec.name):
            raise StorageError(f"{spec.name} holds what an earlier topic of that name left; delete it first")
        for name in subscriptions:
            await self._cursors.create(hosted.name, name, 0)

    async def terminate_segment(self, spec: SegmentSpec, *, term: int) -> SegmentEnd:
        """See the port. Every append either is durable and answered before its producer hears of the end, or refused.

        Consumers that have everything are told REACHED_END without another message.
        """
        await self._leaders.confirm(spec.name.topic, term)
        hosted = await self.open(spec, create=not spec.sealed)
        self._leaders.check(spec.name.topic, term)
        end = await hosted.seal()
        return SegmentEnd(end, hosted.segment.dedup_snapshot() + pack_held(hosted.held))

    async def inherit(self, spec: SegmentSpec, producers: Sequence[bytes], *, term: int) -> None:
        """See the port."""
        await self._leaders.confirm(spec.name.topic, term)
        hosted = await self.open(spec, create=True)
        self._leaders.check(spec.name.topic, term)
        await hosted.segment.inherit(producers)
        hosted.access.reserve(held for bequest in producers for held in held_in(bequest))

    async def delete_segment(self, spec: SegmentSpec, *, term: int) -> None:
        """See the port."""
        await self._leaders.confirm(spec.name.topic, term)
        await self._delete(spec.name, lambda: self._leaders.confirm(spec.name.topic, term))

    # -- subscriptions ---------------------------------------------------------------------------------------------

    async def subscription(
        self, hosted: HostedSegment, name: str, facts: SubscriptionMetadata | None = None
    ) -> HostedSubscription:
        """A subscription that exists for the topic; where it has no cursor here yet, it gets one.

        In an active segment at the earliest. A sealed one ended before the subscription began: its initial position
        decides. `facts`: what was read of it; None: it cannot be deleted meanwhile. Raises SubscriptionNotFoundError
        when it was: a cursor that is made after its deletion would keep messages that no consumer can acknowledge.
        """
        found = hosted.subscriptions.get(name)
        if found is None:
            async with self._turn(hosted.name, name):
                if facts is not None:
                    await self._check_there(hosted.name.topic, facts)
                found = hosted.subscriptions.get(name) or await self._make(hosted, name, facts)
        return found

    async def _make(self, hosted: HostedSegment, name: str, facts: SubscriptionMetadata | None) -> HostedSubscription:
        skips = hosted.segment.sealed and facts is not None and facts.initial_position is InitialPosition.LATEST
        start = hosted.readable if skips else 0
        cursor = await self._cursors.create(hosted.name, name, start, hosted.segment.lease)
        return await self._opened_subscription(hosted, name, cursor)

    async def _check_there(self, topic: TopicName, facts: SubscriptionMetadata) -> None:
        """Raise SubscriptionNotFoundError when it is not as it was read: its deletion comes to this segment, or has."""
        record = await self._metadata.get(keys.subscription(topic, facts.name))
        now = None if record is None else SubscriptionMetadata.from_json(record.value)
        if now is None or now.state is SubscriptionState.DELETING or now.created_at_ms != facts.created_at_ms:
            raise deleted_subscription(topic, facts.name)

    def _turn(self, segment: SegmentName, subscription: str) -> asyncio.Lock:
        return self._turns.setdefault((segment, subscription), asyncio.Lock())

    async def known_subscription(self, hosted: HostedSegment, name: str) -> HostedSubscription | None:
        """The same; None when it has no cursor here."""
        found = hosted.subscriptions.get(name)
        if found is None:
            async with self._turn(hosted.name, name):
                try:
                    cursor = await self._cursors.open(hosted.name, name, hosted.segment.lease)
                except NotFoundError:
                    return None
                found = await self._opened_subscription(hosted, name, cursor)
        return found

    async def _opened_subscription(self, hosted: HostedSegment, name: str, cursor: Cursor) -> HostedSubscription:
        """With what transactions have acknowledged, before anybody gets a message."""
        pending = await self.operations.acks(hosted.name, name)
        hosted.check_open()
        cursor.pass_gaps(hosted.segment.gaps)
        found = hosted.subscriptions.get(name)
        if found is None:
            found = hosted.subscriptions[name] = HostedSubscription(hosted, name, cursor, self._participation)
            found.pending.restore(pending)
        return found

    async def acknowledged(self, hosted: HostedSegment, subscriptions: Iterable[str]) -> int:
        """The offset below which all of these need nothing, whatever happens; where readers wait when there are none.

        Makes no cursor.
        """
        position = hosted.readable
        for name in subscriptions:
            found = await self.known_subscription(hosted, name)
            if found is not None:
                position = min(position, await found.settled())
            elif not hosted.segment.sealed:
                return 0  # nothing was acknowledged here yet, or it is being deleted: the next look knows more
        return position

    async def acknowledged_by(self, hosted: HostedSegment, subscription: str) -> int:
        """The same for one subscription. Raises NotFoundError when the topic has none of that name."""
        if await self.known_subscription(hosted, subscription) is None:
            topic = hosted.name.topic
            record = await self._metadata.get(keys.subscription(topic, subscription))
            if record is None or SubscriptionMetadata.from_json(record.value).state is SubscriptionState.DELETING:
                raise NotFoundError(f"{topic} has no subscription {subscription!r}")
        return await self.acknowledged(hosted, [subscription])

    async def drained(self, hosted: HostedSegment, subscriptions: Iterable[str]) -> bool:
        """Whether it is sealed, nothing in it is undecided, and none of these has anything left in it (SEMANTICS 7).

        Makes no cursor.
        """
        for name in subscriptions:
            found = await self.known_subscription(hosted, name)
            if found is not None and not found.drained:
                return False
        return hosted.segment.sealed and hosted.readable == hosted.segment.durable_offset

    async def stored(self, topic: TopicName) -> list[SegmentName]:
        """See the port."""
        return await self._store.list(topic)

    async def check_gone(self, spec: SegmentSpec) -> None:
        """A sealed segment has no store: raise StorageError when nothing of the topic has one, since all cannot go."""
        if spec.sealed and not await self.stored(spec.name.topic):
            raise StorageError(f"{spec.name}: the data directory has nothing of its topic; is the right disk mounted?")

    async def subscriptions(self, spec: SegmentSpec) -> list[str]:
        """See the port."""
        if self._ownership.may_own(spec.name):
            await self.open_existing(spec)  # a change finds here what could not be sealed, while it can still be undone
        return [name for name, _ in await self._cursors.list(spec.name)]

    async def create_subscription(
        self, spec: SegmentSpec, subscription: str, position: InitialPosition, *, term: int
    ) -> None:
        """See the port."""
        await self._leaders.confirm(spec.name.topic, term)
        offset = 0
        if position is InitialPosition.LATEST:
            hosted = await self.open_existing(spec)
            offset = 0 if hosted is None else hosted.readable
            self._leaders.check(spec.name.topic, term)
        await self._cursors.create(spec.name, subscription, offset)

    async def delete_subscription(self, spec: SegmentSpec, subscription: str, *, term: int) -> None:
        """See the port."""
        await self._leaders.confirm(spec.name.topic, term)
        async with self._turn(spec.name, subscription):
            hosted = self._hosted.get(spec.name)
            if hosted is not None and (found := hosted.subscriptions.pop(subscription, None)) is not None:
                found.delete(deleted_subscription(spec.name.topic, subscription))
                await found.end()
            await self.operations.forget_subscription(spec.name, subscription)
            await self._cursors.delete(spec.name, subscription)

    async def seek_subscription(self, spec: SegmentSpec, subscription: str, offset: int | InitialPosition) -> None:
        """See the port."""
        hosted = await self.open_existing(spec)
        if hosted is None:
            return
        found = await self.subscription(hosted, subscription)
        segment = hosted.segment
        if isinstance(offset, InitialPosition):
            offset = segment.first_offset if offset is InitialPosition.EARLIEST else hosted.readable
        # Nobody is attached from the moment the cursor is elsewhere: what they acknowledge would move it once more.
        found.seeks += 1
        found.close(NotOwnerError(f"{found} is moved to {offset}; attach again"))
        found.pending.drop()
        await found.cursor.seek(min(max(offset, segment.first_offset), segment.durable_offset))
        found.cursor.pass_gaps(segment.gaps)
        await self.operations.forget_subscription(hosted.name, subscription)
        found.redeliveries = RedeliveryCounts()
        found.look()

    async def skip_messages(self, spec: SegmentSpec, subscription: str, first: int, last: int) -> None:
        """See the port."""
        hosted = await self.open_existing(spec)
        if hosted is None:
            raise NotFoundError(f"{spec.name} has no store")
        end = hosted.segment.durable_offset
        if not 0 <= first <= last < end:
            raise InvalidArgumentError(f"the offsets must be first <= last below {end}, got {first}..{last}")
        found = await self.subscription(hosted, subscription)
        if held := found.pending.offsets & range_set(first, last):
            text = f"an open transaction acknowledges {len(held)} of the offsets {first}..{last}; end it first"
            raise TransactionConflictError(text)
        hosted.skipped_messages += found.unacked_count(first, last + 1)
        await found.skip(first, last)

    async def settle_transactions(self, spec: SegmentSpec, subscription: str | None) -> None:
        """See broker.transactions.Participant."""
        hosted = await self.open_existing(spec)
        if hosted is None:
            await self.check_gone(spec)
            raise NotFoundError(f"{spec.name} has no store")
        if subscription is None:
            if hosted.transactions is None:
                raise NotFoundError(f"{spec.name} has nothing of transactions; an earlier one of its name had")
            await hosted.transactions.settle()
            return
        found = await self.known_subscription(hosted, subscription)
        if found is None:
            raise NotFoundError(f"subscription {subscription!r} has no cursor in {spec.name}")
        await found.pending.settle()

    # -- what there is ---------------------------------------------------------------------------------------------

    async def offset_at(self, spec: SegmentSpec, time_ms: int) -> int:
        """See the port."""
        hosted = await self.open_existing(spec)
        return 0 if hosted is None else min(await hosted.segment.offset_at(time_ms), hosted.readable)

    async def backlog(self, spec: SegmentSpec, subscription: str) -> int:
        """See the port."""
        hosted = await self.open_existing(spec)
        if hosted is None:
            await self.check_gone(spec)
            return 0
        found = await self.known_subscription(hosted, subscription)
        if found is None:
            return 0 if hosted.segment.sealed else hosted.messages
        if not found.backlog:
            await found.cursor.settled()  # whoever hears of zero lets the segment go
        return found.backlog

    async def statistics(self, spec: SegmentSpec) -> SegmentStatistics:
        """See the port."""
        hosted = await self.open_existing(spec)
        if hosted is None:
            return SegmentStatistics(sealed=spec.sealed)
        for name, _ in await self._cursors.list(spec.name):
            await self.known_subscription(hosted, name)
        return segment_statistics(hosted)

    def segment_url(self, name: SegmentName) -> str:
        """See the port."""
        return self._ownership.url_of(name)

    def watch_drained(self, spec: SegmentSpec, subscription: str, drained: Callable[[], None]) -> Callable[[], None]:
        """See the port."""
        watch = _DrainWatch(drained)
        self._tasks.spawn(self._watch_drained(spec, subscription, watch), f"drain of {spec.name}")
        return watch.cancel

    async def _watch_drained(self, spec: SegmentSpec, subscription: str, watch: _DrainWatch) -> None:
        """Consumers wait for this: whatever stands in the way for a while must not end it."""
        while not watch.cancelled:
            try:
                await self._begin_watch(spec, subscription, watch)
                return
            except EngineError as e:
                if self._closed:
                    return
                log.warning("whether %s is drained for %r cannot be seen for now: %s", spec.name, subscription, e)
            await asyncio.sleep(_WATCH_AGAIN_S)

    async def _begin_watch(self, spec: SegmentSpec, subscription: str, watch: _DrainWatch) -> None:
        hosted = await self.open_existing(spec)
        if hosted is None:
            await self.check_gone(spec)
        found = None if hosted is None else await self.known_subscription(hosted, subscription)
        if hosted is None or found is None:
            watch.fire()  # retention has taken the store, or the subscription began when it was sealed already
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
