"""What calls between brokers need of higher floors: a leader's operations, and participants of transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from engine.control.base.ports import SegmentSpec
from engine.model.names import TopicName


class LeaderCalls(Protocol):
    """Operations of a topic's leader, by name and with plain arguments."""

    async def call(self, method: str, topic: TopicName, arguments: Mapping[str, Any]) -> Any:
        """Run one here. Raises NotOwnerError when another broker leads the topic, and what the operation raises."""


class Participant(Protocol):
    """Serves segments, here or elsewhere, as the coordinator of transactions sees it."""

    async def settle_transactions(self, spec: SegmentSpec, subscription: str | None) -> None:
        """Apply, durably, what was decided about the segment's writes, or a subscription's acknowledgements in it.

        The operation records of what was applied are gone when it returns. Raises NotFoundError when there is no such
        store, or no such cursor.
        """
