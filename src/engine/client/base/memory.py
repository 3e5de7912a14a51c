"""`ClientMemory`: what the producers and consumers of one client may hold, all together.

It is divided, so that none has to wait for another kind of holder: where there are consumers, producers have one half.
Of the rest, what consumers fetch ahead is one part, shared out evenly; what they have decompressed, and not received to
its end, is the other. One thing (a message, an entry) may always be held alone, so that nothing waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from engine._native.consume.entry_queue import EntryQueue
from engine._native.produce.batcher import Account
from engine.limits import KIB, RECEIVE_QUEUE_BYTES

WINDOW_MIN = 16 * KIB  # an entry comes whole, however small the window is
ROOM_SHARE = 0.5  # of the producers' part; above it, of those that wait only a few are woken
WOKEN_MAX = 16  # whenever something has left


class Waiter(Protocol):
    """A producer without room."""

    def room_came(self) -> None:
        """There may be room again."""


class ClientMemory:
    """Loop thread only, but for opened(). `sending`: what producers have pending, and their part.

    `window`: bytes that each consumer may be sent ahead.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sending = Account(limit)
        self.window = 0
        self.waiting: dict[Waiter, None] = {}
        self._producers = self._consumers = 0
        # Consumers whose next message is in a decompressed entry, the one of longest ago first, as far as known.
        self._opened: dict[EntryQueue, int] = {}
        self._opened_bytes = 0
        self._divide()

    def _divide(self) -> None:
        self.sending.limit = self.limit // 2 if self._consumers else self.limit
        each = self._receiving // max(self._consumers, 1)
        self.window = min(RECEIVE_QUEUE_BYTES, max(each, WINDOW_MIN))

    @property
    def _receiving(self) -> int:
        """What consumers fetch ahead; and as much is for what they decompress."""
        return self.limit // 4 if self._producers else self.limit // 2

    def producer_came(self) -> Callable[[], None]:
        """One more; the result says, once, that it has gone."""
        self._producers += 1
        self._divide()
        return _once(self._producer_left)

    def _producer_left(self) -> None:
        self._producers -= 1
        self._divide()

    def consumer_came(self) -> Callable[[], None]:
        """Likewise."""
        self._consumers += 1
        self._divide()
        return _once(self._consumer_left)

    def _consumer_left(self) -> None:
        self._consumers -= 1
        self._divide()

    # -- producers -------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether producers may send without looking."""
        return self.sending.used <= self.sending.limit * ROOM_SHARE

    @property
    def has_little_room(self) -> bool:
        """Whether producers that have nothing pending may send."""
        return self.sending.used < self.sending.limit

    def room_came(self) -> None:
        """Something has left: wake those that wait, the longest first."""
        waiting = list(self.waiting)
        if not self.has_room:
            waiting = waiting[:WOKEN_MAX] if self.has_little_room else []
        for waiter in waiting:
            del self.waiting[waiter]
            waiter.room_came()

    # -- what was decompressed -------------------------------------------------------------------------------

    def opened(self, queue: EntryQueue, size: int) -> None:
        """From the thread that receives: it has decompressed what it gives next.

        Above the limit, those that were received from longest ago let go of theirs, and decompress it once more.
        """
        before = self._opened.pop(queue, 0)
        self._opened[queue] = size
        self._opened_bytes += size - before  # no call in it, at which another thread might add as well
        if self._opened_bytes > self._receiving:
            self._look(queue, size)

    def _look(self, newest: EntryQueue, size: int) -> None:
        still = {queue: found for queue in list(self._opened) if queue is not newest and (found := queue.opened)}
        still[newest] = size
        total = sum(still.values())
        for queue in list(still):
            if total <= self._receiving:
                break
            if queue is not newest:
                queue.close_front()
                total -= still.pop(queue) - queue.opened
        self._opened, self._opened_bytes = still, total

    def forget(self, queue: EntryQueue) -> None:
        """Nothing more is received from it."""
        before = self._opened.pop(queue, 0)
        self._opened_bytes -= before

    @property
    def opened_bytes(self) -> int:
        """What is decompressed now and waits in part."""
        return sum(queue.opened for queue in list(self._opened))


def _once(function: Callable[[], Any]) -> Callable[[], None]:
    called = False

    def call() -> None:
        nonlocal called
        if not called:
            called = True
            function()

    return call
