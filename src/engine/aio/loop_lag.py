"""How late the event loop is: what everything on it waits for while something holds it up."""

from __future__ import annotations

import asyncio
from collections import deque

from engine.aio.histogram import Histogram

PERIOD_S = 0.1
_RECENT = 50  # looks that `recent` goes by


class LoopLag:
    """Asks the loop for a call again and again, and measures how late it comes. Loop thread only."""

    __slots__ = ("_due", "_last", "_timer", "histogram")

    def __init__(self) -> None:
        self.histogram = Histogram()
        self._last: deque[float] = deque(maxlen=_RECENT)
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def recent(self) -> float:
        """The longest delay of the last seconds."""
        return max(self._last, default=0.0)

    def start(self) -> None:
        """Begin to look. Idempotent."""
        if self._timer is None:
            self._ask()

    def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + PERIOD_S
        self._timer = loop.call_at(self._due, self._look)

    def _look(self) -> None:
        late = max(asyncio.get_running_loop().time() - self._due, 0.0)
        self._last.append(late)
        self.histogram.observe(late)
        self._ask()
