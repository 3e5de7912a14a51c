"""Half-open, silent and stuck peers are found by one timer for all connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from engine.wire.commands import Ping

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

log = logging.getLogger(__name__)

SWEEP_S_MAX = 5.0
_SWEEPS_PER_PERIOD = 4


class Pulse:
    """When a connection last showed that it lives. Times of the loop's clock."""

    __slots__ = ("frame_at", "frames", "heard_at", "pinged", "received", "since", "taken", "written_at")

    def __init__(self) -> None:
        now = asyncio.get_running_loop().time()
        self.since = now
        self.received = -1  # what was received in total at `heard_at`
        self.heard_at = now
        self.pinged = False
        self.frames = 0  # how many had come at the last look
        self.frame_at = now  # when one was last finished, or none was begun
        self.taken = 0  # what the peer had taken at the last look
        self.written_at = now  # when it last took something, or there was nothing to take

    def excuse(self, seconds: float) -> None:
        """For so long this process did not look, and read nothing: that says nothing of the peer."""
        self.since += seconds
        self.heard_at += seconds
        self.frame_at += seconds
        self.written_at += seconds


class KeepAlive:
    """Looks at every connection a few times per keep-alive period. Nothing is done per frame. Loop thread only.

    A peer silent for one period is pinged, silent for two dropped; so is one that takes nothing of what is queued
    for it for two periods, one that does not finish a frame for as long, and one that has not finished its handshake
    in time. Time in which the broker itself had no turn does not count: what its peers sent meanwhile is not read yet.
    """

    def __init__(
        self,
        connections: Iterable[Connection],
        *,
        period: float,
        handshake: float,
        swept: Callable[[], None] = lambda: None,
    ) -> None:
        self._connections = connections
        self._swept = swept  # called after each look
        self._period = period
        self._handshake = handshake
        self._every = min(SWEEP_S_MAX, handshake / 2, *([period / _SWEEPS_PER_PERIOD] if period else []))
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the next look is to be

    def start(self) -> None:
        """Begin to look."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._every
        self._timer = loop.call_at(self._due, self._sweep)

    def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        late = now - self._due
        for connection in list(self._connections):
            if late > self._every:
                connection.pulse.excuse(late)
            fault = self._look(connection, now)
            if fault:
                peer = connection.stream.peer
                log.warning("connection from %s is dropped: %s", peer, fault, extra={"peer": peer, "reason": fault})
                connection.stream.abort()
        self._swept()
        self.start()

    def _look(self, connection: Connection, now: float) -> str:
        """Bring the pulse up to date, ping if it is time; why to drop the connection, or ""."""
        pulse, stream = connection.pulse, connection.stream
        if not connection.ready and now - pulse.since > self._handshake:
            return f"no handshake within {self._handshake:g} s"
        received = connection.frames + getattr(stream, "bytes_received", 0)
        if received != pulse.received or connection.held:
            pulse.received, pulse.heard_at, pulse.pinged = received, now, False
        else:
            stream.compact()
        if connection.frames != pulse.frames or connection.held or not stream.pending_bytes:
            pulse.frames, pulse.frame_at = connection.frames, now
        unsent = stream.unsent_bytes
        taken = getattr(stream, "bytes_sent", 0) - unsent
        if unsent == 0 or taken > pulse.taken:
            pulse.written_at = now
        pulse.taken = taken
        return self._judge(connection, now) if self._period else ""

    def _judge(self, connection: Connection, now: float) -> str:
        pulse = connection.pulse
        if now - pulse.written_at >= 2 * self._period:
            return f"it took nothing of {connection.stream.unsent_bytes} bytes for {now - pulse.written_at:.0f} s"
        if now - pulse.frame_at >= 2 * self._period:
            return f"it has not finished a frame for {now - pulse.frame_at:.0f} s"
        if now - pulse.heard_at >= 2 * self._period:
            return f"it was silent for {now - pulse.heard_at:.0f} s"
        if now - pulse.heard_at >= self._period and not pulse.pinged:
            pulse.pinged = True
            connection.send(Ping())
        return ""
