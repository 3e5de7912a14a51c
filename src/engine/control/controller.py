"""`ScalableTopicController`: the elected coordinator of one topic (PIP-468).

It owns the layout, the subscriptions and their consumers while it leads; a follower only reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from engine.clock import Clock
from engine.control.config import ControlConfig
from engine.control.coordinator import SubscriptionCoordinator
from engine.control.deletion import KIND as DELETION
from engine.control.deletion import TopicDeletion
from engine.control.leadership import Leadership, LeaderState
from engine.control.ports import ConsumerChannel, SegmentHost, SegmentSpec, segment_spec
from engine.control.resources import ScalableTopicResources, TopicRecord
from engine.errors import AlreadyExistsError, EngineError, NotFoundError, SubscriptionKindError, UnsupportedError
from engine.metadata.store import ABSENT, ConflictError, Session
from engine.model.layout import SegmentLayout
from engine.model.names import TopicName
from engine.model.segment import SegmentInfo
from engine.model.subscriptions import (
    ConsumerAssignment,
    ConsumerRegistration,
    InitialPosition,
    SubscriptionKind,
    SubscriptionMetadata,
    SubscriptionState,
)

log = logging.getLogger(__name__)


class ScalableTopicController:
    """Loop thread only. Changes of the topic run one at a time; consumers come and go beside them."""

    def __init__(
        self,
        topic: TopicName,
        *,
        resources: ScalableTopicResources,
        host: SegmentHost,
        clock: Clock,
        config: ControlConfig,
        broker_url: str,
        session: Callable[[], Awaitable[Session]],
    ) -> None:
        self.topic = topic
        self.leadership = Leadership(topic, broker_url, resources, session)
        self.touched = True  # set by every use; cleared by whoever looks for idle controllers
        self._resources = resources
        self._host = host
        self._clock = clock
        self._config = config
        self._record: TopicRecord | None = None
        self._restored = False  # leading, and what the last leader left is taken over: consumers may come
        self._coordinators: dict[str, SubscriptionCoordinator] = {}
        self._changes = asyncio.Lock()

    # Leadership.

    async def lead(self) -> None:
        """Become the leader, restore what the last one left, and finish what it began.

        Raises NotOwnerError when another broker leads, NotFoundError when there is no such topic. Does nothing once it
        is released.
        """
        self.touched = True
        if self._restored:
            return
        async with self._changes:
            if self.leadership.state is not LeaderState.FOLLOWING:
                return
            self._found(await self._resources.load_topic(self.topic))
            await self.leadership.acquire()
            try:
                await self._take_over()
                self.leadership.check()
                self._restored = True
            except BaseException:
                self.lost()
                await self._resources.resign(self.topic, self.leadership.term)
                raise

    async def _take_over(self) -> None:
        record = self._record = self._found(await self._resources.load_topic(self.topic))
        if record.layout.change is not None:
            return  # for resume(): the topic takes no consumers before it is done
        by_subscription = defaultdict(list)
        for subscription, stored, version in await self._resources.list_consumers(self.topic):
            by_subscription[subscription].append((stored, version))
        for subscription, sessions in by_subscription.items():
            self._restore(subscription, sessions)
        for facts in await self._resources.list_subscriptions(self.topic):
            if facts.state is not SubscriptionState.ACTIVE:
                await self._try_to_resume(facts)

    def _restore(self, subscription: str, sessions: list[tuple[ConsumerRegistration, int]]) -> None:
        kind = sessions[0][0].kind
        self._coordinator(subscription, kind).restore(s for s in sessions if s[0].kind is kind)

    async def resume(self) -> None:
        """Finish the change that the topic's record carries, if there is one. Leader only."""
        async with self._change():
            self.leadership.check()
            record = self._record = await self._resources.load_topic(self.topic)
            change = None if record is None else record.layout.change
            if change is None:
                return
            if change.kind != DELETION:
                raise UnsupportedError(
                    f"{self.topic} has an unfinished {change.kind!r}, which this version cannot finish"
                )
            await self._deletion().finish()

    def lost(self) -> None:
        """Another broker leads, or may: forget everything; consumers are told to look again."""
        self._restored = False
        if self.leadership.leading:
            self.leadership.move_to(LeaderState.FOLLOWING)
        self._end_coordinators(self.leadership.not_owner(None))

    async def release(self) -> None:
        """Resign and close, after the change under way; consumers look again. Their sessions stay registered."""
        async with self._changes:
            led = self.leadership.leading
            await self.close(self.leadership.not_owner(None))
            if led:
                await self._resources.resign(self.topic, self.leadership.term)

    async def close(self, error: EngineError) -> None:
        """Serve nobody any more; consumers are told `error`. The leader's record is left to the end of its session."""
        coordinators = list(self._coordinators.values())
        self._end_coordinators(error)
        self._restored = False
        self.leadership.move_to(LeaderState.CLOSED)
        for coordinator in coordinators:
            await coordinator.settle()

    def _end_coordinators(self, error: EngineError) -> None:
        for coordinator in self._coordinators.values():
            coordinator.end(error)
        self._coordinators.clear()

    @property
    def serving(self) -> bool:
        """Whether the topic exists and is not being deleted, as far as this broker knows."""
        return self._record is not None and self._record.layout.change is None

    @property
    def idle(self) -> bool:
        """Whether leading serves nobody: no consumers, no change under way."""
        return not self._changes.locked() and all(c.idle for c in self._coordinators.values())

    # The topic.

    @property
    def layout(self) -> SegmentLayout:
        """The newest layout this broker knows of. Raises NotFoundError before the first."""
        return self._current.layout

    def apply(self, record: TopicRecord) -> None:
        """A record of the topic was seen in the store; an older one is ignored."""
        if self._record is not None and record.version <= self._record.version:
            return
        self._record = record
        for coordinator in self._coordinators.values():
            coordinator.layout_changed(record.layout)

    async def delete(self) -> None:
        """Delete the topic. Raises NotOwnerError; anything else leaves it marked, to be finished later."""
        async with self._change():
            self.leadership.check()
            self._record = await self._resources.load_topic(self.topic)
            deletion = self._deletion()
            if deletion.record.layout.change is None:
                await self._mark(deletion)
            self._end_coordinators(NotFoundError(f"{self.topic} was deleted"))
            await deletion.finish()

    async def _mark(self, deletion: TopicDeletion) -> None:
        try:
            await deletion.mark()
        except ConflictError:
            deletion.record = self._found(await self._resources.load_topic(self.topic))
            await deletion.mark()
        self.apply(deletion.record)

    def _deletion(self) -> TopicDeletion:
        return TopicDeletion(self.topic, self._current, self.leadership.term, self._resources, self._host)

    # Subscriptions.

    async def create_subscription(
        self, name: str, position: InitialPosition, kind: SubscriptionKind | None, *, exist_ok: bool
    ) -> SubscriptionMetadata:
        """It has a record, and a cursor in every active segment (SEMANTICS 39). Raises AlreadyExistsError.

        The record, in state CREATING, is the point of no return.
        """
        async with self._change():
            self._check_serving()
            found = await self._resources.load_subscription(self.topic, name)
            if found is not None and found[0].state is not SubscriptionState.ACTIVE:
                await self._resume_subscription(found[0])
                found = await self._resources.load_subscription(self.topic, name)
            if found is not None:
                if exist_ok:
                    return found[0]
                raise AlreadyExistsError(f"{self.topic} has the subscription {name!r} already")
            now_ms = self._clock.time_ms()
            facts = SubscriptionMetadata(name, position, now_ms, kind, SubscriptionState.CREATING)
            await self._resources.save_subscription(self.topic, facts, ABSENT)
            return await self._finish_subscription(facts)

    async def delete_subscription(self, name: str) -> None:
        """Its consumers are told, its cursors are gone from every segment, sealed ones too. Raises NotFoundError.

        The record, in state DELETING, is the point of no return.
        """
        async with self._change():
            self._check_serving()
            facts = await self.load_subscription(name)
            facts = replace(facts, state=SubscriptionState.DELETING)
            await self._save_subscription(facts)
            await self._finish_deletion(facts)

    async def load_subscription(self, name: str) -> SubscriptionMetadata:
        """Raises NotFoundError."""
        found = await self._resources.load_subscription(self.topic, name)
        if found is None:
            raise NotFoundError(f"{self.topic} has no subscription {name!r}")
        return found[0]

    async def _try_to_resume(self, facts: SubscriptionMetadata) -> None:
        try:
            await self._resume_subscription(facts)
        except (EngineError, ConflictError) as e:  # the topic's other subscriptions are served all the same
            log.warning("%s: subscription %s stays %s for now: %s", self.topic, facts.name, facts.state, e)

    async def _resume_subscription(self, facts: SubscriptionMetadata) -> None:
        if facts.state is SubscriptionState.CREATING:
            await self._finish_subscription(facts)
        else:
            await self._finish_deletion(facts)

    async def _finish_subscription(self, facts: SubscriptionMetadata) -> SubscriptionMetadata:
        term, position = self.leadership.term, facts.initial_position
        create = self._host.create_subscription
        await self._each(self.layout.active, lambda spec: create(spec, facts.name, position, term=term))
        facts = replace(facts, state=SubscriptionState.ACTIVE)
        await self._save_subscription(facts)
        return facts

    async def _finish_deletion(self, facts: SubscriptionMetadata) -> None:
        coordinator = self._coordinators.pop(facts.name, None)
        if coordinator is not None:
            coordinator.end(NotFoundError(f"the subscription {facts.name!r} of {self.topic} was deleted"))
            await coordinator.settle()
        term, delete = self.leadership.term, self._host.delete_subscription
        await self._each(self.layout.segments.values(), lambda spec: delete(spec, facts.name, term=term))
        await self._resources.delete_subscription(self.topic, facts.name)

    async def _save_subscription(self, facts: SubscriptionMetadata) -> None:
        found = await self._resources.load_subscription(self.topic, facts.name)
        if not await self.leadership.confirm():
            raise self.leadership.not_owner(None)
        await self._resources.save_subscription(self.topic, facts, ABSENT if found is None else found[1])

    async def seek_subscription(self, name: str, position: InitialPosition | int) -> None:
        """Move its cursors to an end, or to a wall-clock time in ms (SEMANTICS 38). Raises NotFoundError."""
        async with self._change():
            self._check_serving()
            await self.load_subscription(name)
            await asyncio.gather(*(self._seek(s, name, position) for s in self.layout.segments.values()))
            if (coordinator := self._coordinators.get(name)) is not None:
                coordinator.cursors_moved()

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

    async def _each(self, segments: Iterable[SegmentInfo], act: Callable[[SegmentSpec], Awaitable[None]]) -> None:
        await asyncio.gather(*(act(self._spec(segment)) for segment in segments))

    # Consumers.

    async def register_consumer(
        self, subscription: str, kind: SubscriptionKind, name: str, instance: str, channel: ConsumerChannel
    ) -> ConsumerAssignment:
        """Add a consumer or resume its session. Raises SubscriptionKindError when others of another kind have it."""
        self._check_serving()
        coordinator = self._coordinator(subscription, kind)
        return await coordinator.register(name, instance, channel)

    async def unregister_consumer(self, subscription: str, name: str, instance: str) -> bool:
        """A clean leave; False when another instance has the name, or nobody."""
        self.leadership.check()
        coordinator = self._coordinators.get(subscription)
        return coordinator is not None and await coordinator.leave(name, instance)

    def disconnect_consumer(self, subscription: str, name: str, channel: ConsumerChannel) -> None:
        """Its connection dropped."""
        if (coordinator := self._coordinators.get(subscription)) is not None:
            coordinator.disconnect(name, channel)

    def consumers(self, subscription: str) -> dict[str, tuple[bool, tuple[int, ...]]]:
        """{consumer name: (connected, segment ids)}; empty on a broker that does not lead."""
        coordinator = self._coordinators.get(subscription)
        return {} if coordinator is None else coordinator.consumers

    def _coordinator(self, subscription: str, kind: SubscriptionKind) -> SubscriptionCoordinator:
        present = self._coordinators.get(subscription)
        if present is not None and present.kind is kind:
            return present
        if present is not None:
            if not present.idle:
                raise SubscriptionKindError(
                    f"{present.kind} consumers hold {subscription!r} of {self.topic}, not {kind} ones"
                )
            present.end(self.leadership.not_owner(None))
        coordinator = self._coordinators[subscription] = SubscriptionCoordinator(
            self.topic,
            subscription,
            kind,
            self.layout,
            term=self.leadership.term,
            confirm=self.leadership.confirm,
            resources=self._resources,
            host=self._host,
            grace_s=self._config.grace_period,
        )
        return coordinator

    # Small change.

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """One change at a time. A record that is not as the leader left it has another leader."""
        async with self._changes:
            try:
                yield
            except ConflictError as e:
                raise self.leadership.not_owner(None) from e

    def _check_serving(self) -> None:
        self.touched = True
        self.leadership.check()
        if not self.serving:
            raise NotFoundError(f"{self.topic} does not exist")

    def _spec(self, segment: SegmentInfo) -> SegmentSpec:
        return segment_spec(self.topic, self.layout, segment)

    @property
    def _current(self) -> TopicRecord:
        return self._found(self._record)

    def _found(self, record: TopicRecord | None) -> TopicRecord:
        if record is None:
            raise NotFoundError(f"{self.topic} does not exist")
        return record
