"""The memory that publishing may take: bytes received and not durable yet, counted over the whole broker."""

from __future__ import annotations

from typing import Protocol

from engine.aio.bag import Bag


class Pausable(Protocol):
    """A connection whose frames can be held up."""

    def hold_publishing(self) -> None:
        """Read no more from the peer."""

    def release_publishing(self) -> None:
        """Read again."""


class PublishMemory:
    """Whoever publishes above the limit is not read from until half of it is free again. Loop thread only.

    It may be overshot by what one read of each publishing connection brings.
    """

    __slots__ = ("_held", "in_flight", "limit", "peak")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.peak = 0
        self._held: Bag[Pausable] = Bag()

    def take(self, size: int, who: Pausable) -> None:
        """`who` has sent `size` bytes."""
        self.in_flight += size
        if self.in_flight > self.limit and who not in self._held:
            self.peak = max(self.peak, self.in_flight)
            self._held.add(who)
            who.hold_publishing()

    def free(self, size: int) -> None:
        """`size` bytes are durable, or refused."""
        self.in_flight -= size
        if self._held and self.in_flight <= self.limit // 2:
            held, self._held = self._held, Bag()
            for who in held:
                who.release_publishing()

    def forget(self, who: Pausable) -> None:
        """`who` is gone; what it sent is still freed one by one."""
        self._held.discard(who)
