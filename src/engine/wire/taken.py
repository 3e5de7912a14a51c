"""`Taken`: callbacks for the moment when the peer has taken what was queued for it so far.

Transports tell when a queue has become short, not how far it is written. So it is looked at: soon after the bytes were
queued, when they usually are gone, then in pauses that grow while the peer takes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_PAUSE_S_MIN = 0.001
_PAUSE_S_MAX = 0.25


class Taken:
    """Of one stream. `position` says how many bytes have left this process. Loop thread only."""

    __slots__ = ("_handle", "_pause", "_position", "_waiting")

    def __init__(self, position: Callable[[], int]) -> None:
        self._position = position
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._handle: asyncio.Handle | None = None
        self._pause = _PAUSE_S_MIN

    def add(self, position: int, callback: Callable[[], object]) -> None:
        """Call it once everything up to there has left, or the stream has ended. Never from inside of this."""
        self._waiting.append((position, callback))
        self._pause = _PAUSE_S_MIN
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._handle = None
        if self._report(self._position()):
            self._pause = _PAUSE_S_MIN
        if self._waiting and self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(self._pause, self._check)
            self._pause = min(2 * self._pause, _PAUSE_S_MAX)

    def _report(self, position: int) -> bool:
        reported = False
        while self._waiting and self._waiting[0][0] <= position:
            reported = True
            self._waiting.popleft()[1]()
        return reported

    def end(self) -> None:
        """The stream has ended: nothing is held for it any more. All callbacks run in the loop's next turn."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        waiting, self._waiting = self._waiting, deque()
        for _, callback in waiting:
            asyncio.get_running_loop().call_soon(callback)
