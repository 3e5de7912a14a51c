"""`AdminBackend`: what carries out the checked requests of `client.admin`: the HTTP API, or a broker in the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class AdminBackend(Protocol):
    """Carries out checked requests. Topics are full names (`topic://…`), instants wall-clock milliseconds."""

    async def create_topic(
        self,
        topic: str,
        *,
        segments: int | None,
        properties: Mapping[str, str] | None,
        key_hash: str | None,
        durability: str | None,
        entry_buckets: int | None,
    ) -> None:
        """Raises AlreadyExistsError."""

    async def delete_topic(self, topic: str) -> None:
        """Raises NotFoundError."""

    async def list_topics(self, namespace: str, properties: Mapping[str, str] | None) -> list[str]:
        """Full names, sorted."""

    async def get_metadata(self, topic: str) -> dict[str, Any]:
        """The specification's ScalableTopicMetadata."""

    async def get_stats(self, topic: str) -> dict[str, Any]:
        """The specification's stats."""

    async def split_segment(self, topic: str, segment_id: int) -> dict[str, Any]:
        """The new metadata."""

    async def merge_segments(self, topic: str, segment_id: int, other_id: int) -> dict[str, Any]:
        """The new metadata."""

    async def rebucket_segment(self, topic: str, segment_id: int, buckets: int) -> dict[str, Any]:
        """The new metadata."""

    async def create_segment(self, segment: str, subscriptions: Sequence[str]) -> None:
        """`segment`: "segment://…"."""

    async def terminate_segment(self, segment: str) -> None:
        """`segment`: "segment://…"."""

    async def delete_segment(self, segment: str, force: bool) -> None:
        """`segment`: "segment://…"."""

    async def create_subscription(self, topic: str, subscription: str, *, initial_position: str) -> None:
        """Raises AlreadyExistsError, NotFoundError."""

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Raises NotFoundError."""

    async def seek_subscription(self, topic: str, subscription: str, when: str | int) -> None:
        """`when`: "earliest", "latest" or milliseconds."""

    async def clear_backlog(self, topic: str, subscription: str) -> None:
        """Raises NotFoundError."""

    async def skip_messages(self, topic: str, subscription: str, segment_id: int, first: int, last: int) -> None:
        """Raises NotFoundError, InvalidArgumentError."""

    async def get_namespace_policies(self, namespace: str) -> dict[str, Any]:
        """By snake_case name."""

    async def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> None:
        """Replace them all."""

    async def remove_namespace_policies(self, namespace: str) -> None:
        """Back to the broker's defaults."""

    async def set_auto_scale_policy(self, topic: str, policy: Mapping[str, Any]) -> None:
        """By snake_case name. Raises NotFoundError."""

    async def get_auto_scale_policy(self, topic: str) -> dict[str, Any]:
        """By snake_case name. Raises NotFoundError."""

    async def remove_auto_scale_policy(self, topic: str) -> None:
        """Raises NotFoundError."""

    async def set_namespace_auto_scale_policy(self, namespace: str, policy: Mapping[str, Any]) -> None:
        """By snake_case name."""

    async def get_namespace_auto_scale_policy(self, namespace: str) -> dict[str, Any]:
        """By snake_case name."""

    async def remove_namespace_auto_scale_policy(self, namespace: str) -> None:
        """Back to the broker's configuration."""

    async def list_transactions(
        self, *, open_longer_than: float | None, segment: str | None, limit: int | None
    ) -> list[dict[str, Any]]:
        """Open ones, the oldest first."""

    async def get_transaction(self, ident: str) -> dict[str, Any]:
        """One of them, or one that has ended. Raises TransactionNotFoundError."""

    async def abort_transaction(self, ident: str) -> None:
        """Raises TransactionNotFoundError, TransactionConflictError."""

    async def get_metrics(self) -> str:
        """Prometheus text."""

    async def get_dynamic_configuration(self) -> dict[str, Any]:
        """What was set at run time."""

    async def get_runtime_configuration(self) -> dict[str, Any]:
        """What is in effect, of all that may be set."""

    async def set_dynamic_configuration(self, name: str, value: str | float) -> None:
        """For all brokers."""

    async def remove_dynamic_configuration(self, name: str) -> None:
        """Back to what each broker was started with."""

    async def close(self) -> None:
        """Release what it holds. Idempotent."""
