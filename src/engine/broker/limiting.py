"""`Limiting`: a broker goes by the limits in the metadata store, and what is attached to it follows their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.broker.limits.limits import BrokerLimits
from engine.broker.upkeep.attendance import AttendanceLoop
from engine.broker.upkeep.quotas import NAMES, QuotaLoop
from engine.broker.upkeep.rate_shares import RateShares
from engine.model.limits import ATTENDED, RATES

if TYPE_CHECKING:
    from engine.broker.server import Broker


class Limiting:
    """Made with the first limit. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._checking = self._sharing = self._attending = False
        limits = self.limits = broker.memory.limits = BrokerLimits(self._changed)
        parts = broker.parts
        parts.service.go_by(limits)
        self.quotas = QuotaLoop(parts.service, parts.segments, parts.subscriptions, broker.metadata, limits,
                                parts.members.brokers, broker.clock)  # fmt: skip
        self.shares = RateShares(broker.metadata, limits, parts.members.brokers, broker.clock)
        coordinator = parts.transactions.coordinator
        self.attendance = AttendanceLoop(broker.metadata, limits, parts.members.brokers, coordinator)
        for connection in broker.connections:
            if connection.ready and connection.role and not connection.counted:
                connection.counted = True
                limits.connections[connection.role] = limits.connections.get(connection.role, 0) + 1

    def _changed(self) -> None:
        """Producers and consumers go by the limits of now; what they used before them does not count."""
        for connection in list(self._broker.connections):
            for producer in list(connection.producers.values()):
                producer.limit(self.limits)
            for consumer in list(connection.consumers.values()):
                consumer.limit(self.limits)
        if not self._checking and self.limits.says(NAMES):
            self._checking = True
            self._broker.tasks.spawn(self.quotas.run(), "quotas")
        self.quotas.wake()
        if not self._sharing and self.limits.says(RATES):
            self._sharing = True
            self._broker.tasks.spawn(self.shares.run(), "shares of rates")
        self.shares.wake()
        if not self._attending and self.limits.says(ATTENDED):
            self._attending = True
            self._broker.tasks.spawn(self.attendance.run(), "attendance")
        self.attendance.wake()
