"""`Bucket`: a token bucket for messages and bytes, and the queue of those that wait for its tokens.

A bucket is not refilled by a timer. It is the time at which all that was taken is paid for (the generic cell rate
algorithm): to take n tokens of a rate moves that time by n / rate, and time itself pays. A bucket that was not used is
at most BURST_S seconds ahead.

Where other brokers let the same through, a bucket has a share of the rate (elsewhere.py).

Tokens are taken in portions, in the order of asking, while nothing is owed. A portion is PORTION_S seconds of the rate,
divided by the number of users: so many of them together hold no more in advance than one does alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.broker.limits.throttle import Throttle

BURST_S = 0.25  # of its rate, which an unused bucket gives at once
PORTION_S = 0.1
BYTES_MIN = 512  # of a portion


class Bucket:
    """One rate of messages, one of bytes, or both. Loop thread only.

    `limit`: messages and bytes per second that all brokers may let through together; None: any number.
    `messages_per_s`, `bytes_per_s`: what of it is this one's.
    `granted_messages`, `granted_bytes`: tokens that were taken, of either rate.
    """

    __slots__ = ("_bytes_due", "_held_s", "_held_since", "_messages_due", "_share", "_time", "_timer", "_waiting",
                 "bytes_per_s", "granted_bytes", "granted_messages", "limit", "members", "messages_per_s")  # fmt: skip

    def __init__(self, time: Callable[[], float]) -> None:
        """`time`: seconds, monotonic; that of the running loop's timers."""
        self.limit: tuple[int | None, int | None] = (None, None)
        self.messages_per_s: float | None = None
        self.bytes_per_s: float | None = None
        self.members: set[Throttle] = set()
        self._share = 1.0
        self.granted_messages = self.granted_bytes = 0
        self._held_s = 0.0  # until the queue was empty last
        self._held_since: float | None = None  # when the queue was empty last; None: it is
        self._time = time
        self._messages_due = self._bytes_due = time()
        self._waiting: deque[Throttle] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def configure(self, messages_per_s: int | None, bytes_per_s: int | None) -> None:
        """Other limits from now on; None: no limit. What is owed stays owed, in tokens."""
        self.limit = messages_per_s, bytes_per_s
        self._set_rates()

    def share(self, share: float) -> None:
        """So much of the limits is this bucket's from now on, above 0 and up to 1."""
        if share != self._share:
            self._share = share
            self._set_rates()

    def _set_rates(self) -> None:
        messages, size = (None if limit is None else limit * self._share for limit in self.limit)
        if (messages, size) == (self.messages_per_s, self.bytes_per_s):
            return
        now = self._time()
        self._messages_due = _converted(self._messages_due, now, self.messages_per_s, messages)
        self._bytes_due = _converted(self._bytes_due, now, self.bytes_per_s, size)
        self.messages_per_s, self.bytes_per_s = messages, size
        self._serve()

    @property
    def wait_s(self) -> float:
        """Until nothing is owed; at most 0: tokens may be taken."""
        return max(self._messages_due, self._bytes_due) - self._time()

    @property
    def users(self) -> int:
        """How many it holds for."""
        return len(self.members)

    def owed_by(self, owner: str) -> tuple[int, int]:
        """Messages and bytes that an owner's users have asked for, and were not granted."""
        own = [throttle for throttle in self.members if throttle.owner == owner]
        return sum(throttle.missing_messages for throttle in own), sum(throttle.missing_bytes for throttle in own)

    @property
    def waiting(self) -> int:
        """How many wait for tokens."""
        return len(self._waiting)

    @property
    def held_s(self) -> float:
        """Seconds in which at least one has waited."""
        return self._held_s + (0.0 if self._held_since is None else self._time() - self._held_since)

    def portion(self) -> tuple[int | None, int | None]:
        """The most messages and bytes to take at once; None: any number."""
        shared = PORTION_S / max(len(self.members), 1)
        messages, size = self.messages_per_s, self.bytes_per_s
        return (
            None if messages is None else max(int(messages * shared), 1),
            None if size is None else max(int(size * shared), BYTES_MIN),
        )

    def take(self, messages: int, size: int) -> None:
        """Take so many tokens, whether they are there or not."""
        self.granted_messages += messages
        self.granted_bytes += size
        earliest = self._time() - BURST_S
        if self.messages_per_s is not None:
            self._messages_due = max(self._messages_due, earliest) + messages / self.messages_per_s
        if self.bytes_per_s is not None:
            self._bytes_due = max(self._bytes_due, earliest) + size / self.bytes_per_s

    def queue(self, throttle: Throttle) -> None:
        """Serve it when nothing is owed, behind those that wait already."""
        self._waiting.append(throttle)
        if self._held_since is None:
            self._held_since = self._time()
        self._set_timer()

    def leave(self, throttle: Throttle) -> None:
        """It waits no more."""
        if throttle in self._waiting:
            self._waiting.remove(throttle)
            self._count_held()

    def _set_timer(self) -> None:
        if self._timer is None and self._waiting:
            self._timer = asyncio.get_running_loop().call_later(max(self.wait_s, 0.0), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._serve()

    def _serve(self) -> None:
        for _ in range(len(self._waiting)):
            if self.wait_s > 0:
                break
            self._waiting.popleft().turn_came()
        self._count_held()
        self._set_timer()

    def _count_held(self) -> None:
        if self._held_since is not None and not self._waiting:
            self._held_s, self._held_since = self.held_s, None


def _converted(due: float, now: float, before: float | None, after: float | None) -> float:
    return now if before is None or after is None or due <= now else now + (due - now) * before / after
