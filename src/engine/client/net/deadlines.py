"""`Deadlines`: one timer for many items, most of which end before their deadline."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LATE_S_MAX = 0.05  # an item may be this late when others were due just before it
_EARLY_S = 0.001  # timers of some event loops count whole milliseconds


class Deadlines(Generic[T]):
    """Loop thread only. Times are the event loop's."""

    __slots__ = ("_at", "_next", "_over", "_timer")

    def __init__(self, over: Callable[[T], object]) -> None:
        """`over` is called once with each item that was not discarded in time."""
        self._over = over
        self._at: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf  # when the timer is due

    def __len__(self) -> int:
        return len(self._at)

    def add(self, item: T, at: float) -> None:
        """Set an item's deadline."""
        self._at[item] = at
        if at < self._next:
            self._come_back(at)

    def discard(self, item: T) -> None:
        """Drop an item that has ended. Idempotent."""
        self._at.pop(item, None)

    def clear(self) -> None:
        """Drop all items."""
        self._at.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next = None, math.inf

    def _come_back(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next = asyncio.get_running_loop().call_at(at, self._expire), at

    def _expire(self) -> None:
        self._timer, self._next = None, math.inf
        now = asyncio.get_running_loop().time()
        late = [item for item, at in self._at.items() if at <= now + _EARLY_S]
        for item in late:
            del self._at[item]
        if self._at:
            self._come_back(max(min(self._at.values()), now + LATE_S_MAX))
        for item in late:
            self._over(item)
