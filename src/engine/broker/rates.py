"""Rates per second, from counters that only grow."""

from __future__ import annotations

SAMPLE_S = 5.0  # a rate is averaged over about this time


class Rate:
    """Counts messages and bytes; per second between the last two samples. Loop thread only."""

    __slots__ = ("_at", "_last_bytes", "_last_messages", "bytes", "bytes_per_s", "messages", "messages_per_s")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.messages_per_s = 0.0
        self.bytes_per_s = 0.0
        self._at: float | None = None
        self._last_messages = 0
        self._last_bytes = 0

    def count(self, messages: int, size: int) -> None:
        """So much more."""
        self.messages += messages
        self.bytes += size

    def sample(self, now: float) -> None:
        """Bring the rates up to date; `now` in seconds, monotonic."""
        if self._at is not None:
            elapsed = now - self._at
            if elapsed < SAMPLE_S / 2:
                return
            self.messages_per_s = (self.messages - self._last_messages) / elapsed
            self.bytes_per_s = (self.bytes - self._last_bytes) / elapsed
        self._at, self._last_messages, self._last_bytes = now, self.messages, self.bytes
