"""`FileReads`: a limit on concurrent reads from log files, for consumers that are behind.

A block costs time of a worker thread and of the loop, and the blocks of a whole crowd would be ahead of all work that
arrives meanwhile. So only READING_BYTES are read at a time. Above that, readers wait in order, get smaller blocks, one
after the other, and while messages wait to become durable the loop runs other work after each block.

While no messages wait to become durable, blocks in the page cache are read on the loop: handing one to a worker and
getting it back takes as long as the read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from engine._native.serve.readers import ReadTurns
from engine.aio.pace import Pace
from engine.limits import MIB

READING_BYTES = 4 * MIB  # for all consumers; above it they wait in order


class FileReads(ReadTurns):
    """One per broker. Loop thread only."""

    __slots__ = ("_pace",)

    def __init__(self, busy: Callable[[], bool]) -> None:
        """`busy`: whether messages wait to become durable."""
        self._pace = Pace(busy, steps=0, room=lambda: not self.bytes)
        super().__init__(self._pace.waiting, busy)

    def turn(self) -> asyncio.Future[None] | None:
        """None: read now. Otherwise done when the read may begin."""
        if self.bytes < READING_BYTES and not self.crowded:
            return None
        return self._pace.join()

    def began(self, size: int, read: asyncio.Future[Any]) -> None:
        """`size` bytes are being read until `read` is done."""
        self.bytes += size

        def ended(_: asyncio.Future[Any]) -> None:
            self.bytes -= size
            self._pace.go_on()

        read.add_done_callback(ended)
