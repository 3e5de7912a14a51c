"""Latencies of messages in this broker: from receipt to durable, and from durable to delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine._native.format.heads import head_of
from engine.aio.histogram import Histogram
from engine.clock import Clock

if TYPE_CHECKING:
    from engine.storage.segment import Segment
    from engine.wire.stream import Payload

_BUFFERS = (bytes, bytearray, memoryview)  # not made anew for every block


class BrokerMetrics:
    """Called once for each frame, never for each message. Loop thread only."""

    __slots__ = ("_clock", "accepted", "durable_to_delivered_s", "now", "publish_to_durable_s", "refused")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = clock.monotonic
        self.accepted = 0  # connections
        self.refused = 0
        self.publish_to_durable_s = Histogram()  # of received frames
        self.durable_to_delivered_s = Histogram()  # of blocks sent to consumers

    def delivered(self, segment: Segment, data: Payload) -> None:
        """A block is sent for the first time; one that begins with delayed messages is not counted.

        The segment knows when its newest commits became durable. An older block counts with the time since its
        messages were received.
        """
        head = head_of(data if isinstance(data, _BUFFERS) else data[0])
        if head is None or head.delayed:
            return
        since = segment.marks.since(head.first)
        age = (self._clock.time_ms() - head.publish_time_ms) / 1000 if since is None else self.now() - since
        self.durable_to_delivered_s.observe(age if age > 0.0 else 0.0)
