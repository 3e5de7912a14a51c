"""The blocking `Admin`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from engine.aio.portal import Portal
from engine.client import AsyncAdmin


class Admin:
    """What operators do with topics, subscriptions and segments. Made by a client (`client.admin`) or an engine.

    Every method raises ConnectError, TimeoutError, and InvalidArgumentError for malformed arguments.
    """

    def __init__(self, portal: Portal, admin: AsyncAdmin) -> None:
        self._portal = portal
        self._admin = admin

    def create_topic(
        self,
        topic: str,
        *,
        segments: int | None = 1,
        properties: Mapping[str, str] | None = None,
        key_hash: str | None = "xxh64",
        durability: str | None = "fsync",
        entry_buckets: int | None = 4,
    ) -> None:
        """Create a topic of `segments` equal hash ranges.

        `properties`: text to text. `key_hash`: "xxh64" or "murmur3", fixed for good. `durability`: what an
        acknowledgement means: "fsync", "interval" or "os". `entry_buckets`: over the whole topic. None takes the
        namespace's or the broker's default. Raises AlreadyExistsError.
        """
        self._portal.run(
            self._admin.create_topic(
                topic,
                segments=segments,
                properties=properties,
                key_hash=key_hash,
                durability=durability,
                entry_buckets=entry_buckets,
            )
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions. Raises NotFoundError."""
        self._portal.run(self._admin.delete_topic(topic))

    def list_topics(self, namespace: str = "public/default", properties: Mapping[str, str] | None = None) -> list[str]:
        """The full names of a namespace's topics, sorted; only those that have all these properties."""
        return self._portal.run(self._admin.list_topics(namespace, properties))

    def get_metadata(self, topic: str) -> dict[str, Any]:
        """The specification's JSON as a dict. Raises NotFoundError."""
        return self._portal.run(self._admin.get_metadata(topic))

    def get_stats(self, topic: str) -> dict[str, Any]:
        """The specification's JSON as a dict. Raises NotFoundError."""
        return self._portal.run(self._admin.get_stats(topic))

    def create_subscription(self, topic: str, subscription: str, *, initial_position: str = "latest") -> None:
        """Create it, at "earliest" or "latest". Raises AlreadyExistsError, NotFoundError."""
        self._portal.run(self._admin.create_subscription(topic, subscription, initial_position=initial_position))

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete it in every segment. Raises NotFoundError."""
        self._portal.run(self._admin.delete_subscription(topic, subscription))

    def seek_subscription(self, topic: str, subscription: str, when: str | datetime) -> None:
        """Move it to "earliest", "latest" or an aware datetime. Raises NotFoundError."""
        self._portal.run(self._admin.seek_subscription(topic, subscription, when))

    def clear_backlog(self, topic: str, subscription: str) -> None:
        """Acknowledge everything it has not. Raises NotFoundError."""
        self._portal.run(self._admin.clear_backlog(topic, subscription))

    def get_namespace_policies(self, namespace: str) -> dict[str, Any]:
        """The policies in effect: retention_time_s, retention_size_bytes, durability."""
        return self._portal.run(self._admin.get_namespace_policies(namespace))

    def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Replace the policies; what is not named has its default. Raises InvalidArgumentError."""
        self._portal.run(self._admin.set_namespace_policies(namespace, policies))

    def remove_namespace_policies(self, namespace: str) -> None:
        """Go back to the broker's defaults."""
        self._portal.run(self._admin.remove_namespace_policies(namespace))

    def set_auto_scale_policy(self, topic: str, policy: Mapping[str, Any]) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.set_auto_scale_policy(topic, policy))

    def get_auto_scale_policy(self, topic: str) -> dict[str, Any]:
        """Raises UnsupportedError: segments do not change in this version."""
        return self._portal.run(self._admin.get_auto_scale_policy(topic))

    def remove_auto_scale_policy(self, topic: str) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.remove_auto_scale_policy(topic))

    def split_segment(self, topic: str, segment_id: int) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.split_segment(topic, segment_id))

    def merge_segments(self, topic: str, segment_id: int, other_id: int) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.merge_segments(topic, segment_id, other_id))

    def rebucket_segment(self, topic: str, segment_id: int, buckets: int) -> None:
        """Raises UnsupportedError: segments do not change in this version."""
        self._portal.run(self._admin.rebucket_segment(topic, segment_id, buckets))
