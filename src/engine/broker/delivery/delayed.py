"""Messages that a queue withholds until their time, and when it checks them again.

Offsets are kept in compressed sets, one for each time. Times in the far future are coarse, and early: when such a time
comes, its messages are read again and withheld anew, more exactly. So there are at most about 64 times for each
doubling of the delay, whatever the number of messages, and a message takes at most two bytes.

Nothing is stored. The next owner of the segment, or this broker after a restart, finds the delays when it reads the
entries.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from pyroaring import BitMap64

from engine import checks
from engine._native.serve.delays import withheld

TICK_MS = 100  # a message is delivered at most so much after it is due
KEEP_MS = 10  # times of back-offs are multiples of it
_CHECK_S_MAX = 60.0  # between two checks: the wall clock may be set forward


class Delays:
    """The withheld messages of one queue. Loop thread only.

    Invariant: every offset withheld is in the set of a time. Checked by _check(), with ENGINE_DEBUG=1. A set may also
    have offsets that are no longer withheld, or until a later time: when checked, they are withheld anew.

    `now_ms`: the broker's wall clock, which may be set in either direction, for delivery times of messages; a monotonic
    one for back-offs. `released` is called with offsets to check again: most are due, some a little later, so
    withhold() is called again for all of them.
    """

    __slots__ = ("_held", "_now_ms", "_released", "_sets", "_timer", "_times")

    def __init__(self, now_ms: Callable[[], int], released: Callable[[BitMap64], None]) -> None:
        self._now_ms = now_ms
        self._released = released
        self._held = BitMap64()
        self._sets: dict[int, BitMap64] = {}
        self._times: list[int] = []  # the keys of the sets, as a heap
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """The number of messages withheld."""
        return len(self._held)

    @property
    def times(self) -> int:
        """The number of different times."""
        return len(self._times)

    def withhold(self, entry: memoryview, wanted: BitMap64) -> BitMap64:
        """The offsets of `wanted`, all of one entry, that are not due. They come back through `released`."""
        new = wanted - self._held
        if new:
            for time, first, stop in withheld(entry, self._now_ms(), TICK_MS):
                offsets = BitMap64()
                offsets.add_range(first, stop)
                offsets &= new
                if offsets:
                    self.hold(offsets, time)
        return wanted & self._held

    def hold(self, offsets: BitMap64, until_ms: int) -> None:
        """Withhold offsets until a time."""
        self._held |= offsets
        found = self._sets.get(until_ms)
        if found is not None:
            found |= offsets
        else:
            self._sets[until_ms] = BitMap64(offsets)
            heapq.heappush(self._times, until_ms)
            if self._times[0] == until_ms:
                self._set_timer()
        if checks.COSTLY:
            self._check()

    def _check(self) -> None:
        checks.check(self._held <= BitMap64().union(*self._sets.values()), "what is withheld is in the set of a time")
        checks.check(sorted(self._sets) == sorted(self._times), "each set of withheld messages has its time")

    def keep(self, offsets: BitMap64, delay_ms: int) -> None:
        """Withhold offsets for a time, rounded up: more for longer delays, so that there are few different times."""
        if offsets:
            due, tick = self._now_ms() + delay_ms, max(delay_ms // 64, KEEP_MS)
            self.hold(offsets, due + -due % tick)

    def forget(self, offsets: BitMap64) -> None:
        """These are acknowledged."""
        if self._held:
            self._held -= offsets
            if not self._held:
                self.close()

    def close(self) -> None:
        """Drop all offsets; `released` is not called any more."""
        self._held, self._times = BitMap64(), []
        self._sets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait = max(0, self._times[0] - self._now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(min(wait, _CHECK_S_MAX), self._release_due)

    def _release_due(self) -> None:
        """Release the offsets whose time has come."""
        self._timer = None
        now, due = self._now_ms(), BitMap64()
        while self._times and self._times[0] <= now:
            due |= self._sets.pop(heapq.heappop(self._times))
        due &= self._held  # without those that were acknowledged meanwhile
        self._held -= due
        if checks.COSTLY:
            self._check()
        if self._times:
            self._set_timer()
        if due:
            self._released(due)
