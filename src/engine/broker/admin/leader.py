"""`LeaderAdmin`: admin operations that only a topic's leader executes, by name and with plain arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.control.service import ScalableTopicService
from engine.errors import InvalidArgumentError
from engine.model.admin_operations import OPERATIONS
from engine.model.admin_requests import Leader
from engine.model.autoscale import AutoScalePolicyOverride
from engine.model.names import SegmentName, TopicName


class LeaderAdmin:
    """Every method raises NotOwnerError when another broker leads the topic.

    Methods are the `leader_method` of operations: the topic, then the other arguments. Arguments and results are plain
    (text, numbers, lists, dicts), so that another broker can call them too.
    """

    METHODS = frozenset(row.leader_method for row in OPERATIONS if row.leader is not Leader.ANY) | {"prune_segment"}

    def __init__(self, service: ScalableTopicService) -> None:
        self._service = service

    async def call(self, method: str, topic: TopicName, arguments: Mapping[str, Any]) -> Any:
        """Call the method of that name. Raises InvalidArgumentError for an unknown method or wrong arguments."""
        if method not in self.METHODS:
            known = ", ".join(sorted(self.METHODS))
            raise InvalidArgumentError(f"the method of a leader must be one of {known}, got {method!r:.80}")
        act = getattr(self, method)
        try:
            asked = act(topic, **arguments)
        except TypeError as e:  # nothing ran yet: a coroutine function only binds its arguments
            raise InvalidArgumentError(f"{method}: {e}") from None
        return await asked

    async def get_stats(self, topic: TopicName) -> dict[str, Any]:
        """Any broker answers; only the leader has the controller's state."""
        return await self._service.get_stats(topic)

    async def delete_topic(self, topic: TopicName) -> None:
        """Raises NotFoundError."""
        await self._service.delete_topic(topic)

    async def split_segment(self, topic: TopicName, segment_id: int) -> dict[str, Any]:
        return (await self._service.split_segment(topic, segment_id)).layout.to_metadata()

    async def merge_segments(self, topic: TopicName, segment_id: int, other_id: int) -> dict[str, Any]:
        return (await self._service.merge_segments(topic, segment_id, other_id)).layout.to_metadata()

    async def rebucket_segment(self, topic: TopicName, segment_id: int, buckets: int) -> dict[str, Any]:
        return (await self._service.rebucket_segment(topic, segment_id, buckets)).layout.to_metadata()

    async def prune_segment(self, topic: TopicName, segment_id: int) -> bool:
        """Whether it was deleted. Not an operation of the API: retention calls it."""
        return await self._service.prune_segment(topic, segment_id)

    async def create_segment(self, topic: TopicName, segment: str, subscriptions: list[str]) -> None:
        """The store and the cursors of an active segment."""
        await self._service.segments.create(SegmentName.parse(segment), subscriptions)

    async def terminate_segment(self, topic: TopicName, segment: str) -> None:
        """A sealed segment stays as it is, another is refused."""
        await self._service.segments.terminate(SegmentName.parse(segment))

    async def delete_segment(self, topic: TopicName, segment: str, force: bool) -> None:
        """One that the layout does not name, or a sealed one."""
        await self._service.segments.delete(SegmentName.parse(segment), force=force)

    async def create_subscription(
        self, topic: TopicName, subscription: str, initial_position: str, kind: str | None = None
    ) -> None:
        await self._service.create_subscription(topic, subscription, initial_position=initial_position, kind=kind)

    async def delete_subscription(self, topic: TopicName, subscription: str) -> None:
        await self._service.delete_subscription(topic, subscription)

    async def seek_subscription(self, topic: TopicName, subscription: str, when: str | int) -> None:
        """To "earliest", "latest" or milliseconds."""
        await self._service.seek_subscription(topic, subscription, when)

    async def clear_backlog(self, topic: TopicName, subscription: str) -> None:
        await self._service.clear_backlog(topic, subscription)

    async def skip_messages(self, topic: TopicName, subscription: str, segment_id: int, first: int, last: int) -> None:
        """Acknowledge what is given up."""
        await self._service.skip_messages(topic, subscription, segment_id, first, last)

    async def set_auto_scale_policy(self, topic: TopicName, policy: dict[str, Any]) -> None:
        """Replace what the topic overrides, by snake_case name; nothing: {}."""
        await self._service.scaling.set_policy(topic, AutoScalePolicyOverride.of(policy))

    async def get_auto_scale_history(self, topic: TopicName) -> dict[str, Any]:
        """Any broker answers; only the leader knows of decisions."""
        return await self._service.scaling.history(topic)

    async def set_topic_policies(self, topic: TopicName, policies: dict[str, Any] | None) -> None:
        """Change these, None to say nothing; `policies` None: say nothing at all."""
        await self._service.change_topic_policies(topic, policies)

    async def set_topic_properties(self, topic: TopicName, properties: dict[str, str]) -> None:
        """Replace them."""
        await self._service.set_topic_properties(topic, properties)
