"""`SegmentAdmin`: operators' access to single segments (PIP-468 "Segment Topic Management").

The layout decides which segments exist, and changes of the topic create, seal and delete them. Requests here only
repair: whatever neither the layout nor a pending change calls for is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from engine.control.base.ports import SegmentHost, SegmentSpec, segment_spec
from engine.control.base.topic_records import ScalableTopicResources
from engine.control.shape.reshaping import ReshapePhase
from engine.control.topic.registry import Controllers
from engine.errors import InvalidArgumentError, NotFoundError
from engine.model.hashrange import HashRange
from engine.model.layout import SegmentLayout
from engine.model.names import SegmentName, TopicName
from engine.model.reshape import children_of
from engine.model.segment import SegmentInfo, bucket_ends
from engine.model.subscriptions import InitialPosition, SubscriptionState

if TYPE_CHECKING:
    from engine.control.topic.controller import ScalableTopicController


class SegmentAdmin:
    """Loop thread only. Every method raises NotFoundError (topic), NotOwnerError, InvalidArgumentError."""

    def __init__(self, controllers: Controllers, resources: ScalableTopicResources, host: SegmentHost) -> None:
        self._controllers = controllers
        self._resources = resources
        self._host = host

    async def create(self, name: SegmentName, subscriptions: Sequence[str] = ()) -> None:
        """Create the store of an active segment, or of one that is being created, and cursors for these subscriptions.

        What exists stays as it is.
        """
        async with self._unchanging(name.topic) as controller:
            layout = controller.layout
            info = layout.segments.get(name.segment_id) or _children(layout).get(name.segment_id)
            if info is None:
                raise InvalidArgumentError(f"{_unknown(name, layout)}: splits and merges make segments")
            _check_range(name, info.hash_range)
            if not info.active:
                raise InvalidArgumentError(f"{name} must be active, got a sealed segment, which is never created again")
            await self._check_subscriptions(name.topic, subscriptions)
            spec = segment_spec(name.topic, layout, info)
            await self._host.create_segment(spec, subscriptions, term=controller.leadership.term)

    async def terminate(self, name: SegmentName) -> None:
        """Seal a segment that a pending change is about to seal; do nothing for a sealed one."""
        async with self._unchanging(name.topic) as controller:
            layout = controller.layout
            info = layout.segments.get(name.segment_id)
            if info is None:
                raise NotFoundError(_unknown(name, layout))
            _check_range(name, info.hash_range)
            if not info.active:
                return
            if name.segment_id not in _ending(layout):
                raise InvalidArgumentError(f"{name} is active; only a split, merge or rebucket seals it")
            spec = segment_spec(name.topic, layout, info)
            await self._host.terminate_segment(spec, term=controller.leadership.term)

    async def delete(self, name: SegmentName, *, force: bool = False) -> None:
        """Delete the leftovers of a segment that is not in the layout; or a sealed one, which then leaves the layout.

        A sealed one must be drained, that is, acknowledged by every subscription; `force` acknowledges the rest.
        """
        async with self._unchanging(name.topic) as controller:
            layout = controller.layout
            info = layout.segments.get(name.segment_id)
            if info is None:
                await self._delete_unknown(name, controller)
                return
            _check_range(name, info.hash_range)
            self._check_deletable(name, info)
            if force:
                spec = segment_spec(name.topic, layout, info)
                for facts in await self._resources.list_subscriptions(name.topic):
                    await self._host.seek_subscription(spec, facts.name, InitialPosition.LATEST)
        if not await controller.prune(name.segment_id):
            raise InvalidArgumentError(f"{name} is not drained: a subscription has not acknowledged all its messages")

    @staticmethod
    def _check_deletable(name: SegmentName, info: SegmentInfo) -> None:
        if info.active:
            raise InvalidArgumentError(f"{name} is active; only a sealed segment can be deleted")
        if info.parent_ids:
            parents = ", ".join(map(str, info.parent_ids))
            raise InvalidArgumentError(f"{name} still has parents: {parents}; delete the oldest first")

    async def _delete_unknown(self, name: SegmentName, controller: ScalableTopicController) -> None:
        record = await self._resources.load_topic(name.topic)  # the record known here may be old
        layout = controller.layout if record is None else record.layout
        if name.segment_id in layout.segments:
            raise InvalidArgumentError(f"{name} has just been added to the layout; try again")
        if name.segment_id in _children(layout):
            raise InvalidArgumentError(f"{name} is being created by a change of the topic")
        spec = SegmentSpec(name, layout.durability, bucket_ends(1))
        await self._host.delete_segment(spec, term=controller.leadership.term)

    async def _check_subscriptions(self, topic: TopicName, names: Sequence[str]) -> None:
        found = await self._resources.list_subscriptions(topic)
        known = {facts.name for facts in found if facts.state is not SubscriptionState.DELETING}
        for name in names:
            if name not in known:
                raise NotFoundError(f"{topic} has no subscription {name!r}")

    @asynccontextmanager
    async def _unchanging(self, topic: TopicName) -> AsyncIterator[ScalableTopicController]:
        """The topic's controller, leading; its layout does not change meanwhile."""
        controller = await self._controllers.lead(topic)
        async with controller.changing():
            controller.leadership.check()
            if not controller.serving:
                raise NotFoundError(f"{topic} does not exist")
            yield controller


def _children(layout: SegmentLayout) -> dict[int, SegmentInfo]:
    """The segments that a pending change is creating."""
    return {} if layout.change is None else {child.segment_id: child for child in children_of(layout.change)}


def _ending(layout: SegmentLayout) -> list[int]:
    """The segments that a pending change seals: those of a reshape behind its point of no return."""
    change = layout.change
    if change is None or change.phase != ReshapePhase.TERMINATE:
        return []
    return list(change.details.get("parents", ()))


def _unknown(name: SegmentName, layout: SegmentLayout) -> str:
    return f"{name} is not in the layout of epoch {layout.epoch}"


def _check_range(name: SegmentName, real: HashRange) -> None:
    if name.hash_range != real:
        right = name.topic.segment(real, name.segment_id).descriptor
        raise InvalidArgumentError(f"{name} must have the hash range of {right}")
