"""Half-open, silent and stuck peers, found by one timer for all connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from engine._native.serve.arrivals import Signs
from engine.wire.commands import Ping

if TYPE_CHECKING:
    from engine.broker.session.connection import Connection

log = logging.getLogger(__name__)

SWEEP_S_MAX = 5.0
_SWEEPS_PER_PERIOD = 4


class Pulse(Signs):
    """Signs of life of one connection. Times of the loop's clock."""

    __slots__ = ("frame_at", "heard_at", "known_frames", "pinged", "received", "since", "taken", "written_at")
    listener: asyncio.Future[None] | None  # done at the next frame

    def __init__(self) -> None:
        now = asyncio.get_running_loop().time()
        self.since = now
        # As of the last check.
        self.received = -1  # bytes and frames received at `heard_at`
        self.heard_at = now
        self.pinged = False
        self.known_frames = 0
        self.frame_at = now  # when a frame was last completed, or none was begun
        self.taken = 0  # bytes that the peer had taken
        self.written_at = now  # when it last took bytes, or none were queued

    async def frame_within(self, seconds: float) -> bool:
        """Whether a frame comes, or wake() is called, within this time."""
        if self.listener is None or self.listener.done():
            self.listener = asyncio.get_running_loop().create_future()
        listener = self.listener
        await asyncio.wait([listener], timeout=seconds)
        return listener.done()

    def wake(self) -> None:
        """A frame has come, or the connection is lost."""
        listener, self.listener = self.listener, None
        if listener is not None and not listener.done():
            listener.set_result(None)

    def excuse(self, seconds: float) -> None:
        """This process did not run for so long, and read nothing: that says nothing about the peer."""
        self.since += seconds
        self.heard_at += seconds
        self.frame_at += seconds
        self.written_at += seconds


class KeepAlive:
    """Checks every connection a few times per keep-alive period; frames cost nothing. Loop thread only.

    A peer that is silent for one period is pinged. Its connection is dropped when for two periods

    * it is silent, or
    * it has not completed a frame that it began, or
    * it takes no bytes although some are queued,

    and when the handshake is not done in time. Time in which the broker's process did not run does not count: frames
    that arrived meanwhile are not read yet.
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
        self._swept = swept  # called after each check
        self._period = period
        self._handshake = handshake
        self._every = min(SWEEP_S_MAX, handshake / 2, *([period / _SWEEPS_PER_PERIOD] if period else []))
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # time of the next check

    def start(self) -> None:
        """Start the timer."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._every
        self._timer = loop.call_at(self._due, self._sweep)

    def stop(self) -> None:
        """Stop the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        late = now - self._due
        for connection in list(self._connections):
            if late > self._every:
                connection.pulse.excuse(late)
            fault = self._check(connection, now)
            if fault:
                peer = connection.stream.peer
                log.warning("connection from %s is dropped: %s", peer, fault, extra={"peer": peer, "reason": fault})
                connection.stream.abort()
        self._swept()
        self.start()

    def _check(self, connection: Connection, now: float) -> str:
        """Bring the pulse up to date, and ping if it is time. Why to drop the connection, or ""."""
        pulse, stream = connection.pulse, connection.stream
        if not connection.ready and now - pulse.since > self._handshake:
            return f"no handshake within {self._handshake:g} s"
        received = pulse.frames + stream.bytes_received
        if received != pulse.received or connection.held:
            pulse.received, pulse.heard_at, pulse.pinged = received, now, False
        else:
            stream.compact()
        if pulse.frames != pulse.known_frames or connection.held or not stream.pending_bytes:
            pulse.known_frames, pulse.frame_at = pulse.frames, now
        unsent = stream.unsent_bytes
        taken = stream.bytes_sent - unsent
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
