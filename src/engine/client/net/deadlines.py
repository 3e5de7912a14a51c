"""`Deadlines`: things that mostly end before their time is over, with one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LATE_S_MAX = 0.05  # behind others that were due
_EARLY_S = 0.001  # timers of some event loops count whole milliseconds


class Deadlines(Generic[T]):
    """Loop thread only. Times are the event loop's."""

    __slots__ = ("_at", "_next", "_over", "_timer")

    def __init__(self, over: Callable[[T], object]) -> None:
        """`over` is called once with what was not taken out in time."""
        self._over = over
        self._at: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf  # when that comes

    def __len__(self) -> int:
        return len(self._at)

    def add(self, item: T, at: float) -> None:
        """Its time is over then."""
        self._at[item] = at
        if at < self._next:
            self._come_back(at)

    def discard(self, item: T) -> None:
        """It has ended. Idempotent."""
        self._at.pop(item, None)

    def clear(self) -> None:
        """Nothing is called any more."""
        self._at.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next = None, math.inf

    def _come_back(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next = asyncio.get_running_loop().call_at(at, self._look), at

    def _look(self) -> None:
        self._timer, self._next = None, math.inf
        now = asyncio.get_running_loop().time()
        late = [item for item, at in self._at.items() if at <= now + _EARLY_S]
        for item in late:
            del self._at[item]
        if self._at:
            self._come_back(max(min(self._at.values()), now + LATE_S_MAX))
        for item in late:
            self._over(item)
