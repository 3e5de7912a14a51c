"""Readers that wait until an offset of a segment is durable, or never will be."""

from __future__ import annotations

import asyncio
from collections import deque

WOKEN_PER_TURN = 8


class Waiters:
    """The futures of waiting readers.

    Only WOKEN_PER_TURN are resumed in each turn of the loop: if a thousand readers wait for one message, its producer
    and the next ones must not wait for everything that these readers do.
    """

    __slots__ = ("_due", "_waking", "waiting")

    def __init__(self) -> None:
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._due: deque[asyncio.Future[None]] = deque()  # to be resumed
        self._waking = False

    def add(self, offset: int, *, done: bool) -> asyncio.Future[None]:
        """A future that is done with the first wake() above the offset; at once if `done`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if done:
            future.set_result(None)
        else:
            self.waiting.append((offset, future))
        return future

    def wake(self, below: int | None = None) -> None:
        """Resume those that wait for offsets below a limit, without one all, in the order of their arrival."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        for offset, future in waiting:
            if below is None or offset < below:
                self._due.append(future)
            elif not future.done():
                self.waiting.append((offset, future))
        if not self._waking:
            self._wake_some()

    def _wake_some(self) -> None:
        woken = 0
        while self._due and woken < WOKEN_PER_TURN:
            future = self._due.popleft()
            if not future.done():
                future.set_result(None)
                woken += 1
        self._waking = bool(self._due)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)
