"""`AdminService`: the administration of topics and subscriptions, in process; `rest.py` serves it over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from engine.broker.config import BrokerConfig
from engine.control.service import ScalableTopicService
from engine.errors import InvalidArgumentError, UnsupportedError
from engine.model.policies import NamespacePolicies


class AdminService:
    """Topics are names in any of their written forms. Loop thread only.

    Every method raises InvalidArgumentError for malformed arguments, and NotOwnerError when another broker leads.
    """

    def __init__(self, service: ScalableTopicService, config: BrokerConfig) -> None:
        self._service = service
        self._config = config

    # -- topics ----------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        segments: int | None = None,
        properties: Mapping[str, str] | None = None,
        key_hash: str | None = None,
        durability: str | None = None,
        entry_buckets: int | None = None,
    ) -> None:
        """Create a topic; what is None takes the namespace's or the broker's default. Raises AlreadyExistsError."""
        if not self._config.scalable_topic_enabled:
            raise UnsupportedError("scalable topics are switched off on this broker (scalable_topic_enabled)")
        await self._service.create_topic(
            topic,
            segments=segments,
            properties=properties,
            key_hash=key_hash,
            durability=durability,
            entry_buckets=entry_buckets,
        )

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions. Raises NotFoundError."""
        await self._service.delete_topic(topic)

    async def list_topics(
        self, namespace: str = "public/default", properties: Mapping[str, str] | None = None
    ) -> list[str]:
        """The names "topic://…" of a namespace, sorted; those that have all these properties."""
        return await self._service.list_topics(namespace, properties)

    async def get_metadata(self, topic: str) -> dict[str, Any]:
        """The specification's ScalableTopicMetadata. Raises NotFoundError."""
        return await self._service.get_metadata(topic)

    async def get_stats(self, topic: str) -> dict[str, Any]:
        """Counts, rates per second, backlogs, consumers. Raises NotFoundError."""
        return await self._service.get_stats(topic)

    # -- subscriptions ---------------------------------------------------------------------------------------------

    async def create_subscription(self, topic: str, subscription: str, *, initial_position: str = "latest") -> None:
        """Create it at "earliest" or "latest". Raises AlreadyExistsError, NotFoundError."""
        await self._service.create_subscription(topic, subscription, initial_position=initial_position)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete it from every segment; its consumers are told. Raises NotFoundError."""
        await self._service.delete_subscription(topic, subscription)

    async def seek_subscription(self, topic: str, subscription: str, when: str | int | datetime) -> None:
        """Move it to "earliest", "latest", an aware datetime or milliseconds. Raises NotFoundError."""
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise InvalidArgumentError(f"{when!r} has no time zone; an aware datetime is right")
            when = int(when.timestamp() * 1000)
        await self._service.seek_subscription(topic, subscription, when)

    async def clear_backlog(self, topic: str, subscription: str) -> None:
        """Acknowledge everything. Raises NotFoundError."""
        await self._service.clear_backlog(topic, subscription)

    # -- namespaces ------------------------------------------------------------------------------------------------

    async def get_namespace_policies(self, namespace: str) -> dict[str, Any]:
        """The policies in effect, by snake_case name."""
        return (await self._service.get_namespace_policies(namespace)).to_mapping()

    async def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Replace the policies; what is not named has its default."""
        await self._service.set_namespace_policies(namespace, NamespacePolicies.of(policies))

    async def remove_namespace_policies(self, namespace: str) -> None:
        """Go back to the broker's defaults."""
        await self._service.set_namespace_policies(namespace, None)

    # -- not in this version ---------------------------------------------------------------------------------------

    async def split_segment(self, topic: str, segment_id: int) -> NoReturn:
        """Raises UnsupportedError."""
        raise _fixed("split_segment")

    async def merge_segments(self, topic: str, segment_id: int, other_id: int) -> NoReturn:
        """Raises UnsupportedError."""
        raise _fixed("merge_segments")

    async def rebucket_segment(self, topic: str, segment_id: int, buckets: int) -> NoReturn:
        """Raises UnsupportedError."""
        raise _fixed("rebucket_segment")

    async def set_auto_scale_policy(self, name: str, policy: Mapping[str, Any]) -> NoReturn:
        """Raises UnsupportedError."""
        raise _fixed("set_auto_scale_policy")

    async def get_auto_scale_policy(self, name: str) -> NoReturn:
        """Raises UnsupportedError."""
        raise _fixed("get_auto_scale_policy")

    async def remove_auto_scale_policy(self, name: str) -> NoReturn:
        """Raises UnsupportedError."""
        raise _fixed("remove_auto_scale_policy")

    async def close(self) -> None:
        """Nothing is held."""


def _fixed(method: str) -> UnsupportedError:
    return UnsupportedError(f"{method}: the segments of a topic are fixed at its creation in this version")
