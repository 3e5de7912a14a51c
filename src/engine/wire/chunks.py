"""The memory that received bytes land in, and what is done when there is too much of it (`_native/wire/frames.pyx`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine._native.wire.frames import CHUNK_SIZE, Chunk, Chunks

__all__ = ["CHUNK_SIZE", "Chunk", "ChunkPool"]


class ChunkPool(Chunks):
    """The chunks of one event loop: big ones, lent out as views, reused when the last view is gone.

    `taken` is what receivers hold now: each has a chunk while it has half a frame. When that passes half of `limit`,
    they get no more than they need; when it passes the limit, `on_full` is called at the next turn of the loop.
    """

    def __init__(self, chunk_size: int = CHUNK_SIZE) -> None:
        super().__init__(chunk_size)
        self.on_full: Callable[[], None] | None = None
        self._reporting = False

    def passed(self) -> None:
        if not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self._report_full)

    def _report_full(self) -> None:
        self._reporting = False
        if self.taken > self.limit > 0 and self.on_full is not None:
            self.on_full()
