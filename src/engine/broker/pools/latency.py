"""Latencies of messages in this broker: from receipt to durable, and from durable to delivery."""

from __future__ import annotations

from engine._native.serve.delivery import DeliveryTimes
from engine.aio.histogram import Histogram
from engine.clock import Clock


class BrokerMetrics(DeliveryTimes):
    """Called once for each frame, never for each message. Loop thread only."""

    __slots__ = ("accepted", "publish_to_durable_s", "refused")

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, Histogram())  # of blocks sent to consumers
        self.accepted = 0  # connections
        self.refused = 0
        self.publish_to_durable_s = Histogram()  # of received frames
