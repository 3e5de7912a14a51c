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

from engine.aio.pace import Pace
from engine.limits import MIB

READING_BYTES = 4 * MIB  # for all consumers; above it they wait in order


class FileReads:
    """One per broker. Loop thread only."""

    __slots__ = ("_busy", "_pace", "bytes")

    def __init__(self, busy: Callable[[], bool]) -> None:
        """`busy`: whether messages wait to become durable."""
        self.bytes = 0  # being read
        self._busy = busy
        self._pace = Pace(busy, steps=0, room=lambda: not self.bytes)

    @property
    def crowded(self) -> bool:
        """Whether readers wait for their turn."""
        return len(self._pace) > 0

    @property
    def at_once(self) -> bool:
        """Whether a block in the page cache may be read on the loop. (Their number in one turn is limited as for
        blocks from memory.)
        """
        return not (self.crowded or self._busy())

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
