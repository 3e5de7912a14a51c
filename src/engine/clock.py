"""What time it is: the `Clock` everybody is handed, and the system's own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks in one. Timers go through the event loop, which a simulation runs on virtual time."""

    def time_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch, UTC. It may jump in either direction."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start. It never goes back."""


# A lease is over after so many seconds also where the machine was asleep for some of them.
_SINCE_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def time_ms(self) -> int:
        """Wall-clock milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.clock_gettime(_SINCE_BOOT)
