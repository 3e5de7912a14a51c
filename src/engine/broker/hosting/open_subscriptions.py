"""`OpenSubscriptions`: the subscriptions of open segments: opened when first needed, moved, drained, deleted.

A subscription belongs to a topic; in a segment it is a cursor, created when its first consumer attaches to the segment.
Opening and deleting a subscription of one segment exclude each other, since a cursor created after the deletion of its
subscription would retain messages that no consumer can acknowledge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from engine._native.format.offsets import range_set
from engine.broker.delivery.opened import subscriptions_of
from engine.broker.hosting.inherited import InheritedCounts
from engine.broker.hosting.open_segments import OpenSegments
from engine.errors import InvalidArgumentError, NotFoundError, NotOwnerError, TransactionConflictError
from engine.metadata import keys
from engine.model.names import SegmentName, TopicName
from engine.model.subscriptions import InitialPosition, SubscriptionMetadata, SubscriptionState

if TYPE_CHECKING:
    from engine.broker.delivery.subscription import HostedSubscription
    from engine.broker.segment.hosted import HostedSegment
    from engine.metadata.store import MetadataStore
    from engine.storage.cursor.cursor import Cursor
    from engine.storage.cursor.store import CursorStore


class OpenSubscriptions:
    """Opens, finds, moves and deletes the cursors of open segments."""

    def __init__(self, segments: OpenSegments, cursors: CursorStore, metadata: MetadataStore) -> None:
        self._segments = segments
        self._operations = segments.operations
        self._cursors = cursors
        self._metadata = metadata
        self.inherited = InheritedCounts()
        # One lock per subscription in a segment, held while it is opened or deleted; kept while held or awaited.
        self._turns: WeakValueDictionary[tuple[SegmentName, str], asyncio.Lock] = WeakValueDictionary()

    async def open(
        self, hosted: HostedSegment, name: str, facts: SubscriptionMetadata | None = None
    ) -> HostedSubscription:
        """Open a subscription of the topic; create its cursor in this segment if there is none.

        A new cursor of an active segment begins at the earliest message; in a segment sealed before the subscription
        was created, its initial position decides. `facts`: its metadata as read; None: it cannot be deleted meanwhile.
        Raises SubscriptionNotFoundError when it was deleted since.
        """
        found = subscriptions_of(hosted).get(name)
        if found is None:
            async with self._turn(hosted.name, name):
                if facts is not None:
                    await self._check_there(hosted.name.topic, facts)
                found = subscriptions_of(hosted).get(name) or await self._make(hosted, name, facts)
        return found

    async def _make(self, hosted: HostedSegment, name: str, facts: SubscriptionMetadata | None) -> HostedSubscription:
        skips = hosted.segment.sealed and facts is not None and facts.initial_position is InitialPosition.LATEST
        start = hosted.readable if skips else 0
        cursor = await self._cursors.create(hosted.name, name, start, hosted.segment.lease)
        return await self._restore(hosted, name, cursor)

    async def _check_there(self, topic: TopicName, facts: SubscriptionMetadata) -> None:
        """Raise SubscriptionNotFoundError when its metadata changed: it was deleted, or its deletion is under way."""
        record = await self._metadata.newest.get(keys.subscription(topic, facts.name))
        now = None if record is None else SubscriptionMetadata.from_json(record.value)
        if now is None or now.state is SubscriptionState.DELETING or now.created_at_ms != facts.created_at_ms:
            from engine.control.subscription.subscriptions import deleted_subscription

            raise deleted_subscription(topic, facts.name)

    def _turn(self, segment: SegmentName, subscription: str) -> asyncio.Lock:
        return self._turns.setdefault((segment, subscription), asyncio.Lock())

    async def find(self, hosted: HostedSegment, name: str) -> HostedSubscription | None:
        """The subscription; None when it has no cursor here."""
        found = subscriptions_of(hosted).get(name)
        if found is None:
            async with self._turn(hosted.name, name):
                try:
                    cursor = await self._cursors.open(hosted.name, name, hosted.segment.lease)
                except NotFoundError:
                    return None
                found = await self._restore(hosted, name, cursor)
        return found

    async def _restore(self, hosted: HostedSegment, name: str, cursor: Cursor) -> HostedSubscription:
        """Open it with transactions' pending acknowledgements, before any message is delivered."""
        from engine.broker.delivery.subscription import HostedSubscription  # with the first consumer

        pending = await self._operations.acks(hosted.name, name)
        hosted.check_open()
        cursor.pass_gaps(hosted.segment.gaps)
        found = subscriptions_of(hosted).get(name)
        if found is None:
            found = subscriptions_of(hosted)[name] = HostedSubscription(
                hosted, name, cursor, self._segments.participation
            )
            found.pending.restore(pending)
            counts = self.inherited.take(hosted, name)
            if counts is not None:
                found.redeliveries = counts
        return found

    async def acknowledged(self, hosted: HostedSegment, subscriptions: Iterable[str]) -> int:
        """The offset below which all of these have acknowledged everything, durably; without any, the readable end.

        Creates no cursor.
        """
        position = hosted.readable
        for name in subscriptions:
            found = await self.find(hosted, name)
            if found is not None:
                position = min(position, await found.settled())
            elif not hosted.segment.sealed:
                return 0  # nothing acknowledged here yet, or a deletion under way, which a later call sees finished
        return position

    async def acknowledged_by(self, hosted: HostedSegment, subscription: str) -> int:
        """acknowledged() of one subscription. Raises NotFoundError when the topic has none of that name."""
        if await self.find(hosted, subscription) is None:
            topic = hosted.name.topic
            record = await self._metadata.newest.get(keys.subscription(topic, subscription))
            if record is None or SubscriptionMetadata.from_json(record.value).state is SubscriptionState.DELETING:
                raise NotFoundError(f"{topic} has no subscription {subscription!r}")
        return await self.acknowledged(hosted, [subscription])

    async def drained(self, hosted: HostedSegment, subscriptions: Iterable[str]) -> bool:
        """Whether it is sealed, has no undecided transaction, and none of these has a backlog in it (semantics 7).

        Creates no cursor.
        """
        for name in subscriptions:
            found = await self.find(hosted, name)
            if found is not None and not found.drained:
                return False
        return hosted.segment.sealed and hosted.readable == hosted.segment.durable_offset

    async def delete(self, segment: SegmentName, subscription: str) -> None:
        """Delete it with its cursor; its consumers end with SubscriptionNotFoundError. Idempotent."""
        async with self._turn(segment, subscription):
            hosted = self._segments.peek(segment)
            if hosted is not None and (found := subscriptions_of(hosted).pop(subscription, None)) is not None:
                from engine.control.subscription.subscriptions import deleted_subscription

                found.delete(deleted_subscription(segment.topic, subscription))
                await found.end()
            self.inherited.drop(segment, subscription)
            self._segments.inventory.forget_subscription(segment, subscription)
            await self._operations.forget_subscription(segment, subscription)
            await self._cursors.delete(segment, subscription)

    async def seek(self, hosted: HostedSegment, subscription: str, offset: int | InitialPosition) -> None:
        """Move its cursor, durably; detaches consumers, drops pending acknowledgements of open transactions."""
        from engine.broker.delivery.redelivery import RedeliveryCounts

        found = await self.open(hosted, subscription)
        segment = hosted.segment
        if isinstance(offset, InitialPosition):
            offset = segment.first_offset if offset is InitialPosition.EARLIEST else hosted.readable
        # Consumers are detached before the cursor moves: a later acknowledgement would move it again.
        found.seeks += 1
        found.close(NotOwnerError(f"{found} was moved to {offset}; attach again"))
        found.pending.drop()
        await found.cursor.seek(min(max(offset, segment.first_offset), segment.durable_offset))
        found.cursor.pass_gaps(segment.gaps)
        await self._operations.forget_subscription(hosted.name, subscription)
        found.redeliveries = RedeliveryCounts()
        found.check_drained()

    async def skip(self, hosted: HostedSegment, subscription: str, first: int, last: int) -> None:
        """Acknowledge the offsets first..last for it. Raises InvalidArgumentError, TransactionConflictError."""
        end = hosted.segment.durable_offset
        if not 0 <= first <= last < end:
            raise InvalidArgumentError(f"the offsets must be first <= last below {end}, got {first}..{last}")
        found = await self.open(hosted, subscription)
        if held := found.pending.offsets & range_set(first, last):
            text = f"an open transaction acknowledges {len(held)} of the offsets {first}..{last}; end it first"
            raise TransactionConflictError(text)
        hosted.skipped_messages += found.unacked_count(first, last + 1)
        await found.skip(first, last)

    async def has_backlog(self, hosted: HostedSegment, facts: SubscriptionMetadata) -> bool:
        """Whether it has messages to acknowledge here; creates no cursor. Raises as find()."""
        found = await self.find(hosted, facts.name)
        return hosted.messages > 0 if found is None else found.backlog > 0

    async def expire(self, hosted: HostedSegment, facts: SubscriptionMetadata, end: int) -> int:
        """Acknowledge everything below `end` for it; how many messages. Raises as open().

        What an open transaction acknowledges, and all behind it, waits for the end of the transaction.
        """
        if end <= hosted.segment.first_offset:
            return 0
        found = await self.open(hosted, facts.name, facts)
        if found.pending and (held := found.pending.offsets & range_set(0, end - 1)):
            end = held.min()
        expired = found.backlog_below(end)
        if expired:
            hosted.expired_messages += expired
            await found.skip(0, end - 1)
        return expired
