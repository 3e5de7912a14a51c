"""Ports of calls between brokers to higher floors: a leader's operations, a broker's, and participants of
transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from engine.control.base.ports import SegmentSpec
from engine.model.names import TopicName


class LeaderCalls(Protocol):
    """Operations of a topic's leader, by name and with plain arguments."""

    async def call(self, method: str, topic: TopicName, arguments: Mapping[str, Any]) -> Any:
        """Run one here. Raises NotOwnerError when another broker leads the topic, and what the operation raises."""


class ClusterCalls(Protocol):
    """Operations of a broker: segments that change their owner, and what the balancer asks for."""

    async def answer(self, method: str, args: Mapping[str, Any]) -> Any:
        """Run one here. Raises InvalidArgumentError for an unknown one, and what the operation raises."""


class Participant(Protocol):
    """Applies transactions' outcomes to segments, local or remote, for the transaction coordinator."""

    async def settle_transactions(self, spec: SegmentSpec, subscription: str | None) -> None:
        """Apply, durably, decided outcomes to the segment's writes, or to a subscription's acknowledgements in it.

        The records of the applied operations are deleted when it returns. Raises NotFoundError when the store or the
        cursor does not exist.
        """
