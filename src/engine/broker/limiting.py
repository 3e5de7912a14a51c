"""`Limiting`: a broker goes by the limits of what is here, and what is attached to it follows their changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from engine.broker.limits.limits import BrokerLimits
from engine.broker.upkeep.attendance import AttendanceLoop
from engine.broker.upkeep.quotas import NAMES, QuotaLoop
from engine.broker.upkeep.rate_shares import RateShares
from engine.errors import TimeoutError
from engine.model.limits import ATTENDED, RATES
from engine.model.names import EACH_ROLE, ROLE
from engine.model.rights import CLUSTER

if TYPE_CHECKING:
    from engine.broker.delivery.consumer import Consumer
    from engine.broker.segment.producer import Producer
    from engine.broker.server import Broker
    from engine.broker.upkeep.rounds import Rounds

log = logging.getLogger(__name__)


class Limiting:
    """Made with the first limit. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._begun: set[Rounds] = set()
        self._said: set[Rounds] = set()  # of which there are limits
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
        for connection in list(self._broker.connections) if every or groups else ():
            every_one = every or ROLE + connection.role in groups
            attached: list[Producer | Consumer] = [*connection.producers.values(), *connection.consumers.values()]
            for one in attached:
                if every_one or one.hosted.name.topic.tenant in groups:
                    self._limit(one, connection.role)
        for rounds, names in self._rounds:
            is_new = rounds not in self._said and self.limits.says(names)
            if is_new:
                self._said.add(rounds)
            elif not self.limits.says(names):
                self._said.discard(rounds)
            if is_new and rounds not in self._begun:
                self._begun.add(rounds)
                self._broker.tasks.spawn(rounds.run(), rounds.over)
            if every or groups or is_new:
                rounds.wake()

    def _limit(self, one: Producer | Consumer, role: str) -> None:
        try:
            one.limit(self.limits)
        except TimeoutError as e:
            log.debug("one of %s goes by the limits as before: %s", one.hosted.name, e)
            for group in (one.hosted.name.topic.tenant, ROLE + role):
                if not self.limits.knows(group):
                    self.limits.change_again(group)

    async def _meet_others(self, group: str) -> None:
        """Know what other brokers have of a group before anything of it is here."""
        met: list[Coroutine[Any, Any, None]] = []
        for rounds, names in self._rounds:
            if group in self.limits.groups(names):
                met.append(rounds.meet(group))
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
