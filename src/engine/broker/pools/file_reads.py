"""`FileReads`: reading from files for consumers that are behind, so that a crowd of them does not take the machine.

A block costs a worker's time and the loop's, and what is due to a whole crowd at once would be ahead of everything that
comes meanwhile. So only so much is read at the same time. Above that they wait in turn, are given smaller blocks, one
after the other, and while messages wait to become durable there is a rest after each.

While nothing waits to become durable, what the system has in its cache is read on the loop: to hand it to a worker and
to hear of it takes as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from engine.aio.pace import Pace
from engine.limits import MIB

READING_BYTES = 4 * MIB  # for all consumers; above it they wait in turn


class FileReads:
    """Of one broker. Loop thread only."""

    __slots__ = ("_busy", "_pace", "bytes")

    def __init__(self, busy: Callable[[], bool]) -> None:
        """`busy`: whether messages wait to become durable."""
        self.bytes = 0  # that are being read
        self._busy = busy
        self._pace = Pace(busy, steps=0, room=lambda: not self.bytes)

    @property
    def crowded(self) -> bool:
        """Whether others wait for their turn."""
        return len(self._pace) > 0

    @property
    def at_once(self) -> bool:
        """Whether a block that need not be waited for may be read on the loop. (How many of them in a turn is limited
        as for those from memory.)
        """
        return not (self.crowded or self._busy())

    def turn(self) -> asyncio.Future[None] | None:
        """None: read now. Otherwise done when it is time to begin."""
        if self.bytes < READING_BYTES and not self.crowded:
            return None
        return self._pace.join()

    def began(self, size: int, read: asyncio.Future[Any]) -> None:
        """So much is being read until `read` is done."""
        self.bytes += size

        def ended(_: asyncio.Future[Any]) -> None:
            self.bytes -= size
            self._pace.go_on()

        read.add_done_callback(ended)
