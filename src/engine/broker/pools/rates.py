"""Rates per second, all over the same window of time, so that they can be added up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engine._native.serve.meters import SLOT_S, SLOTS, Tally
from engine.limits import LOAD_WINDOW_S

_FIRST_S_MIN = 1.0  # the shortest time that a rate is averaged over


class Rate(Tally):
    """Messages and bytes counted, and their recent rates per second. Loop thread only.

    A rate that began within the window is averaged over its life so far. One that continues another (`heir`) is
    averaged over the whole window, in which the other one still counts: else their sum would exceed the traffic.
    """

    __slots__ = ("_begun", "_time", "bytes_per_s", "heir", "messages_per_s")

    def __init__(self, time: Callable[[], float], *, heir: bool = False) -> None:
        """`time`: seconds, monotonic."""
        super().__init__(time)
        self.heir = heir
        self.messages_per_s = 0.0
        self.bytes_per_s = 0.0
        self._time = time
        self._begun = time()

    def sample(self) -> None:
        """Bring the rates up to date. May be called at any interval."""
        now, marks = self._time(), self.marks
        first = int(now / SLOT_S) - SLOTS + 1
        while marks and marks[0][0] < first:
            marks.popleft()
        _, messages, size = marks[0] if marks else (first, self.messages, self.bytes)
        elapsed = now - first * SLOT_S
        if not self.heir:
            elapsed = min(elapsed, max(now - self._begun, _FIRST_S_MIN))
        self.messages_per_s = (self.messages - messages) / elapsed
        self.bytes_per_s = (self.bytes - size) / elapsed

    @property
    def silent(self) -> bool:
        """Whether nothing was counted within the window, as of the last sample()."""
        return not self.marks


Counts = tuple[int, ...]


class Window:
    """Rates of counters over a longer time, computed from samples; counting costs nothing. Loop thread only.

    Before the window has passed, rates are averaged over the time since the first sample.
    """

    __slots__ = ("_samples", "_span_s")

    def __init__(self, now: float, counts: Counts, span_s: float = LOAD_WINDOW_S) -> None:
        """`now`: seconds, monotonic. `counts`: the value of each counter."""
        self._span_s = span_s
        self._samples: deque[tuple[float, Counts]] = deque([(now, counts)])

    def sample(self, now: float, counts: Counts) -> tuple[float, ...]:
        """Take a sample; the recent rate of each counter, per second."""
        samples = self._samples
        samples.append((now, counts))
        while samples[1][0] <= now - self._span_s:
            samples.popleft()
        begun, before = samples[0]
        elapsed = max(now - begun, SLOT_S)
        return tuple((count - first) / elapsed for count, first in zip(counts, before, strict=True))

    def rest(self, now: float) -> None:
        """Nothing was counted for the length of the window, up to now."""
        _, counts = self._samples[-1]
        self._samples.clear()
        self._samples.append((now - self._span_s, counts))
