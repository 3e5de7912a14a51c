"""`Expiry`: a message that a subscription has not acknowledged within its time to live counts as acknowledged by it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from engine.broker.hosting.open_subscriptions import OpenSubscriptions
from engine.clock import ForwardSteps
from engine.model.subscriptions import SubscriptionMetadata

if TYPE_CHECKING:
    from engine.broker.segment.hosted import HostedSegment


class Expiry:
    """Ages are by publish times, less what the wall clock has skipped."""

    def __init__(self, subscriptions: OpenSubscriptions, steps: ForwardSteps) -> None:
        self._subscriptions = subscriptions
        self._steps = steps

    async def expire(
        self, hosted: HostedSegment, ttl_ms: int | None, subscriptions: Iterable[SubscriptionMetadata]
    ) -> int:
        """Acknowledge what is older for each of these, durably; how many messages. `ttl_ms`: None expires nothing.

        Raises NotFoundError (one was deleted meanwhile), and what reading the log and saving a cursor raise.
        """
        if ttl_ms is None:
            return 0
        behind = [facts for facts in subscriptions if await self._subscriptions.has_backlog(hosted, facts)]
        if not behind:
            return 0
        oldest_ms = self._steps.shown_ago(self._steps.sample(), ttl_ms)
        end = min(await hosted.segment.offset_at(oldest_ms), hosted.readable)
        return sum([await self._subscriptions.expire(hosted, facts, end) for facts in behind])
