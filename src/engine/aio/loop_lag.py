"""Measures how late the event loop runs its timers, which is how long everything on it is held up."""

from __future__ import annotations

import asyncio
from collections import deque

from engine.aio.histogram import Histogram

PERIOD_S = 0.1
_RECENT = 50  # samples that `recent` covers


class LoopLag:
    """Schedules a timer periodically and measures its delay. Loop thread only."""

    __slots__ = ("_due", "_last", "_timer", "histogram")

    def __init__(self) -> None:
        self.histogram = Histogram()
        self._last: deque[float] = deque(maxlen=_RECENT)
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def recent(self) -> float:
        """The longest delay of the last samples, in seconds."""
        return max(self._last, default=0.0)

    def start(self) -> None:
        """Begin to measure. Idempotent."""
        if self._timer is None:
            self._ask()

    def stop(self) -> None:
        """End measuring. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + PERIOD_S
        self._timer = loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        late = max(asyncio.get_running_loop().time() - self._due, 0.0)
        self._last.append(late)
        self.histogram.observe(late)
        self._ask()
