"""`TopicSubscriptions`: creates, deletes and seeks a topic's subscriptions over its segments (semantics 38, 39)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from engine.clock import Clock
from engine.control.base.leadership import Leadership
from engine.control.base.ports import SegmentHost, SegmentSpec, segment_spec
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.shape.changes import together
from engine.control.shape.erasure import erase_subscription
from engine.errors import AlreadyExistsError, EngineError, NotFoundError, SubscriptionNotFoundError
from engine.metadata.store import ABSENT, ConflictError
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.segment import SegmentInfo
from engine.model.subscriptions import InitialPosition, SubscriptionKind, SubscriptionMetadata, SubscriptionState

log = logging.getLogger(__name__)


async def find_subscription(
    resources: ScalableTopicResources, topic: TopicName, name: str, created_ms: int | None
) -> SubscriptionMetadata | None:
    """The subscription, when it is usable; None when there is none, and one may be created.

    `created_ms`: the creation time of the one that is meant; None: any. Raises SubscriptionNotFoundError when that one
    was deleted, NotFoundError when its topic was.
    """
    found = await resources.load_subscription(topic, name)
    usable = found is not None and found[0].state is SubscriptionState.ACTIVE
    if found is not None and usable and created_ms in (None, found[0].created_at_ms):
        return found[0]
    if created_ms is None:
        return None
    record = await resources.load_topic(topic)
    if record is None or record.layout.deleting or record.layout.created_at_ms > created_ms:
        raise NotFoundError(f"the topic {topic} that had this subscription {name!r} was deleted")
    raise deleted_subscription(topic, name)


def deleted_subscription(topic: TopicName, name: str) -> SubscriptionNotFoundError:
    """The error for consumers of a deleted subscription."""
    return SubscriptionNotFoundError(f"the subscription {name!r} of {topic} was deleted")


class TopicSubscriptions:
    """Loop thread only; the caller leads, holds the controller's lock, and no reshape is pending.

    `end` ends a subscription's coordinator, if it has one, with an error.
    """

    def __init__(
        self,
        topic: TopicName,
        *,
        leadership: Leadership,
        resources: ScalableTopicResources,
        host: SegmentHost,
        clock: Clock,
        layout: Callable[[], SegmentLayout],
        end: Callable[[str, EngineError], Awaitable[None]],
    ) -> None:
        self.topic = topic
        self._leadership = leadership
        self._resources = resources
        self._host = host
        self._clock = clock
        self._layout = layout
        self._end = end

    async def create(
        self, name: str, position: InitialPosition, kind: SubscriptionKind | None, *, exist_ok: bool
    ) -> SubscriptionMetadata:
        """See the controller. The record, in state CREATING, is the point of no return.

        A subscription from the latest message gets no cursors in sealed segments: nothing in them is for it. For one
        from the earliest it makes no difference how often the topic was reshaped.
        """
        found = await self._resources.load_subscription(self.topic, name)
        if found is not None and found[0].state is not SubscriptionState.ACTIVE:
            await self._resume(found[0])
            found = await self._resources.load_subscription(self.topic, name)
        if found is not None:
            if exist_ok:
                return found[0]
            raise AlreadyExistsError(f"{self.topic} has the subscription {name!r} already")
        if (limits := await self._resources.limits_of(self.topic.tenant)) is not None:
            from engine.control.base.quotas import check_subscriptions

            await check_subscriptions(limits, self._resources, self.topic)
        facts = SubscriptionMetadata(name, position, self._clock.time_ms(), kind, SubscriptionState.CREATING)
        await self._resources.save_subscription(self.topic, facts, ABSENT)
        return await self._finish_creation(facts)

    async def decide(self, name: str, position: InitialPosition) -> SubscriptionMetadata:
        """See the controller. Its cursors were created as from the earliest message, so it may have to skip."""
        facts = await self._load(name)
        if facts.initial_position is not InitialPosition.UNDECIDED:
            return facts
        if position is InitialPosition.LATEST:
            await self.seek(name, position)
        facts = replace(facts, initial_position=position)
        await self._save(facts)
        return facts

    async def delete(self, name: str) -> None:
        """See the controller. The record, in state DELETING, is the point of no return."""
        facts = replace(await self._load(name), state=SubscriptionState.DELETING)
        await self._save(facts)
        await self._finish_deletion(facts)

    async def seek(self, name: str, position: InitialPosition | int) -> None:
        """See the controller. Active segments last: a consumer that attaches there finds the sealed ones moved."""
        if (await self._load(name)).state is SubscriptionState.DELETING:
            raise deleted_subscription(self.topic, name)  # a seek would create cursors
        segments = self._layout().segments.values()
        await together(self._seek(s, name, position) for s in segments if not s.active)
        await together(self._seek(s, name, position) for s in segments if s.active)

    async def skip(self, name: str, segment_id: int, first: int, last: int) -> None:
        """See the controller."""
        await self._load(name)
        segment = self._layout().segments.get(segment_id)
        if segment is None:
            raise NotFoundError(f"{self.topic} has no segment {segment_id}")
        await self._host.skip_messages(self._spec(segment), name, first, last)

    async def _seek(self, segment: SegmentInfo, name: str, position: InitialPosition | int) -> None:
        """By the segment's lifetime: sealed before the time, skip all; created after it, rewind; else search."""
        spec, target = self._spec(segment), position
        if not isinstance(position, InitialPosition):
            if segment.sealed_at_ms is not None and segment.sealed_at_ms < position:
                target = InitialPosition.LATEST
            elif segment.created_at_ms >= position:
                target = InitialPosition.EARLIEST
            else:
                target = await self._host.offset_at(spec, position)
        await self._host.seek_subscription(spec, name, target)

    async def resume(self) -> None:
        """Complete what an earlier leader began. A failure is retried later; others are not affected."""
        for facts in await self._resources.list_subscriptions(self.topic):
            if facts.state is SubscriptionState.ACTIVE:
                continue
            try:
                await self._resume(facts)
            except (EngineError, ConflictError) as e:
                log.warning(
                    "%s: subscription %s stays %s until the next attempt: %s", self.topic, facts.name, facts.state, e
                )

    async def _resume(self, facts: SubscriptionMetadata) -> None:
        if facts.state is SubscriptionState.CREATING:
            await self._finish_creation(facts)
        else:
            await self._finish_deletion(facts)

    async def _finish_creation(self, facts: SubscriptionMetadata) -> SubscriptionMetadata:
        term, position = self._leadership.term, facts.initial_position
        create = self._host.create_subscription
        layout = self._layout()
        segments = layout.active if position is InitialPosition.LATEST else layout.segments.values()
        await self._each(segments, lambda spec: create(spec, facts.name, position, term=term))
        facts = replace(facts, state=SubscriptionState.ACTIVE)
        await self._save(facts)
        return facts

    async def _finish_deletion(self, facts: SubscriptionMetadata) -> None:
        await self._end(facts.name, deleted_subscription(self.topic, facts.name))
        term, delete = self._leadership.term, self._host.delete_subscription
        await self._each(self._layout().segments.values(), lambda spec: delete(spec, facts.name, term=term))
        await erase_subscription(self._resources, self.topic, facts.name, term)

    async def _load(self, name: str) -> SubscriptionMetadata:
        found = await self._resources.load_subscription(self.topic, name)
        if found is None:
            raise NotFoundError(f"{self.topic} has no subscription {name!r}")
        return found[0]

    async def _save(self, facts: SubscriptionMetadata) -> None:
        found = await self._resources.load_subscription(self.topic, facts.name)
        if not await self._leadership.confirm():
            raise self._leadership.not_owner(None)
        await self._resources.save_subscription(self.topic, facts, ABSENT if found is None else found[1])

    async def _each(self, segments: Iterable[SegmentInfo], act: Callable[[SegmentSpec], Awaitable[None]]) -> None:
        await together(act(self._spec(segment)) for segment in segments)

    def _spec(self, segment: SegmentInfo) -> SegmentSpec:
        return segment_spec(self.topic, self._layout(), segment)
