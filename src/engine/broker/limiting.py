"""`Limiting`: a broker goes by the limits of what is here, and what is attached to it follows their changes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from engine.broker.limits.limits import BrokerLimits
from engine.broker.upkeep.attendance import AttendanceLoop
from engine.broker.upkeep.quotas import NAMES, QuotaLoop
from engine.broker.upkeep.rate_shares import RateShares
from engine.model.limits import ATTENDED, EACH_ROLE, RATES, ROLE
from engine.model.rights import CLUSTER

if TYPE_CHECKING:
    from engine.broker.delivery.consumer import Consumer
    from engine.broker.segment.producer import Producer
    from engine.broker.server import Broker
    from engine.broker.upkeep.rounds import Rounds


class Limiting:
    """Made with the first limit. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._begun: set[Rounds] = set()
        limits = self.limits = broker.memory.limits = BrokerLimits(self._changed, broker.memory.followed.told)
        limits.meet_others = self._meet_others
        self._first = True  # nothing of what is attached counts yet
        parts, brokers, tasks = broker.parts, broker.parts.members.brokers, broker.tasks
        self.quotas = QuotaLoop(parts.service, parts.segments, parts.subscriptions, broker.metadata, limits, brokers,
                                broker.clock, tasks)  # fmt: skip
        self.shares = RateShares(broker.metadata, limits, brokers, broker.clock, tasks)
        coordinator = parts.transactions.coordinator
        self.attendance = AttendanceLoop(broker.metadata, limits, brokers, coordinator, tasks)
        self._rounds = (self.quotas, NAMES), (self.shares, RATES), (self.attendance, ATTENDED)
        for connection in broker.connections:
            if connection.ready and connection.role and not connection.counted:
                connection.counted = True
                limits.connections[connection.role] = limits.connections.get(connection.role, 0) + 1

    def _changed(self, groups: set[str]) -> None:
        """Producers and consumers go by the limits of now; what they used before them does not count.

        `groups`: those whose limits are others than before.
        """
        every = self._first or CLUSTER in groups or EACH_ROLE in groups
        self._first = False
        for connection in list(self._broker.connections):
            every_one = every or ROLE + connection.role in groups
            attached: list[Producer | Consumer] = [*connection.producers.values(), *connection.consumers.values()]
            for one in attached:
                if every_one or one.hosted.name.topic.tenant in groups:
                    one.limit(self.limits)
        for rounds, names in self._rounds:
            if rounds not in self._begun and self.limits.says(names):
                self._begun.add(rounds)
                self._broker.tasks.spawn(rounds.run(), rounds.over)
            rounds.wake()

    async def _meet_others(self, group: str) -> None:
        """Know what other brokers have of a group before anything of it is here."""
        met: list[Coroutine[Any, Any, None]] = []
        for rounds, names in self._rounds:
            if group in self.limits.groups(names):
                met.append(rounds.meet())
        if met:
            await asyncio.gather(*met)


def groups_here(broker: Broker) -> set[str]:
    """The groups (see FollowedLimits) that something of a broker is of."""
    found = {topic.tenant for topic in broker.service.led()}
    found |= broker.segments.tenants()
    found |= {ROLE + connection.role for connection in broker.connections if connection.role}
    if broker.memory.limits is not None:
        found.update(broker.memory.limits.here())
    return found
