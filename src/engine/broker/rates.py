"""Rates per second, from counters that only grow."""

from __future__ import annotations

SAMPLE_S = 5.0  # a rate is averaged over about this time, longer when nobody looks
_FIRST_S_MIN = 1.0  # what came in the first instant is not taken for more than came in it


class Rate:
    """Counts messages and bytes, and says how many came per second lately. Loop thread only."""

    __slots__ = ("_since", "_then", "bytes", "bytes_per_s", "messages", "messages_per_s")

    def __init__(self, now: float = 0.0) -> None:
        self.messages = 0
        self.bytes = 0
        self.messages_per_s = 0.0
        self.bytes_per_s = 0.0
        # (when, messages, bytes): where the average begins, and where the next one will.
        self._since = self._then = (now, 0, 0)

    def count(self, messages: int, size: int) -> None:
        """So much more."""
        self.messages += messages
        self.bytes += size

    def sample(self, now: float) -> None:
        """Bring the rates up to date, as often as anybody likes; `now` in seconds, monotonic."""
        if now - self._then[0] >= SAMPLE_S / 2:
            self._since, self._then = self._then, (now, self.messages, self.bytes)
        at, messages, size = self._since
        elapsed = max(now - at, _FIRST_S_MIN)
        self.messages_per_s = (self.messages - messages) / elapsed
        self.bytes_per_s = (self.bytes - size) / elapsed
