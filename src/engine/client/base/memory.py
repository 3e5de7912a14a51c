"""`ClientMemory`: how many bytes the producers and consumers of one client may hold together.

It is divided, so that no kind of holder waits for another: where there are consumers, producers have one half. Of the
rest, one part is for what consumers fetch ahead, shared evenly; the other for what is decompressed and not received to
its end. A single message or entry may always be held, so that nothing waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from engine.limits import KIB, RECEIVE_QUEUE_BYTES

if TYPE_CHECKING:
    from engine._native.consume.entry_queue import EntryQueue
    from engine._native.produce.batcher import Account

WINDOW_MIN = 16 * KIB  # an entry is sent whole, however small the window is
ROOM_SHARE = 0.5  # of the producers' part; above it, only a few of those that wait are woken
WOKEN_MAX = 16  # each time that something has left


class Waiter(Protocol):
    """A producer without room."""

    def room_came(self) -> None:
        """There may be room again."""


class ClientMemory:
    """Loop thread only, but for opened(). `window`: bytes that each consumer may be sent ahead."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._sending_limit = limit
        self.window = 0
        self.waiting: dict[Waiter, None] = {}
        self._producers = self._consumers = 0
        # Consumers whose next message is in a decompressed entry, the one of longest ago first, as far as known.
        self._opened: dict[EntryQueue, int] = {}
        self._opened_bytes = 0
        self._divide()

    def _divide(self) -> None:
        self._sending_limit = self.limit // 2 if self._consumers else self.limit
        if "sending" in self.__dict__:
            self.sending.limit = self._sending_limit
        each = self._receiving // max(self._consumers, 1)
        self.window = min(RECEIVE_QUEUE_BYTES, max(each, WINDOW_MIN))

    @cached_property
    def sending(self) -> Account:
        """What producers have pending, and their part."""
        from engine._native.produce.batcher import Account  # with the first producer

        return Account(self._sending_limit)

    @property
    def _receiving(self) -> int:
        """Bytes for what consumers fetch ahead; there are as many for what they decompress."""
        return self.limit // 4 if self._producers else self.limit // 2

    def producer_came(self) -> Callable[[], None]:
        """Count a producer. Call the result when it has closed; a second call does nothing."""
        self._producers += 1
        self._divide()
        return _once(self._producer_left)

    def _producer_left(self) -> None:
        self._producers -= 1
        self._divide()

    def consumer_came(self) -> Callable[[], None]:
        """Count a consumer. Call the result when it has closed; a second call does nothing."""
        self._consumers += 1
        self._divide()
        return _once(self._consumer_left)

    def _consumer_left(self) -> None:
        self._consumers -= 1
        self._divide()

    # -- producers -------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether every producer may send a burst."""
        return self.sending.used <= self.sending.limit * ROOM_SHARE

    @property
    def has_little_room(self) -> bool:
        """Whether producers that have nothing pending may send."""
        return self.sending.used < self.sending.limit

    def room_came(self) -> None:
        """Something has left: wake those that wait, first come first served."""
        waiting = list(self.waiting)
        if not self.has_room:
            waiting = waiting[:WOKEN_MAX] if self.has_little_room else []
        for waiter in waiting:
            del self.waiting[waiter]
            waiter.room_came()

    # -- what was decompressed -------------------------------------------------------------------------------

    def opened(self, queue: EntryQueue, size: int) -> None:
        """Called by the receiving thread: the queue's next entry is decompressed, `size` bytes.

        Above the limit, the least recently used queues free their decompressed entry, and decompress it again later.
        """
        before = self._opened.pop(queue, 0)
        self._opened[queue] = size
        self._opened_bytes += size - before  # no call in this line, at which another thread might add too
        if self._opened_bytes > self._receiving:
            self._close_oldest(queue, size)

    def _close_oldest(self, newest: EntryQueue, size: int) -> None:
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
        """Drop the queue: nothing more is received from it."""
        before = self._opened.pop(queue, 0)
        self._opened_bytes -= before

    @property
    def opened_bytes(self) -> int:
        """Bytes of entries that are decompressed and not received to their end."""
        return sum(queue.opened for queue in list(self._opened))


def _once(function: Callable[[], Any]) -> Callable[[], None]:
    called = False

    def call() -> None:
        nonlocal called
        if not called:
            called = True
            function()

    return call
