"""`Participants`: finds the segment, and its owner, that a transaction's operation refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.control.service import ScalableTopicService
from engine.errors import NotFoundError
from engine.model.transactions import TransactionOperation

if TYPE_CHECKING:
    from engine.broker.cluster.ports import Participant


class Participants:
    """Looks segments up in the current layouts of their topics."""

    def __init__(self, service: ScalableTopicService, host: Participant) -> None:
        self._service = service
        self._host = host

    async def settle(self, operation: TransactionOperation) -> None:
        """See TransactionCoordinator. Raises NotFoundError when the operation's segment or cursor was deleted."""
        segment = operation.segment
        spec = await self._service.segment_spec(segment.topic, segment.segment_id)
        if spec.name != segment:
            raise NotFoundError(f"{segment} is not in the layout of its topic")
        await self._host.settle_transactions(spec, operation.subscription)
