"""Clocks for tests: one that is moved by hand, and one that follows an event loop, which may be on virtual time."""

from __future__ import annotations

import asyncio

EPOCH_MS = 1_750_000_000_000


class FakeClock:
    """A clock that stands still until advance() or jump()."""

    def __init__(self, time_ms: int = EPOCH_MS, monotonic: float = 0.0) -> None:
        self._time_ms = time_ms
        self._monotonic = monotonic

    def time_ms(self) -> int:
        """Wall-clock milliseconds since the epoch."""
        return self._time_ms

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward. Raises ValueError for a step back: only jump() may do that."""
        if seconds < 0:
            raise ValueError(f"seconds must be at least 0, got {seconds}; jump() sets the wall clock back")
        self._monotonic += seconds
        self._time_ms += round(seconds * 1000)

    def jump(self, milliseconds: int) -> None:
        """Step the wall clock alone, in either direction, as an administrator may."""
        self._time_ms += milliseconds


class LoopClock:
    """Shows the time of an event loop, plus a skew of the wall clock that may change at any moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch_ms: int = EPOCH_MS) -> None:
        self._loop = loop
        self._epoch_ms = epoch_ms
        self.skew_ms = 0

    def time_ms(self) -> int:
        """Wall-clock milliseconds since the epoch."""
        return self._epoch_ms + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        """Seconds since the loop's start."""
        return self._loop.time()
