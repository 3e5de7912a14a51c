"""Readers that wait until an offset of a segment is durable, or never will be."""

from __future__ import annotations

import asyncio


class Waiters:
    """Loop thread only."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def add(self, offset: int, *, done: bool) -> asyncio.Future[None]:
        """A future that ends with the wake-up that concerns the offset; at once when `done`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if done:
            future.set_result(None)
        else:
            self._waiting.append((offset, future))
        return future

    def wake(self, below: int | None = None) -> None:
        """End those that wait for offsets below a limit; all, without one."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for offset, future in waiting:
            if future.done():
                continue
            if below is None or offset < below:
                future.set_result(None)
            else:
                self._waiting.append((offset, future))
