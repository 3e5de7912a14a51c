"""How long messages take through this broker: to the disk, and from there to those who wait for them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from engine.aio.histogram import Histogram
from engine.clock import Clock
from engine.limits import ENTRY_HEADER_SIZE

if TYPE_CHECKING:
    from engine.storage.segment import Segment
    from engine.wire.stream import Payload

# Where the broker looks into an entry's header (_native/format/layout.pxd): flags, first offset, publish time.
_HEADER = struct.Struct("<17xB70xQq")
_DELIVER_AT = 32
_BUFFERS = (bytes, bytearray, memoryview)  # not made anew for every block


class Measures:
    """Once per frame that comes in or goes out, never per message. Loop thread only."""

    __slots__ = ("_clock", "accepted", "durable_to_delivered_s", "now", "publish_to_durable_s", "refused")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = clock.monotonic
        self.accepted = 0  # connections
        self.refused = 0
        self.publish_to_durable_s = Histogram()  # of appends, as they came in
        self.durable_to_delivered_s = Histogram()  # of blocks, as they go out

    def delivered(self, segment: Segment, data: Payload) -> None:
        """A block is sent for the first time. What has waited for its own time is not counted.

        The newest commits are timed; what is older is counted with its age since the broker got it.
        """
        first = data if isinstance(data, _BUFFERS) else data[0]
        if len(first) < ENTRY_HEADER_SIZE:
            return
        flags, offset, published_ms = _HEADER.unpack_from(first)
        if flags & _DELIVER_AT:
            return
        since = segment.marks.since(offset)
        age = (self._clock.time_ms() - published_ms) / 1000 if since is None else self.now() - since
        self.durable_to_delivered_s.observe(age if age > 0.0 else 0.0)
