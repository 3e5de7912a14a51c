"""`ScalableTopicController`: the elected coordinator of one topic (PIP-468).

    FOLLOWING --lead()--> elected --> take over: record, consumers' sessions, half-made subscriptions --> LEADING
        ^                                                                                                    |
        +------------------------------- lost(): another broker leads, or may -------------------------------+

    either --close(), release()--> CLOSED

While it leads it owns the layout, the subscriptions and their consumers. Consumers are served only after the take-over
is complete: an assignment must know every registered consumer. A follower only reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.aio.tasks import Supervisor
from engine.clock import Clock
from engine.control.base.config import ControlConfig
from engine.control.base.leadership import Leadership, LeaderState
from engine.control.base.ports import ConsumerChannel, SegmentHost
from engine.control.base.topic_records import ScalableTopicResources, TopicRecord
from engine.control.shape.deletion import TopicDeletion
from engine.control.shape.shape import Plan, ReshapeEnded, TopicShape
from engine.control.shape.topic_scaling import AutoScaleCounts, TopicScaling
from engine.control.subscription.coordinator import SubscriptionCoordinator
from engine.control.subscription.subscriptions import TopicSubscriptions
from engine.errors import EngineError, FencedError, NotFoundError, SubscriptionKindError
from engine.metadata.store import ConflictError, Session
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.layout import SegmentLayout, check_size
from engine.model.names import TopicName
from engine.model.subscriptions import (
    ConsumerAssignment,
    ConsumerRegistration,
    InitialPosition,
    SubscriptionKind,
    SubscriptionMetadata,
)

if TYPE_CHECKING:
    from engine.control.base.quotas import KnownLimits

log = logging.getLogger(__name__)


class ScalableTopicController:
    """Loop thread only. Changes of the topic run one at a time; consumers come and go concurrently."""

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
        unfinished: Callable[[TopicName], None],
        ended: ReshapeEnded,
        scaled: AutoScaleCounts,
        tasks: Supervisor,
    ) -> None:
        self.topic = topic
        self.leadership = Leadership(topic, broker_url, resources, session)
        self.touched = True  # set by every use; cleared by the sweep for idle controllers
        self._resources = resources
        self._host = host
        self._clock = clock
        self._config = config
        self._shape = TopicShape(
            topic,
            leadership=self.leadership,
            resources=resources,
            host=host,
            clock=clock,
            changed=self._layout_changed,
            unfinished=unfinished,
            ended=ended,
        )
        self._subscriptions = TopicSubscriptions(
            topic,
            leadership=self.leadership,
            resources=resources,
            host=host,
            clock=clock,
            layout=lambda: self.layout,
            end=self._end_coordinator,
        )
        self.scaling = TopicScaling(
            topic,
            layout=lambda: self.layout,
            members=self._members,
            reshape=self.reshape,
            resources=resources,
            clock=clock,
            broker_policy=config.auto_scale,
            counts=scaled,
            tasks=tasks,
        )
        self._restored = False  # leading, and the take-over is complete: consumers may come
        self._coordinators: dict[str, SubscriptionCoordinator] = {}
        self._deleted = 0  # subscriptions deleted by this leader: what was read of one before that may be old
        self._changes = asyncio.Lock()

    # Leadership.

    async def lead(self) -> None:
        """Become leader, restore the state of the last leader, and complete its changes.

        Raises NotOwnerError when another broker leads, NotFoundError when the topic does not exist. Does nothing once
        released.
        """
        self.touched = True
        if self._restored:
            return
        async with self._changes:
            if self.leadership.state is not LeaderState.FOLLOWING:
                return
            self._shape.found(await self._resources.load_topic(self.topic))
            await self.leadership.acquire()
            try:
                await self._take_over()
                self.leadership.check()
                self._restored = True
                self.scaling.begin()
            except BaseException:
                self.lost()
                await self._resources.resign(self.topic, self.leadership.term)
                raise

    async def _take_over(self) -> None:
        await self._shape.reload()
        if self.layout.deleting:
            return  # for resume(): the topic takes no consumers any more
        by_subscription = defaultdict(list)
        for subscription, stored, version in await self._resources.list_consumers(self.topic):
            by_subscription[subscription].append((stored, version))
        await asyncio.gather(*(self._restore(name, sessions) for name, sessions in by_subscription.items()))
        await self._subscriptions.resume()

    async def _restore(self, subscription: str, sessions: list[tuple[ConsumerRegistration, int]]) -> None:
        kind = sessions[0][0].kind
        coordinator = self._coordinator(subscription, kind)
        await coordinator.prepare()
        coordinator.restore(s for s in sessions if s[0].kind is kind)

    async def resume(self) -> None:
        """Complete the change that is pending in the topic's record, if any. Leader only."""
        async with self.changing():
            self.leadership.check()
            await self._shape.reload()
            if self._shape.record is None:
                return
            if self.layout.deleting:
                await self._finish_deletion(self._deletion(), "its pending deletion was finished")
            else:
                await self._shape.settle()

    def lost(self) -> None:
        """Another broker leads, or may: drop all state; consumers are told to look the topic up again."""
        self._restored = False
        if self.leadership.leading:
            self.leadership.move_to(LeaderState.FOLLOWING)
        self._end_coordinators(self.leadership.not_owner(None))

    async def release(self) -> None:
        """Resign and close, after the change under way; consumers look the topic up again. Their sessions stay
        registered.
        """
        async with self._changes:
            led = self.leadership.leading
            await self.close(self.leadership.not_owner(None))
            if led:
                await self._resources.resign(self.topic, self.leadership.term)

    async def close(self, error: EngineError) -> None:
        """Stop serving; consumers get `error`. The leader's record is left to the end of its session."""
        coordinators = list(self._coordinators.values())
        self._end_coordinators(error)
        self._restored = False
        self.leadership.move_to(LeaderState.CLOSED)
        for coordinator in coordinators:
            await coordinator.settle()

    def _end_coordinators(self, error: EngineError) -> None:
        self.scaling.end()
        for coordinator in self._coordinators.values():
            coordinator.end(error)
        self._coordinators.clear()

    @property
    def serving(self) -> bool:
        """Whether the topic exists and is not being deleted, as far as this broker knows."""
        return self._shape.serving

    @property
    def pending(self) -> bool:
        """Whether a split, merge or rebucket is pending, by the newest record known here."""
        return self._shape.pending

    @property
    def idle(self) -> bool:
        """Whether leading serves no purpose: no consumers, no load to follow, no change under way."""
        if self._changes.locked() or self.pending or not self.scaling.idle:
            return False
        return all(c.idle for c in self._coordinators.values())

    # The topic.

    @property
    def layout(self) -> SegmentLayout:
        """The newest layout known here. Raises NotFoundError before the first."""
        return self._shape.current.layout

    def apply(self, record: TopicRecord) -> None:
        """Take a record that was seen in the store; an older one is ignored."""
        self._shape.apply(record)

    def _layout_changed(self, layout: SegmentLayout) -> None:
        for coordinator in self._coordinators.values():
            coordinator.layout_changed(layout)

    async def delete(self) -> None:
        """Delete the topic. Raises NotOwnerError; after another error it stays marked, and is completed later."""
        async with self.changing():
            self.leadership.check()
            await self._shape.reload()
            deletion = self._deletion()
            if not self.layout.deleting:
                await self._mark(deletion)
            self._end_coordinators(NotFoundError(f"{self.topic} was deleted"))
            await self._finish_deletion(deletion, "deleted")

    async def _finish_deletion(self, deletion: TopicDeletion, said: str) -> None:
        begun, segments = self._clock.monotonic(), len(self.layout.segments)
        await deletion.finish()
        seconds = self._clock.monotonic() - begun
        log.info("%s: %s, with %d segments, in %.3f s", self.topic, said, segments, seconds)

    async def _mark(self, deletion: TopicDeletion) -> None:
        try:
            await deletion.mark()
        except ConflictError:
            await self._shape.reload()
            deletion.record = self._shape.current
            await deletion.mark()
        self.apply(deletion.record)

    def _deletion(self) -> TopicDeletion:
        return TopicDeletion(self.topic, self._shape.current, self.leadership.term, self._resources, self._host)

    # Its shape.

    async def reshape(self, plan: Plan) -> SegmentLayout:
        """Split, merge or rebucket; returns the new layout. Raises InvalidArgumentError when `plan` does; nothing is
        changed.

        After another error the change is undone, or, behind its point of no return, completed as soon as possible.
        UnknownOutcomeError: another broker leads by now, and will complete it; NotOwnerError: it was not done.
        """
        async with self.changing():
            self._check_serving()
            return await self._shape.reshape(plan)

    async def set_auto_scale_policy(self, override: AutoScalePolicyOverride | None) -> None:
        """Replace the topic's own override, effective at once. A pending change stays pending."""
        await self.rewrite(lambda layout: replace(layout, auto_scale_policy=override))
        self.scaling.evaluate()

    async def rewrite(self, change: Callable[[SegmentLayout], SegmentLayout]) -> None:
        """Change facts of the topic that are not its shape. A pending change stays pending. InvalidArgumentError."""

        def checked(layout: SegmentLayout) -> SegmentLayout:
            changed = change(layout)
            check_size(changed)
            return changed

        async with self.changing():
            self._check_serving()
            await self._shape.rewrite(checked)

    async def prune(self, segment_id: int) -> bool:
        """Remove a sealed segment and delete it. False: not now. Raises InvalidArgumentError for an active one."""
        async with self.changing():
            self._check_serving()
            return await self._shape.prune(segment_id)

    # Subscriptions.

    async def create_subscription(
        self, name: str, position: InitialPosition, kind: SubscriptionKind | None, *, exist_ok: bool
    ) -> SubscriptionMetadata:
        """Create a record, and a cursor in every segment that it may read (semantics 39). Raises AlreadyExistsError."""
        async with self.changing():
            self._check_serving()
            await self._shape.settle()
            return await self._subscriptions.create(name, position, kind, exist_ok=exist_ok)

    async def decide_position(self, name: str, position: InitialPosition) -> SubscriptionMetadata:
        """The first consumer says where a subscription begins. Raises NotFoundError."""
        async with self.changing():
            self._check_serving()
            await self._shape.settle()
            return await self._subscriptions.decide(name, position)

    async def delete_subscription(self, name: str) -> None:
        """Delete its cursors in all segments, sealed ones too; its consumers are told. Raises NotFoundError."""
        async with self.changing():
            self._check_serving()
            await self._shape.settle()
            await self._subscriptions.delete(name)

    async def skip_messages(self, name: str, segment_id: int, first: int, last: int) -> None:
        """Acknowledge a range of one segment. Raises NotFoundError, InvalidArgumentError."""
        async with self.changing():
            self._check_serving()
            await self._subscriptions.skip(name, segment_id, first, last)

    async def seek_subscription(self, name: str, position: InitialPosition | int) -> None:
        """Move its cursors to an end, or to a wall-clock time in ms (semantics 38). Raises NotFoundError."""
        async with self.changing():
            self._check_serving()
            await self._shape.settle()
            back = self._coordinators.get(name) if position is not InitialPosition.LATEST else None
            if back is not None:
                back.cursors_move()
            try:
                await self._subscriptions.seek(name, position)
            finally:
                if back is not None:
                    back.cursors_moved()

    async def _end_coordinator(self, subscription: str, error: EngineError) -> None:
        self._deleted += 1
        coordinator = self._coordinators.pop(subscription, None)
        if coordinator is not None:
            of_group = coordinator.kind is SubscriptionKind.CHECKPOINT  # a group is only a name, and registers again
            coordinator.end(self.leadership.not_owner(None) if of_group else error)
            await coordinator.settle()

    # Consumers.

    async def register_consumer(
        self,
        subscription: str,
        kind: SubscriptionKind,
        name: str,
        instance: str,
        channel: ConsumerChannel,
        find: Callable[[], Awaitable[SubscriptionMetadata]] | None = None,
    ) -> ConsumerAssignment:
        """Add a consumer or resume its session; `find` reads the subscription, if there is one.

        Raises SubscriptionKindError when consumers of another kind hold it, NotOwnerError when it must be read again.
        """
        limits = await self._resources.limits_of(self.topic.tenant) if kind is SubscriptionKind.CHECKPOINT else None
        self._check_serving()
        deleted = self._deleted
        facts = None if find is None else await find()
        self._check_serving()
        if self._deleted != deleted:
            raise self.leadership.not_owner(None)
        if kind is SubscriptionKind.CHECKPOINT:
            self._check_group(subscription, limits)
        coordinator = self._coordinator(subscription, kind)
        assignment = await coordinator.register(name, instance, channel)
        self.scaling.consumers_changed()
        return assignment if facts is None else replace(assignment, created_ms=facts.created_at_ms)

    def _check_group(self, name: str, limits: KnownLimits | None) -> None:
        """Raise LimitExceededError unless it has members, or the topic may have one more group of them.

        A group is there as long as it has members. Those without are forgotten here: nothing else ends them.
        """
        groups = {n: c for n, c in self._coordinators.items() if c.kind is SubscriptionKind.CHECKPOINT}
        if name in groups and not groups[name].idle:
            return
        empty = [n for n, coordinator in groups.items() if coordinator.idle]
        for one in empty:
            self._coordinators.pop(one).end(self.leadership.not_owner(None))
        if limits is not None:
            from engine.control.base.quotas import check_groups

            check_groups(limits, self.topic, len(groups) - len(empty) + 1)

    async def unregister_consumer(self, subscription: str, name: str, instance: str) -> bool:
        """The consumer leaves; False when another instance has the name, or none."""
        self.leadership.check()
        coordinator = self._coordinators.get(subscription)
        left = coordinator is not None and await coordinator.leave(name, instance)
        self.scaling.consumers_changed()
        return left

    def disconnect_consumer(self, subscription: str, name: str, channel: ConsumerChannel) -> None:
        if (coordinator := self._coordinators.get(subscription)) is not None:
            coordinator.disconnect(name, channel)

    def consumers(self, subscription: str) -> dict[str, tuple[bool, tuple[int, ...]]]:
        """{consumer name: (connected, segment ids)}; empty on a broker that does not lead."""
        coordinator = self._coordinators.get(subscription)
        return {} if coordinator is None else coordinator.consumers

    def groups(self) -> dict[str, dict[str, tuple[bool, tuple[int, ...]]]]:
        """Checkpoint groups with members: {group: {consumer name: (connected, segment ids)}}."""
        groups = {n: c.consumers for n, c in self._coordinators.items() if c.kind is SubscriptionKind.CHECKPOINT}
        return {name: members for name, members in groups.items() if members}

    def _members(self, kind: SubscriptionKind) -> dict[str, int]:
        return {name: len(c.consumers) for name, c in self._coordinators.items() if c.kind is kind}

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
            share_sealed=self._config.share_sealed,
        )
        return coordinator

    # Helpers.

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """One change at a time. A conflict or a refusal means that another broker leads."""
        async with self._changes:
            try:
                yield
            except (ConflictError, FencedError) as e:
                raise self.leadership.not_owner(None) from e

    def _check_serving(self) -> None:
        self.touched = True
        self.leadership.check()
        if not self.serving:
            raise NotFoundError(f"{self.topic} does not exist")
